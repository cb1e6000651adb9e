//! The states of things, spelt as Zuul and Nodepool spell them. No other text is a state.

use std::fmt;
use std::str::FromStr;

use crate::json::text_form;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a {kind}; it must be one of {allowed}")]
pub struct UnknownWord {
    /// What the text was to be, such as `node state`.
    pub kind: &'static str,
    pub text: String,
    /// Every valid word, separated by commas.
    pub allowed: String,
}

macro_rules! words {
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
            type Err = UnknownWord;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                match text {
                    $($word => Ok(Self::$variant),)*
                    _ => Err(UnknownWord {
                        kind: $kind,
                        text: text.chars().take(60).collect(),
                        allowed: [$($word),*].join(", "),
                    }),
                }
            }
        }

        text_form!($name);
    };
}

words! {
    /// How far a node request is.
    RequestState, "request state" {
        /// Waiting for a pool to accept it.
        Requested = "requested",
        /// A pool is working on it, and holds its lock.
        Pending = "pending",
        /// Its nodes are ready. Final: the requestor deletes it.
        Fulfilled = "fulfilled",
        /// Every pool declined it. Final: the requestor deletes it.
        Failed = "failed",
    }
}

impl RequestState {
    /// True if the request must not be written again by us.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Fulfilled | Self::Failed)
    }
}

words! {
    /// Where a node is in its life.
    NodeState, "node state" {
        /// Recorded, not yet locked.
        Init = "init",
        /// Locked and being launched. Unlocked, it is left over from a crash.
        Building = "building",
        /// Never set any more; still valid.
        Testing = "testing",
        /// Usable; free if it is not allocated.
        Ready = "ready",
        /// Running a job.
        InUse = "in-use",
        /// The job is done.
        Used = "used",
        /// Kept for a person to look at.
        Hold = "hold",
        /// The launch failed.
        Failed = "failed",
        /// The launch hit a quota; another try may succeed.
        Aborted = "aborted",
        /// The instance is being removed.
        Deleting = "deleting",
        /// The instance is gone, the record is about to go.
        Deleted = "deleted",
    }
}

words! {
    /// How far a build of an image is.
    BuildState, "image build state" {
        Building = "building",
        Ready = "ready",
        Deleting = "deleting",
        Failed = "failed",
    }
}

words! {
    /// How far an upload of an image to a provider is.
    UploadState, "image upload state" {
        Uploading = "uploading",
        Ready = "ready",
        Deleting = "deleting",
        Failed = "failed",
    }
}

words! {
    /// What a component says of itself.
    ComponentState, "component state" {
        Initializing = "initializing",
        Running = "running",
        Paused = "paused",
        Stopped = "stopped",
    }
}

words! {
    /// The kinds of components; each has a directory of its own in the store.
    ComponentKind, "component kind" {
        Launcher = "launcher",
        /// Not a process: one pool of a provider in a launcher.
        Pool = "pool",
        Builder = "builder",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_reads_back() {
        for state in NodeState::ALL {
            assert_eq!(state.as_str().parse::<NodeState>().unwrap(), *state);
        }
        assert_eq!(NodeState::ALL.len(), 11);
    }

    #[test]
    fn another_word_is_refused_with_those_allowed() {
        let error = "Ready".parse::<RequestState>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "\"Ready\" is not a request state; it must be one of requested, pending, fulfilled, failed"
        );
    }
}
