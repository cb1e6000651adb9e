//! Errors of drivers: a class to act on and a text to read.

use std::error::Error as StdError;
use std::fmt;

/// What the caller is to do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ErrorClass {
    /// It may work the next time; the same operation may be called again.
    Retry,
    /// The cloud took it on and says that it went wrong. Delete what was begun and begin again.
    Failed,
    /// A quota is used up. Delete what was begun and wait until something is given back.
    Quota,
    /// The cloud has no room for this now, here. Delete what was begun; another zone or time may do.
    Capacity,
    /// It will not work until somebody changes the configuration or the cloud.
    Permanent,
    /// The cloud does not accept who we are, or does not let us do this.
    Credentials,
}

impl ErrorClass {
    pub const ALL: &[Self] = &[
        Self::Retry,
        Self::Failed,
        Self::Quota,
        Self::Capacity,
        Self::Permanent,
        Self::Credentials,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Failed => "failed",
            Self::Quota => "quota",
            Self::Capacity => "capacity",
            Self::Permanent => "permanent",
            Self::Credentials => "credentials",
        }
    }
}

impl fmt::Display for ErrorClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What went wrong in a cloud, or on the way to it.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct Error {
    class: ErrorClass,
    text: String,
    #[source]
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// `text` is for the operator: lower case, with the place and, where there is one, the remedy.
    pub fn new(class: ErrorClass, text: impl Into<String>) -> Self {
        Self {
            class,
            text: text.into(),
            source: None,
        }
    }

    pub fn retry(text: impl Into<String>) -> Self {
        Self::new(ErrorClass::Retry, text)
    }

    pub fn permanent(text: impl Into<String>) -> Self {
        Self::new(ErrorClass::Permanent, text)
    }

    /// The caller asked for something that the driver cannot do.
    pub fn unsupported(what: &str) -> Self {
        Self::permanent(format!("this driver cannot {what}"))
    }

    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    pub fn class(&self) -> ErrorClass {
        self.class
    }
}
