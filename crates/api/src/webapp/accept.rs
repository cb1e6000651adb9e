//! Content negotiation: text or JSON, by the `Accept` header.

use axum::http::{HeaderMap, header};

/// The format of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ListFormat {
    Text,
    Json,
}

/// Returns text, which also stands for `text/html`, unless the client prefers JSON. None if it accepts neither.
pub(super) fn format(headers: &HeaderMap) -> Option<ListFormat> {
    let ranges = headers
        .get_all(header::ACCEPT)
        .iter()
        .map(|value| value.to_str().ok())
        .collect::<Option<Vec<&str>>>()
        .and_then(|values| ranges(&values.join(",")));
    // Without a header, or with an invalid one, every format is acceptable.
    let Some(ranges) = ranges.filter(|ranges| !ranges.is_empty()) else {
        return Some(ListFormat::Text);
    };
    let html = quality(&ranges, "text", "html");
    let plain = quality(&ranges, "text", "plain");
    let json = quality(&ranges, "application", "json");
    let text = html.max(plain);
    match (text, json) {
        (0, 0) => None,
        _ if json > text => Some(ListFormat::Json),
        _ => Some(ListFormat::Text),
    }
}

/// A media range, such as `text/*;q=0.5`.
struct MediaRange {
    kind: String,
    subtype: String,
    /// In thousandths.
    quality: u16,
}

fn ranges(accept: &str) -> Option<Vec<MediaRange>> {
    let parts = accept.split(',').map(str::trim);
    parts.filter(|part| !part.is_empty()).map(range).collect()
}

/// Parses a range. Parameters other than `q` are ignored.
fn range(text: &str) -> Option<MediaRange> {
    let mut parts = text.split(';').map(str::trim);
    let (kind, subtype) = parts.next()?.split_once('/')?;
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
    Some(MediaRange {
        kind: kind.to_ascii_lowercase(),
        subtype: subtype.to_ascii_lowercase(),
        quality,
    })
}

/// Returns the quality of the most specific range that matches; zero means not acceptable.
fn quality(ranges: &[MediaRange], kind: &str, subtype: &str) -> u16 {
    let specificity = |range: &MediaRange| match (&*range.kind, &*range.subtype) {
        ("*", "*") => Some(0),
        (k, "*") if k == kind => Some(1),
        (k, s) if k == kind && s == subtype => Some(2),
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
    fn json_is_returned_only_if_preferred() {
        for (accept, expected) in [
            ("", Some(ListFormat::Text)),
            ("*/*", Some(ListFormat::Text)),
            ("application/json", Some(ListFormat::Json)),
            ("Application/JSON; charset=utf-8", Some(ListFormat::Json)),
            ("application/json, */*", Some(ListFormat::Text)),
            ("application/json, */*;q=0.8", Some(ListFormat::Json)),
            (
                "application/json;q=0.4, text/*;q=0.5",
                Some(ListFormat::Text),
            ),
            ("application/json, text/plain;q=0", Some(ListFormat::Json)),
            (
                "text/html;q=0, text/*;q=0.1, application/json;q=0.05",
                Some(ListFormat::Text),
            ),
            (
                "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
                Some(ListFormat::Text),
            ),
            ("image/png", None),
            ("*/*;q=0", None),
            ("nonsense", Some(ListFormat::Text)),
            ("application/json;q=seven", Some(ListFormat::Text)),
            ("application/json;q=NaN", Some(ListFormat::Text)),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, accept.parse().unwrap());
            assert_eq!(format(&headers), expected, "{accept:?}");
        }
        assert_eq!(format(&HeaderMap::new()), Some(ListFormat::Text));
    }

    #[test]
    fn several_accept_headers_are_combined() {
        let mut headers = HeaderMap::new();
        headers.append(header::ACCEPT, "text/*;q=0.3".parse().unwrap());
        headers.append(header::ACCEPT, "application/json".parse().unwrap());
        assert_eq!(format(&headers), Some(ListFormat::Json));
    }
}
