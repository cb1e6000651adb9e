//! Tests that cannot run where they are.

use std::env;
use std::ffi::OsStr;
use std::io::{IsTerminal, Write as _};

/// Says loudly that something is not tested here, and what would help.
///
/// # Panics
///
/// Where nothing may be left out: with `CI` or `NODEYARD_REQUIRE` in the environment.
#[expect(clippy::panic, reason = "that is how a test fails")]
pub fn skipped(what: &str, remedy: &str) {
    if ["CI", "NODEYARD_REQUIRE"]
        .into_iter()
        .any(|name| is_set(env::var_os(name).as_deref()))
    {
        panic!("{what} is not tested, and nothing may be skipped here: {remedy}");
    }
    // Not by a macro: what those print is shown of tests that fail only.
    let mut stderr = std::io::stderr();
    let (bold, plain) = if stderr.is_terminal() {
        ("\x1b[1;31m", "\x1b[0m")
    } else {
        ("", "")
    };
    let _ = writeln!(stderr, "{bold}SKIPPED: {what}.{plain} {remedy}");
}

fn is_set(value: Option<&OsStr>) -> bool {
    value.is_some_and(|value| !matches!(value.to_str(), Some("" | "0" | "false")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_are_off_when_absent_or_said_to_be() {
        for off in [None, Some(""), Some("0"), Some("false")] {
            assert!(!is_set(off.map(OsStr::new)), "{off:?}");
        }
        for on in ["1", "true", "yes"] {
            assert!(is_set(Some(OsStr::new(on))), "{on}");
        }
    }
}
