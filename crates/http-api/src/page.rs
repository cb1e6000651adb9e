//! Pagination of lists.
//!
//! Lists are sorted by id. A cursor is the last id of a page, so pages neither repeat nor skip objects while others are
//! created and deleted. Clients must treat cursors as opaque.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::problem::ApiProblem;
use crate::schema;

const DEFAULT: u32 = 100;
pub(crate) const MAX_LIMIT: u32 = 1000;

/// A page of a list.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Page)]
pub(crate) struct ListPage<T> {
    /// Sorted by id.
    pub(crate) items: Vec<T>,
    /// The `cursor` of the next page; null on the last one.
    pub(crate) next: Option<String>,
}

/// Which page to return.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct PageQuery {
    /// The maximum number of items.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    pub(crate) limit: Option<u32>,
    /// The `next` of the previous page.
    #[param(value_type = Option<schema::CursorSchema>)]
    pub(crate) cursor: Option<String>,
}

/// Where a page starts and how long it is.
#[derive(Debug, Clone)]
pub(crate) struct Pagination {
    /// The text of the last id of the previous page; ids are sorted by their texts.
    after: Option<Vec<u8>>,
    limit: usize,
}

impl Pagination {
    pub(crate) fn new(limit: Option<u32>, cursor: Option<&str>) -> Result<Self, ApiProblem> {
        let limit = limit.unwrap_or(DEFAULT);
        if !(1..=MAX_LIMIT).contains(&limit) {
            return Err(ApiProblem::bad_request(format!(
                "`limit` is {limit}; it must be from 1 to {MAX_LIMIT}"
            )));
        }
        let after = match cursor {
            None => None,
            Some(cursor) => Some(decode(cursor).ok_or_else(|| {
                ApiProblem::bad_request("`cursor` must be the `next` of an earlier page")
            })?),
        };
        Ok(Self {
            after,
            limit: limit as usize,
        })
    }

    /// Returns whether an object with this id belongs to this page or to a later one.
    pub(crate) fn starts_before(&self, id: &impl ToString) -> bool {
        let after = self.after.as_ref();
        after.is_none_or(|after| &**after < id.to_string().as_bytes())
    }

    /// Returns the page from objects sorted by id.
    pub(crate) fn page<I: ToString, T>(
        &self,
        all: impl IntoIterator<Item = (I, T)>,
    ) -> ListPage<T> {
        let mut rest = all.into_iter().filter(|(id, _)| self.starts_before(id));
        let mut items = Vec::new();
        let mut last = None;
        for (id, item) in rest.by_ref().take(self.limit) {
            items.push(item);
            last = Some(id);
        }
        let more = rest.next().is_some();
        let next = last.filter(|_| more).map(|id| encode(&id.to_string()));
        ListPage { items, next }
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
    fn pages_cover_the_whole_list() {
        let all = || (0..7_u32).map(|id| (id, id));
        let mut seen = Vec::new();
        let mut cursor = None;
        loop {
            let pagination = Pagination::new(Some(3), cursor.as_deref()).unwrap();
            let page = pagination.page(all());
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
    fn invalid_cursors_are_rejected() {
        for (limit, cursor) in [
            (Some(0), None),
            (Some(MAX_LIMIT + 1), None),
            (None, Some("")),
            (None, Some("?")),
            (None, Some("abc")),
            (None, Some("AB")),
            (None, Some("\u{fc}")),
        ] {
            assert!(
                Pagination::new(limit, cursor).is_err(),
                "{limit:?} {cursor:?}"
            );
        }
    }
}
