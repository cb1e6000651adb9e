//! Prometheus' text format, version 0.0.4.

use std::fmt::{self, Display, Write as _};

use super::histogram::Histogram;

/// The type of a metric family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MetricType {
    Counter,
    Gauge,
    Histogram,
}

/// Builds the text of metric families.
#[derive(Debug, Default)]
pub(crate) struct Exposition(String);

/// The samples of one metric name.
pub(crate) struct Family<'a> {
    text: &'a mut String,
    name: &'static str,
}

/// The label names and values of a sample.
pub(crate) type LabelPairs<'a> = &'a [(&'a str, &'a str)];

impl Exposition {
    /// Adds the header of a family.
    pub(crate) fn family(
        &mut self,
        metric_type: MetricType,
        name: &'static str,
        help: &str,
    ) -> Family<'_> {
        let metric_type = match metric_type {
            MetricType::Counter => "counter",
            MetricType::Gauge => "gauge",
            MetricType::Histogram => "histogram",
        };
        push(
            &mut self.0,
            format_args!("# HELP {name} {help}\n# TYPE {name} {metric_type}\n"),
        );
        Family {
            text: &mut self.0,
            name,
        }
    }

    /// Adds `nodeyard_build_info`, which every program exports.
    pub(crate) fn build_info(&mut self) {
        self.family(
            MetricType::Gauge,
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
    pub(crate) fn sample(&mut self, labels: LabelPairs<'_>, value: impl Display) {
        self.line("", labels, value);
    }

    pub(crate) fn histogram(&mut self, labels: LabelPairs<'_>, histogram: &Histogram) {
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

    fn line(&mut self, suffix: &str, labels: LabelPairs<'_>, value: impl Display) {
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
    // Writing to a string cannot fail.
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
        let mut family = exposition.family(MetricType::Gauge, "nodes", "Nodes.");
        family.sample(&[], 1);
        family.sample(&[("label", "a\"b\\c\nd"), ("state", "ü")], 0.5);
        assert_eq!(
            exposition.finish(),
            "# HELP nodes Nodes.\n# TYPE nodes gauge\nnodes 1\nnodes{label=\"a\\\"b\\\\c\\nd\",state=\"ü\"} 0.5\n"
        );
    }
}
