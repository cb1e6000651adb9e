//! Which form of a list a client prefers, by its `Accept` header.

use axum::http::{HeaderMap, header};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Format {
    Text,
    Json,
}

/// Text, which stands for `text/html` as well, unless JSON is liked better. None if neither will do.
pub(super) fn format(headers: &HeaderMap) -> Option<Format> {
    let ranges = headers
        .get_all(header::ACCEPT)
        .iter()
        .map(|value| value.to_str().ok())
        .collect::<Option<Vec<&str>>>()
        .and_then(|values| ranges(&values.join(",")));
    // Without a header, or with one that makes no sense, everything will do.
    let Some(ranges) = ranges.filter(|ranges| !ranges.is_empty()) else {
        return Some(Format::Text);
    };
    let html = quality(&ranges, "text", "html");
    let plain = quality(&ranges, "text", "plain");
    let json = quality(&ranges, "application", "json");
    let text = html.max(plain);
    match (text, json) {
        (0, 0) => None,
        _ if json > text => Some(Format::Json),
        _ => Some(Format::Text),
    }
}

/// A media range, such as `text/*;q=0.5`.
struct Range {
    kind: String,
    subkind: String,
    /// In thousandths.
    quality: u16,
}

fn ranges(accept: &str) -> Option<Vec<Range>> {
    let parts = accept.split(',').map(str::trim);
    parts.filter(|part| !part.is_empty()).map(range).collect()
}

/// Parameters other than `q` are of no account: we have one form of each.
fn range(text: &str) -> Option<Range> {
    let mut parts = text.split(';').map(str::trim);
    let (kind, subkind) = parts.next()?.split_once('/')?;
    let mut quality = 1000;
    for parameter in parts {
        if let Some((name, value)) = parameter.split_once('=')
            && name.trim().eq_ignore_ascii_case("q")
        {
            let value: f32 = value.trim().parse().ok()?;
            if !(0.0..=1.0).contains(&value) {
                return None;
            }
            quality = (value * 1000.0).round() as u16;
        }
    }
    Some(Range {
        kind: kind.to_ascii_lowercase(),
        subkind: subkind.to_ascii_lowercase(),
        quality,
    })
}

/// That of the most specific range that fits; zero is a refusal.
fn quality(ranges: &[Range], kind: &str, subkind: &str) -> u16 {
    let specificity = |range: &Range| match (&*range.kind, &*range.subkind) {
        ("*", "*") => Some(0),
        (k, "*") if k == kind => Some(1),
        (k, s) if k == kind && s == subkind => Some(2),
        _ => None,
    };
    let fitting = ranges
        .iter()
        .filter_map(|range| Some((specificity(range)?, range.quality)));
    fitting.max().map_or(0, |(_, quality)| quality)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_only_where_it_is_liked_best() {
        for (accept, expected) in [
            ("", Some(Format::Text)),
            ("*/*", Some(Format::Text)),
            ("application/json", Some(Format::Json)),
            ("Application/JSON; charset=utf-8", Some(Format::Json)),
            ("application/json, */*", Some(Format::Text)),
            ("application/json, */*;q=0.8", Some(Format::Json)),
            ("application/json;q=0.4, text/*;q=0.5", Some(Format::Text)),
            ("application/json, text/plain;q=0", Some(Format::Json)),
            (
                "text/html;q=0, text/*;q=0.1, application/json;q=0.05",
                Some(Format::Text),
            ),
            (
                "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
                Some(Format::Text),
            ),
            ("image/png", None),
            ("*/*;q=0", None),
            ("nonsense", Some(Format::Text)),
            ("application/json;q=seven", Some(Format::Text)),
            ("application/json;q=NaN", Some(Format::Text)),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, accept.parse().unwrap());
            assert_eq!(format(&headers), expected, "{accept:?}");
        }
        assert_eq!(format(&HeaderMap::new()), Some(Format::Text));
    }

    #[test]
    fn headers_are_taken_together() {
        let mut headers = HeaderMap::new();
        headers.append(header::ACCEPT, "text/*;q=0.3".parse().unwrap());
        headers.append(header::ACCEPT, "application/json".parse().unwrap());
        assert_eq!(format(&headers), Some(Format::Json));
    }
}
