//! Reads the progress of a build from its output.

use std::fmt;

/// The maximum length of a line that reports progress.
const MAX_LINE: usize = 512;

/// Reads the progress out of one line.
pub(super) trait ProgressScale: fmt::Debug + Send {
    /// Returns the number of completed steps and of all steps.
    fn read(&mut self, line: &str) -> Option<(u64, u64)>;
}

/// Splits output into lines and reads progress from them.
#[derive(Debug)]
pub(super) struct ProgressReader<S> {
    scale: S,
    line: Vec<u8>,
}

impl<S: ProgressScale> ProgressReader<S> {
    pub(super) fn new(scale: S) -> Self {
        Self {
            scale,
            line: Vec::new(),
        }
    }

    /// Returns the last progress reported in a piece of output.
    pub(super) fn read(&mut self, output: &[u8]) -> Option<(u64, u64)> {
        let mut last = None;
        for part in output.split_inclusive(|byte| *byte == b'\n') {
            let room = MAX_LINE.saturating_sub(self.line.len());
            self.line.extend(part.iter().take(room));
            if part.ends_with(b"\n") {
                if let Ok(line) = std::str::from_utf8(&self.line) {
                    last = self.scale.read(line.trim_end()).or(last);
                }
                self.line.clear();
            }
        }
        last
    }
}

/// For programs that do not report progress.
#[derive(Debug)]
pub(super) struct NoProgress;

impl ProgressScale for NoProgress {
    fn read(&mut self, _line: &str) -> Option<(u64, u64)> {
        None
    }
}

/// Lines such as `nodeyard: progress 3/10`.
#[derive(Debug)]
pub(super) struct AnnouncedProgress;

impl ProgressScale for AnnouncedProgress {
    fn read(&mut self, line: &str) -> Option<(u64, u64)> {
        let (done, all) = line.strip_prefix("nodeyard: progress ")?.split_once('/')?;
        let (done, all) = (done.trim().parse().ok()?, all.trim().parse().ok()?);
        (done <= all && all > 0).then_some((done, all))
    }
}

/// Reads the phase of diskimage-builder from the directory whose scripts it runs.
#[derive(Debug)]
pub(super) struct DibPhases;

const PHASES: [&str; 10] = [
    "/root.d",
    "/extra-data.d",
    "/pre-install.d",
    "/install.d",
    "/post-install.d",
    "/post-root.d",
    "/block-device.d",
    "/pre-finalise.d",
    "/finalise.d",
    "/cleanup.d",
];

impl ProgressScale for DibPhases {
    fn read(&mut self, line: &str) -> Option<(u64, u64)> {
        if !line.contains("dib-run-parts") {
            return None;
        }
        let at = PHASES.iter().position(|phase| line.contains(phase))?;
        Some((u64::try_from(at).ok()?, PHASES.len() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_found_in_output_that_comes_in_pieces() {
        let mut progress_reader = ProgressReader::new(AnnouncedProgress);
        assert_eq!(progress_reader.read(b"hello\nnodeyard: prog"), None);
        assert_eq!(progress_reader.read(b"ress 3/10\nx"), Some((3, 10)));
        let two = b"\nnodeyard: progress 4/10\nnodeyard: progress 5/10\r\nmore";
        assert_eq!(progress_reader.read(two), Some((5, 10)));
    }

    #[test]
    fn other_lines_are_ignored() {
        let mut progress_reader = ProgressReader::new(AnnouncedProgress);
        for line in [
            "nodeyard: progress 1",
            "nodeyard: progress a/b",
            "nodeyard: progress 11/10",
            "nodeyard: progress 0/0",
            "nodeyard: progress -1/2",
            " nodeyard: progress 1/2",
        ] {
            assert_eq!(
                progress_reader.read(format!("{line}\n").as_bytes()),
                None,
                "{line}"
            );
        }
        assert_eq!(progress_reader.read(&vec![b'x'; 1 << 20]), None);
        assert_eq!(
            progress_reader.read(b"\nnodeyard: progress 1/2\n"),
            Some((1, 2))
        );
        assert!(progress_reader.line.capacity() <= 2 * MAX_LINE);
    }

    #[test]
    fn phases_of_diskimage_builder_are_recognised() {
        let mut progress_reader = ProgressReader::new(DibPhases);
        let line =
            b"2026-01-01 10:00:00.123 | dib-run-parts Running /tmp/dib.x/hooks/install.d/50-x\n";
        assert_eq!(progress_reader.read(line), Some((3, 10)));
        assert_eq!(progress_reader.read(b"copying /install.d\n"), None);
    }
}
