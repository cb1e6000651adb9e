//! States, with the spelling of Zuul and Nodepool.

use std::fmt;
use std::str::FromStr;

use crate::json::json_string;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a {kind}; it must be one of {allowed}")]
pub struct UnknownVariant {
    /// The expected kind of value, such as `node state`.
    pub kind: &'static str,
    pub text: String,
    /// All valid values, separated by commas.
    pub allowed: String,
}

macro_rules! string_enum {
    ($(#[$meta:meta])* $name:ident, $kind:literal {
        $($(#[$variant_meta:meta])* $variant:ident = $word:literal,)*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $($(#[$variant_meta])* $variant,)*
        }

        impl $name {
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = UnknownVariant;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                match text {
                    $($word => Ok(Self::$variant),)*
                    _ => Err(UnknownVariant {
                        kind: $kind,
                        text: text.chars().take(60).collect(),
                        allowed: [$($word),*].join(", "),
                    }),
                }
            }
        }

        json_string!($name);
    };
}

string_enum! {
    /// The state of a node request.
    RequestState, "request state" {
        /// Waiting for a pool to accept it.
        Requested = "requested",
        /// A pool holds its lock and is working on it.
        Pending = "pending",
        /// Its nodes are ready. Final: the requestor deletes it.
        Fulfilled = "fulfilled",
        /// Every pool declined it. Final: the requestor deletes it.
        Failed = "failed",
    }
}

impl RequestState {
    /// Returns whether only the requestor may still change the request.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Fulfilled | Self::Failed)
    }
}

string_enum! {
    /// The state of a node.
    NodeState, "node state" {
        /// Stored, not yet locked.
        Init = "init",
        /// Locked and being launched. If unlocked, its launcher crashed.
        Building = "building",
        /// Obsolete but valid.
        Testing = "testing",
        /// Usable; available if it is not allocated.
        Ready = "ready",
        /// Running a job.
        InUse = "in-use",
        /// The job is done.
        Used = "used",
        /// Kept for inspection.
        Hold = "hold",
        /// The launch failed.
        Failed = "failed",
        /// The launch exceeded a quota; a retry may succeed.
        Aborted = "aborted",
        /// The instance is being deleted.
        Deleting = "deleting",
        /// The instance is deleted, the record is about to be.
        Deleted = "deleted",
    }
}

string_enum! {
    /// The state of an image build.
    BuildState, "image build state" {
        Building = "building",
        Ready = "ready",
        Deleting = "deleting",
        Failed = "failed",
    }
}

string_enum! {
    /// The state of an image upload.
    UploadState, "image upload state" {
        Uploading = "uploading",
        Ready = "ready",
        Deleting = "deleting",
        Failed = "failed",
    }
}

string_enum! {
    /// The state that a component reports.
    ComponentState, "component state" {
        Initializing = "initializing",
        Running = "running",
        Paused = "paused",
        Stopped = "stopped",
    }
}

string_enum! {
    /// The kinds of components. Each has its own directory in the store.
    ComponentKind, "component kind" {
        Launcher = "launcher",
        /// A pool of a provider in a launcher.
        Pool = "pool",
        Builder = "builder",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_round_trip() {
        for state in NodeState::ALL {
            assert_eq!(state.as_str().parse::<NodeState>().unwrap(), *state);
        }
        assert_eq!(NodeState::ALL.len(), 11);
    }

    #[test]
    fn unknown_states_are_rejected_with_the_valid_ones() {
        let error = "Ready".parse::<RequestState>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "\"Ready\" is not a request state; it must be one of requested, pending, fulfilled, failed"
        );
    }
}
