//! A table that renders as text and serialises as JSON.

use nodeyard_model::{Opaque, Timestamp};
use serde::ser::{Serialize, SerializeMap as _, SerializeSeq as _, Serializer};

/// The value in one cell of a table.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    Null,
    Text(String),
    Number(i64),
    Flag(bool),
    List(Vec<String>),
    Json(Opaque),
    /// The time since then as `DD:HH:MM:SS`, in text and in JSON.
    Age(Timestamp),
    /// The time since then as `DD:HH:MM:SS` in text, and the Unix time in whole seconds in JSON.
    Since(Timestamp),
}

impl<T: Into<String>> From<Option<T>> for Cell {
    fn from(text: Option<T>) -> Self {
        text.map_or(Cell::Null, |text| Cell::Text(text.into()))
    }
}

impl Cell {
    #[expect(
        clippy::needless_pass_by_value,
        reason = "callers have values as often as references"
    )]
    pub fn text(text: impl ToString) -> Self {
        Cell::Text(text.to_string())
    }

    fn as_text(&self, now: Timestamp) -> String {
        match self {
            Cell::Null => String::new(),
            Cell::Text(text) => text.clone(),
            Cell::Number(number) => number.to_string(),
            // As Python writes them; scripts compare with these.
            Cell::Flag(true) => "True".to_owned(),
            Cell::Flag(false) => "False".to_owned(),
            Cell::List(items) => items.join(","),
            Cell::Json(value) if value.is_null() => String::new(),
            Cell::Json(value) => value.as_string().unwrap_or_else(|| value.text().to_owned()),
            Cell::Age(since) | Cell::Since(since) => age(*since, now),
        }
    }
}

/// Formats the time since `since` as `DD:HH:MM:SS`.
fn age(since: Timestamp, now: Timestamp) -> String {
    let seconds = now.since(since).as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    format!(
        "{days:02}:{:02}:{:02}:{:02}",
        hours % 24,
        minutes % 60,
        seconds % 60
    )
}

/// Columns (a JSON key and a heading each) and rows with one cell per column.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordTable {
    columns: &'static [(&'static str, &'static str)],
    rows: Vec<Vec<Cell>>,
    now: Timestamp,
}

impl RecordTable {
    pub fn new(
        columns: &'static [(&'static str, &'static str)],
        rows: Vec<Vec<Cell>>,
        now: Timestamp,
    ) -> Self {
        Self { columns, rows, now }
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Renders an ASCII grid. `fields` selects columns by their keys; their order stays.
    pub fn text(&self, fields: Option<&[&str]>) -> String {
        let wanted: Vec<bool> = self
            .columns
            .iter()
            .map(|(key, _)| fields.is_none_or(|fields| fields.contains(key)))
            .collect();
        let pick = |cells: Vec<String>| -> Vec<String> {
            let both = cells.into_iter().zip(&wanted);
            both.filter(|(_, wanted)| **wanted)
                .map(|(cell, _)| cell)
                .collect()
        };
        let headings = pick(
            self.columns
                .iter()
                .map(|(_, heading)| (*heading).to_owned())
                .collect(),
        );
        let rows: Vec<Vec<String>> = self
            .rows
            .iter()
            .map(|row| pick(row.iter().map(|cell| cell.as_text(self.now)).collect()))
            .collect();
        grid(&headings, &rows)
    }
}

fn grid(headings: &[String], rows: &[Vec<String>]) -> String {
    let width = |text: &String| {
        text.lines()
            .map(|line| line.chars().count())
            .max()
            .unwrap_or(0)
    };
    let mut widths: Vec<usize> = headings.iter().map(width).collect();
    for row in rows {
        for (column, cell) in widths.iter_mut().zip(row) {
            *column = (*column).max(width(cell));
        }
    }
    let rule: String = widths
        .iter()
        .map(|width| format!("+{}", "-".repeat(width + 2)))
        .collect();
    let rule = format!("{rule}+\n");
    let line = |cells: &[String]| -> String {
        let height = cells
            .iter()
            .map(|cell| cell.lines().count())
            .max()
            .unwrap_or(0)
            .max(1);
        (0..height)
            .map(|part| {
                let cells = cells.iter().zip(&widths).map(|(cell, &width)| {
                    let text = cell.lines().nth(part).unwrap_or("");
                    format!("| {text:<width$} ")
                });
                format!("{}|\n", cells.collect::<String>())
            })
            .collect()
    };
    let mut text = format!("{rule}{}{rule}", line(headings));
    for row in rows {
        text.push_str(&line(row));
    }
    text + &rule
}

/// A JSON array of objects, each with all keys.
impl Serialize for RecordTable {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.rows.len()))?;
        for row in &self.rows {
            list.serialize_element(&JsonRow { table: self, row })?;
        }
        list.end()
    }
}

struct JsonRow<'a> {
    table: &'a RecordTable,
    row: &'a [Cell],
}

impl Serialize for JsonRow<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_map(Some(self.row.len()))?;
        for ((key, _), cell) in self.table.columns.iter().zip(self.row) {
            match cell {
                Cell::Null => object.serialize_entry(key, &())?,
                Cell::Text(text) => object.serialize_entry(key, text)?,
                Cell::Number(number) => object.serialize_entry(key, number)?,
                Cell::Flag(flag) => object.serialize_entry(key, flag)?,
                Cell::List(items) => object.serialize_entry(key, items)?,
                Cell::Json(value) => object.serialize_entry(key, value)?,
                Cell::Age(since) => object.serialize_entry(key, &age(*since, self.table.now))?,
                Cell::Since(since) => object.serialize_entry(key, &(since.as_secs() as i64))?,
            }
        }
        object.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> Timestamp {
        Timestamp::from_secs(seconds).unwrap()
    }

    fn table(rows: Vec<Vec<Cell>>) -> RecordTable {
        RecordTable::new(
            &[("id", "ID"), ("labels", "Labels"), ("age", "Age")],
            rows,
            at(100_000.0),
        )
    }

    #[test]
    fn a_grid_has_its_heading_even_without_rows() {
        assert_eq!(
            table(Vec::new()).text(None),
            "\
+----+--------+-----+
| ID | Labels | Age |
+----+--------+-----+
+----+--------+-----+
"
        );
    }

    #[test]
    fn cells_are_shown_as_nodepool_shows_them() {
        let list = Cell::List(vec!["small".into(), "large".into()]);
        let table = table(vec![
            vec![Cell::text("ü1"), list, Cell::Age(at(10_000.0))],
            vec![Cell::Null, Cell::Flag(true), Cell::Since(at(99_999.0))],
        ]);
        assert_eq!(
            table.text(None),
            "\
+----+-------------+-------------+
| ID | Labels      | Age         |
+----+-------------+-------------+
| ü1 | small,large | 01:01:00:00 |
|    | True        | 00:00:00:01 |
+----+-------------+-------------+
"
        );
        assert_eq!(
            serde_json::to_value(&table).unwrap(),
            serde_json::json!([
                {"id": "ü1", "labels": ["small", "large"], "age": "01:01:00:00"},
                {"id": null, "labels": true, "age": 99_999},
            ])
        );
    }

    #[test]
    fn fields_pick_columns_and_keep_their_order() {
        let table = table(vec![vec![Cell::text(1), Cell::Null, Cell::Null]]);
        assert_eq!(
            table.text(Some(&["age", "id", "nonsense"])),
            "+----+-----+\n| ID | Age |\n+----+-----+\n| 1  |     |\n+----+-----+\n"
        );
    }
}
