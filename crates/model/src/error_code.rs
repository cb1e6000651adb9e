//! Codes of the errors that operators meet, with the cause and the remedy of each.
//!
//! This is the only list; docs/errors.md and `nodeyard errors` are made from it. A code keeps its meaning for ever:
//! numbers of errors that are gone are not given to others.

mod table;

use std::error::Error;
use std::fmt;
use std::str::FromStr;

use crate::with_causes;

pub use table::ErrorCode;

/// An error that may have a code.
pub trait Coded: Error {
    /// `None` if it is met inside of the program only, or if what caused it says more.
    fn code(&self) -> Option<ErrorCode>;
}

/// Returns an error and its causes in one line, with its code in front.
pub fn coded(error: &(impl Coded + 'static)) -> String {
    match error.code() {
        Some(code) => format!("[{code}] {}", with_causes(error)),
        None => with_causes(error),
    }
}

impl ErrorCode {
    /// Returns the code with this [name](Self::name).
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.name() == name)
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an error code; `nodeyard errors` lists them")]
pub struct UnknownErrorCode(String);

/// Accepts an id in upper or lower case, or a name.
impl FromStr for ErrorCode {
    type Err = UnknownErrorCode;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut all = Self::ALL.iter().copied();
        all.find(|code| code.id().eq_ignore_ascii_case(text) || code.name() == text)
            .ok_or_else(|| UnknownErrorCode(text.to_owned()))
    }
}

#[cfg(test)]
mod tests;
