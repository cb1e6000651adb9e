//! Prometheus' text format, version 0.0.4.

use std::fmt::{self, Display, Write as _};

use super::histogram::Histogram;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// The text of families of samples.
#[derive(Debug, Default)]
pub(crate) struct Exposition(String);

/// The samples of one name.
pub(crate) struct Family<'a> {
    text: &'a mut String,
    name: &'static str,
}

/// Names and values that tell the samples of a family apart.
pub(crate) type Labels<'a> = &'a [(&'a str, &'a str)];

impl Exposition {
    pub(crate) fn family(&mut self, kind: Kind, name: &'static str, help: &str) -> Family<'_> {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        push(
            &mut self.0,
            format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"),
        );
        Family {
            text: &mut self.0,
            name,
        }
    }

    /// A family that every program of ours has.
    pub(crate) fn build_info(&mut self) {
        self.family(
            Kind::Gauge,
            "nodeyard_build_info",
            "Always 1; the labels say what runs.",
        )
        .sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    }

    pub(crate) fn finish(self) -> String {
        self.0
    }
}

impl Family<'_> {
    pub(crate) fn sample(&mut self, labels: Labels<'_>, value: impl Display) {
        self.line("", labels, value);
    }

    pub(crate) fn histogram(&mut self, labels: Labels<'_>, histogram: &Histogram) {
        let mut bucket = |bound: &str, count| {
            self.line("_bucket", &[labels, &[("le", bound)]].concat(), count);
        };
        for (bound, count) in histogram.buckets() {
            bucket(&bound.to_string(), count);
        }
        bucket("+Inf", histogram.count());
        self.line("_sum", labels, histogram.sum());
        self.line("_count", labels, histogram.count());
    }

    fn line(&mut self, suffix: &str, labels: Labels<'_>, value: impl Display) {
        push(self.text, format_args!("{}{suffix}", self.name));
        for (position, (name, value)) in labels.iter().enumerate() {
            let before = if position == 0 { '{' } else { ',' };
            push(
                self.text,
                format_args!("{before}{name}=\"{}\"", Escaped(value)),
            );
        }
        let after = if labels.is_empty() { "" } else { "}" };
        push(self.text, format_args!("{after} {value}\n"));
    }
}

fn push(text: &mut String, more: fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = text.write_fmt(more);
}

struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '\\' => f.write_str("\\\\")?,
                '"' => f.write_str("\\\"")?,
                '\n' => f.write_str("\\n")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        let mut exposition = Exposition::default();
        let mut family = exposition.family(Kind::Gauge, "nodes", "Nodes.");
        family.sample(&[], 1);
        family.sample(&[("label", "a\"b\\c\nd"), ("state", "ü")], 0.5);
        assert_eq!(
            exposition.finish(),
            "# HELP nodes Nodes.\n# TYPE nodes gauge\nnodes 1\nnodes{label=\"a\\\"b\\\\c\\nd\",state=\"ü\"} 0.5\n"
        );
    }
}
