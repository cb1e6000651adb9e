//! What differs from run to run, and what stands for it in the page: the home directory, ports, ids, times.

/// In the order in which ids are first seen.
const IDS: [&str; 4] = [
    "7f3c2a91d04e4b6f8a15c3e2b9d07f64",
    "b82d5e07c1f94a3e96d0748fa2c5e318",
    "24ae96f1703b4d8cb5e2f0169c7d3a85",
    "e91b4c6d58a2470fb3d6812ec0f7a549",
];

/// Ids are also shown and typed by their beginning.
const SHORT: usize = 8;

pub(super) struct Mask {
    /// What is, and what is shown instead.
    known: Vec<(String, String)>,
    ids: usize,
}

impl Mask {
    pub(super) fn new(home: &str) -> Self {
        Self {
            known: vec![(home.to_owned(), "/home/me".to_owned())],
            ids: 0,
        }
    }

    pub(super) fn add(&mut self, real: &str, shown: &str) {
        self.known.push((real.to_owned(), shown.to_owned()));
    }

    /// Returns the line as it is typed here.
    pub(super) fn undo(&self, line: &str) -> String {
        let known = self.known.iter();
        known.fold(line.to_owned(), |line, (real, shown)| {
            line.replace(shown, real)
        })
    }

    /// Returns the line as the page shows it.
    pub(super) fn apply(&mut self, line: &str) -> String {
        for word in line.split(|char: char| !char.is_ascii_alphanumeric()) {
            let is_id = word.len() == 32 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
            if is_id && !self.known.iter().any(|(real, _)| real == word) {
                let shown = IDS[self.ids];
                self.ids += 1;
                self.add(word, shown);
                self.add(&word[..SHORT], &shown[..SHORT]);
            }
        }
        let known = self.known.iter();
        let line = known.fold(line.to_owned(), |line, (real, shown)| {
            line.replace(real, shown)
        });
        times(&line)
    }

    /// Returns a line of a log, which begins with its time.
    pub(super) fn log(&mut self, line: &str) -> String {
        let (_, said) = line.split_once(' ').unwrap();
        format!("2026-01-31T12:00:00.000000Z {}", self.apply(said))
    }
}

/// Makes all numbers of seconds, and of minutes of a lease, the same; columns stay where they are.
fn times(line: &str) -> String {
    let mut shown = String::new();
    let mut rest = line;
    while let Some(start) = rest.find(|char: char| char.is_ascii_digit()) {
        let (before, from) = rest.split_at(start);
        shown.push_str(before);
        let digits = from
            .bytes()
            .take_while(|byte| byte.is_ascii_digit() || *byte == b'.');
        let (number, after) = from.split_at(digits.count());
        let begins_word =
            !before.ends_with(|char: char| char.is_ascii_alphanumeric() || "-_/".contains(char));
        let ends_word = |unit: &str| {
            let next = after.strip_prefix(unit).map(|rest| rest.chars().next());
            next.is_some_and(|next| !next.is_some_and(|next| next.is_ascii_alphanumeric()))
        };
        let unit = ["s", " s", " ms"].into_iter().find(|unit| ends_word(unit));
        match unit {
            Some(unit) if begins_word => {
                let unit_shown = if unit == " ms" { " s" } else { unit };
                let stands = format!("1{unit_shown}");
                let width = number.len() + unit.len();
                let after = &after[unit.len()..];
                let padding = if after.starts_with("  ") {
                    width.saturating_sub(stands.len())
                } else {
                    0
                };
                shown.push_str(&stands);
                shown.push_str(&" ".repeat(padding));
                rest = after;
            }
            _ => {
                shown.push_str(number);
                rest = after;
            }
        }
    }
    shown + rest
}

#[test]
fn times_are_alike_and_columns_stay() {
    assert_eq!(times("ready  12s  small"), "ready  1s   small");
    assert_eq!(times("waited 0.3 s, then 120 ms"), "waited 1 s, then 1 s");
    assert_eq!(times("200-0000000000 8005 4s"), "200-0000000000 8005 1s");
    assert_eq!(times("2 servers"), "2 servers");
}
