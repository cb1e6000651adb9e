//! Batches statsd lines into datagrams.

use std::fmt::Display;
use std::time::Duration;

/// As much as the Python clients send at once: some servers read no more than a kilobyte.
const DATAGRAM: usize = 512;

/// Metrics to be sent in as few datagrams as possible.
pub(crate) struct StatsdBatch<'a> {
    send: &'a dyn Fn(&str),
    lines: String,
}

impl<'a> StatsdBatch<'a> {
    pub(super) fn new(send: &'a dyn Fn(&str)) -> Self {
        Self {
            send,
            lines: String::new(),
        }
    }

    /// Adds a gauge. `value` must not be negative, because statsd adds a gauge with a sign to the value before.
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
                (self.send)(&self.lines);
                self.lines.clear();
            } else {
                self.lines.push('\n');
            }
        }
        self.lines.push_str(line);
    }

    pub(super) fn finish(self) {
        if !self.lines.is_empty() {
            (self.send)(&self.lines);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn lines_are_batched_into_small_datagrams() {
        let sent = RefCell::new(Vec::new());
        let deliver = |datagram: &str| sent.borrow_mut().push(datagram.to_owned());
        let mut batch = StatsdBatch::new(&deliver);
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
    fn an_empty_batch_sends_nothing() {
        StatsdBatch::new(&|_| panic!("nothing to send")).finish();
    }
}
