//! A progress line on standard error: rewritten on a terminal, a new line for each change elsewhere.

use std::io::{self, IsTerminal as _, Write as _};

use crate::output;

/// A progress line. Erased when dropped.
#[derive(Debug, Default)]
pub(crate) struct ProgressLine {
    shown: String,
}

impl ProgressLine {
    pub(crate) fn show(&mut self, text: &str) -> io::Result<()> {
        if self.shown == text {
            return Ok(());
        }
        let mut err = io::stderr().lock();
        if err.is_terminal() {
            // Only the last part of a wrapped line could be erased.
            let width = output::width_of(&err).unwrap_or(usize::MAX);
            write!(err, "\r\x1b[K{}", shortened(text, width))?;
            err.flush()?;
        } else {
            writeln!(err, "{text}")?;
        }
        text.clone_into(&mut self.shown);
        Ok(())
    }

    /// Ends with a final text.
    pub(crate) fn finish(mut self, text: &str) -> io::Result<()> {
        if !io::stderr().is_terminal() && self.shown == text {
            return Ok(());
        }
        self.clear()?;
        writeln!(io::stderr(), "{text}")
    }

    /// Erases the line on a terminal.
    pub(crate) fn clear(&mut self) -> io::Result<()> {
        if io::stderr().is_terminal() && !self.shown.is_empty() {
            write!(io::stderr(), "\r\x1b[K")?;
            self.shown.clear();
        }
        Ok(())
    }
}

/// Erases the line, so that an error is not appended to it.
impl Drop for ProgressLine {
    fn drop(&mut self) {
        let _ = self.clear();
    }
}

/// Truncates a text, leaving the last column free, because some terminals wrap there.
fn shortened(text: &str, width: usize) -> String {
    if text.chars().count() < width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(2)).collect();
    format!("{kept}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_shorter_than_the_terminal() {
        assert_eq!(shortened("building", 9), "building");
        assert_eq!(shortened("building", 8), "buildi…");
        assert_eq!(shortened("", 0), "…");
    }
}
