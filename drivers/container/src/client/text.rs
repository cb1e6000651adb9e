//! Encoding of text in URLs and labels, and decoding of the output of containers.

use std::collections::BTreeMap;

/// Percent-encodes a part of a path or a query. References of images stay readable.
pub(super) fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' | b':' => {
                out.push(char::from(byte));
            }
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

pub(super) fn encode_query(pairs: &BTreeMap<String, String>) -> String {
    let pairs = pairs
        .iter()
        .map(|(key, value)| format!("{}={}", encode(key), encode(value)));
    pairs.collect::<Vec<_>>().join("&")
}

pub(super) fn decode_query(text: &str) -> BTreeMap<String, String> {
    text.split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(key, value)| (decode(key), decode(value)))
        .collect()
}

fn decode(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after
            .get(..2)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        let number = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match number {
            Some(number) if byte == b'%' => {
                out.push(number);
                rest = after.get(2..).unwrap_or_default();
            }
            _ => {
                out.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Removes the frames of an output stream: a byte for the stream, three zero bytes, four for the length.
pub(super) fn text_of_log(bytes: &[u8]) -> String {
    let mut text = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((&[_, 0, 0, 0, a, b, c, d], after)) = rest.split_first_chunk::<8>() {
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        let (frame, after) = after.split_at(length.min(after.len()));
        text.extend_from_slice(frame);
        rest = after;
    }
    text.extend_from_slice(rest);
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_removed_from_output() {
        let framed = b"\x01\0\0\0\0\0\0\x06hello\n\x02\0\0\0\0\0\0\x07wo";
        assert_eq!(text_of_log(framed), "hello\nwo");
        assert_eq!(text_of_log(b"plain\n"), "plain\n");
        assert_eq!(text_of_log(b""), "");
    }

    #[test]
    fn text_that_is_not_encoded_is_unchanged() {
        assert_eq!(decode("%zz%4"), "%zz%4");
    }
}
