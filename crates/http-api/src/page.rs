//! Long lists, a page at a time.
//!
//! A list is in the order of its ids. A cursor is the last id that was shown, so pages neither repeat nor skip what
//! stays while others come and go. Clients must not read anything into a cursor.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::problem::Problem;
use crate::schema;

const DEFAULT: u32 = 100;
pub(crate) const MOST: u32 = 1000;

/// A part of a list.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Page<T> {
    /// In the order of their ids.
    pub(crate) items: Vec<T>,
    /// The `cursor` of the next page; null on the last one.
    pub(crate) next: Option<String>,
}

/// What part of a list to show.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct PageQuery {
    /// How many to list at once.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    pub(crate) limit: Option<u32>,
    /// The `next` of the page before.
    #[param(value_type = Option<schema::Cursor>)]
    pub(crate) cursor: Option<String>,
}

/// Where a page begins and how long it is.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// The text of the last id that was shown; all ids are in the order of their texts.
    after: Option<Vec<u8>>,
    limit: usize,
}

impl Place {
    pub(crate) fn new(limit: Option<u32>, cursor: Option<&str>) -> Result<Self, Problem> {
        let limit = limit.unwrap_or(DEFAULT);
        if !(1..=MOST).contains(&limit) {
            return Err(Problem::bad_request(format!(
                "`limit` is {limit}; it must be from 1 to {MOST}"
            )));
        }
        let after = match cursor {
            None => None,
            Some(cursor) => Some(decode(cursor).ok_or_else(|| {
                Problem::bad_request("`cursor` must be the `next` of an earlier page")
            })?),
        };
        Ok(Self {
            after,
            limit: limit as usize,
        })
    }

    /// Whether something with this id belongs to this page or to a later one.
    pub(crate) fn is_before(&self, id: &impl ToString) -> bool {
        let after = self.after.as_ref();
        after.is_none_or(|after| &**after < id.to_string().as_bytes())
    }

    /// The page, from what comes in the order of ids.
    pub(crate) fn fill<I: ToString, T>(&self, all: impl IntoIterator<Item = (I, T)>) -> Page<T> {
        let mut rest = all.into_iter().filter(|(id, _)| self.is_before(id));
        let mut items = Vec::new();
        let mut last = None;
        for (id, item) in rest.by_ref().take(self.limit) {
            items.push(item);
            last = Some(id);
        }
        let more = rest.next().is_some();
        let next = last.filter(|_| more).map(|id| encode(&id.to_string()));
        Page { items, next }
    }
}

fn encode(id: &str) -> String {
    id.bytes().map(|byte| format!("{byte:02x}")).collect()
}

fn decode(cursor: &str) -> Option<Vec<u8>> {
    let (pairs, []) = cursor.as_bytes().as_chunks::<2>() else {
        return None;
    };
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let byte = |[high, low]: &[u8; 2]| Some(digit(*high)? << 4 | digit(*low)?);
    let bytes: Vec<u8> = pairs.iter().map(byte).collect::<Option<_>>()?;
    (!bytes.is_empty()).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_follow_one_another() {
        let all = || (0..7_u32).map(|id| (id, id));
        let mut seen = Vec::new();
        let mut cursor = None;
        loop {
            let place = Place::new(Some(3), cursor.as_deref()).unwrap();
            let page = place.fill(all());
            assert!(page.items.len() <= 3);
            seen.extend(page.items);
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(seen, [0, 1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn what_is_no_cursor_is_refused() {
        for (limit, cursor) in [
            (Some(0), None),
            (Some(MOST + 1), None),
            (None, Some("")),
            (None, Some("?")),
            (None, Some("abc")),
            (None, Some("AB")),
            (None, Some("\u{fc}")),
        ] {
            assert!(Place::new(limit, cursor).is_err(), "{limit:?} {cursor:?}");
        }
    }
}
