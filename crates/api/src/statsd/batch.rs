//! Lines of statsd, gathered into datagrams.

use std::fmt::Display;
use std::time::Duration;

/// As much as the clients of Python send at once: there are receivers that read no more than a kilobyte.
const DATAGRAM: usize = 512;

/// Lines on their way into datagrams.
pub(crate) struct Batch<'a> {
    deliver: &'a dyn Fn(&str),
    lines: String,
}

impl<'a> Batch<'a> {
    pub(super) fn new(deliver: &'a dyn Fn(&str)) -> Self {
        Self {
            deliver,
            lines: String::new(),
        }
    }

    /// Of something that is never negative: a sign would make it a change.
    pub(crate) fn gauge(&mut self, name: &str, value: impl Display) {
        self.push(&format!("{name}:{value}|g"));
    }

    pub(crate) fn count(&mut self, name: &str, more: u64) {
        self.push(&format!("{name}:{more}|c"));
    }

    pub(crate) fn timing(&mut self, name: &str, duration: Duration) {
        // As many digits as Nodepool's client writes.
        let milliseconds = duration.as_secs_f64() * 1000.0;
        self.push(&format!("{name}:{milliseconds:.6}|ms"));
    }

    fn push(&mut self, line: &str) {
        if !self.lines.is_empty() {
            if self.lines.len() + 1 + line.len() > DATAGRAM {
                (self.deliver)(&self.lines);
                self.lines.clear();
            } else {
                self.lines.push('\n');
            }
        }
        self.lines.push_str(line);
    }

    pub(super) fn finish(self) {
        if !self.lines.is_empty() {
            (self.deliver)(&self.lines);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn lines_share_datagrams_that_stay_small() {
        let sent = RefCell::new(Vec::new());
        let deliver = |datagram: &str| sent.borrow_mut().push(datagram.to_owned());
        let mut batch = Batch::new(&deliver);
        batch.timing("t", Duration::from_micros(1500));
        for number in 0..1000 {
            batch.gauge("nodepool.nodes.ready", number);
        }
        batch.finish();
        let sent = sent.into_inner();
        assert!(sent.iter().all(|datagram| datagram.len() <= DATAGRAM));
        assert!(sent.len() < 80, "{}", sent.len());
        let lines: Vec<&str> = sent.iter().flat_map(|datagram| datagram.lines()).collect();
        assert_eq!(lines.len(), 1001);
        assert_eq!(
            (lines[0], lines[1000]),
            ("t:1.500000|ms", "nodepool.nodes.ready:999|g")
        );
    }

    #[test]
    fn nothing_is_not_sent() {
        Batch::new(&|_| panic!("nothing to send")).finish();
    }
}
