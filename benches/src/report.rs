//! How figures are printed: what was measured, against what, and what was aimed for.

use std::time::Duration;

/// A line of the result.
pub(crate) struct Figure {
    pub(crate) what: String,
    pub(crate) value: String,
    /// The yardstick of the same run, or a remark.
    pub(crate) against: String,
    pub(crate) aim: String,
    pub(crate) reached: Option<bool>,
}

impl Figure {
    pub(crate) fn new(what: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            value: value.into(),
            against: String::new(),
            aim: String::new(),
            reached: None,
        }
    }

    pub(crate) fn against(mut self, yardstick: impl Into<String>) -> Self {
        self.against = yardstick.into();
        self
    }

    pub(crate) fn aim(mut self, aim: impl Into<String>, reached: bool) -> Self {
        self.aim = aim.into();
        self.reached = Some(reached);
        self
    }
}

pub(crate) fn print(title: &str, figures: &[Figure]) {
    print_title(title);
    print_figures(figures);
}

pub(crate) fn print_title(title: &str) {
    println!("\n{title}");
}

pub(crate) fn print_figures(figures: &[Figure]) {
    for figure in figures {
        let verdict = match figure.reached {
            None => "",
            Some(true) => " (reached)",
            Some(false) => " (MISSED)",
        };
        println!(
            "  {:<62} {:>15}  {}",
            figure.what, figure.value, figure.against
        );
        if !figure.aim.is_empty() {
            println!("  {:<62} {:>15}  aim: {}{verdict}", "", "", figure.aim);
        }
    }
}

/// `12,345/s`
pub(crate) fn rate(per_second: f64) -> String {
    let digits = format!("{per_second:.0}");
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    format!("{grouped}/s")
}

/// Of sorted times.
pub(crate) fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let last = sorted.len().saturating_sub(1);
    sorted
        .get(last * percent / 100)
        .copied()
        .unwrap_or_default()
}

pub(crate) fn times(what: &str, sorted: &[Duration]) -> String {
    if sorted.is_empty() {
        return format!("{what} none").trim().to_owned();
    }
    let text = format!(
        "{what} p50 {}, p99 {}",
        brief(percentile(sorted, 50)),
        brief(percentile(sorted, 99))
    );
    text.trim().to_owned()
}

pub(crate) fn brief(time: Duration) -> String {
    if time < Duration::from_millis(100) {
        format!("{:.1} ms", time.as_secs_f64() * 1e3)
    } else {
        format!("{:.2} s", time.as_secs_f64())
    }
}

pub(crate) fn ratio(larger: Duration, smaller: Duration) -> f64 {
    larger.as_secs_f64() / smaller.as_secs_f64().max(1e-6)
}
