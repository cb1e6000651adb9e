//! The line that says what a command waits for. It is written anew on a terminal; elsewhere each change is a line.

use std::io::{self, IsTerminal as _, Write as _};

use crate::output;

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
            // Of a line that is wrapped, only the last part could be erased.
            let width = output::width_of(&err).unwrap_or(usize::MAX);
            write!(err, "\r\x1b[K{}", shortened(text, width))?;
            err.flush()?;
        } else {
            writeln!(err, "{text}")?;
        }
        text.clone_into(&mut self.shown);
        Ok(())
    }

    /// Ends with a text that stays.
    pub(crate) fn finish(mut self, text: &str) -> io::Result<()> {
        if !io::stderr().is_terminal() && self.shown == text {
            return Ok(());
        }
        self.clear()?;
        writeln!(io::stderr(), "{text}")
    }

    /// Erases the line of a terminal.
    pub(crate) fn clear(&mut self) -> io::Result<()> {
        if io::stderr().is_terminal() && !self.shown.is_empty() {
            write!(io::stderr(), "\r\x1b[K")?;
            self.shown.clear();
        }
        Ok(())
    }
}

/// An error that ends a command is not to be appended to the line.
impl Drop for ProgressLine {
    fn drop(&mut self) {
        let _ = self.clear();
    }
}

/// Leaves the last column free, where some terminals would begin a new line.
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
    fn a_line_never_reaches_the_edge_of_the_terminal() {
        assert_eq!(shortened("building", 9), "building");
        assert_eq!(shortened("building", 8), "buildi…");
        assert_eq!(shortened("", 0), "…");
    }
}
