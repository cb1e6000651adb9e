//! Masks secrets in logs.
//!
//! A build receives secrets as environment variables, which a shell may print while tracing. Logs are sent to clients, so
//! secrets of the configuration are masked before they are written.

use std::borrow::Cow;
use std::fmt;

const MASK: &[u8] = b"********";

/// Shorter values are not masked, because they occur in every text.
const MIN_SECRET_LENGTH: usize = 4;

/// Masks the secrets in a text that comes in pieces, also those that lie across two of them.
#[derive(Default)]
pub struct Redactor {
    secrets: Vec<Box<[u8]>>,
    /// The end of the input that may be the beginning of a secret.
    held: Vec<u8>,
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redactor({} secrets)", self.secrets.len())
    }
}

impl Redactor {
    pub fn new<'s>(secrets: impl IntoIterator<Item = &'s str>) -> Self {
        let mut secrets: Vec<Box<[u8]>> = secrets
            .into_iter()
            .filter(|secret| secret.len() >= MIN_SECRET_LENGTH)
            .map(|secret| secret.as_bytes().into())
            .collect();
        // One that contains another is looked for first.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        Self {
            secrets,
            held: Vec::new(),
        }
    }

    /// Masks the next piece of the input and returns what can be shown so far.
    pub(super) fn pass<'p>(&mut self, piece: &'p [u8]) -> Cow<'p, [u8]> {
        if self.secrets.is_empty() {
            return Cow::Borrowed(piece);
        }
        let mut text = std::mem::take(&mut self.held);
        text.extend_from_slice(piece);
        let (shown, held) = self.scan(&text, true);
        self.held = held.to_vec();
        Cow::Owned(shown)
    }

    /// Returns the held-back end of the input.
    pub(super) fn rest(&mut self) -> Vec<u8> {
        let held = std::mem::take(&mut self.held);
        self.scan(&held, false).0
    }

    /// Masks the secrets of a complete text.
    pub fn mask(&self, text: &str) -> String {
        let (shown, _) = self.scan(text.as_bytes(), false);
        String::from_utf8_lossy(&shown).into_owned()
    }

    /// Returns `text` with secrets masked, and its unprocessed end if that may be the beginning of a secret and more `follows`.
    fn scan<'t>(&self, text: &'t [u8], follows: bool) -> (Vec<u8>, &'t [u8]) {
        let mut shown = Vec::with_capacity(text.len());
        let mut rest = text;
        while let Some((first, others)) = rest.split_first() {
            let begins = |secret: &[u8]| secret.len() > rest.len() && secret.starts_with(rest);
            if follows && self.secrets.iter().any(|secret| begins(secret)) {
                break;
            }
            if let Some(secret) = self.secrets.iter().find(|secret| rest.starts_with(secret)) {
                shown.extend_from_slice(MASK);
                rest = rest.get(secret.len()..).unwrap_or_default();
            } else {
                shown.push(*first);
                rest = others;
            }
        }
        (shown, rest)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(redactor: &mut Redactor, pieces: &[&[u8]]) -> String {
        let mut all: Vec<u8> = pieces
            .iter()
            .flat_map(|piece| redactor.pass(piece).into_owned())
            .collect();
        all.extend(redactor.rest());
        String::from_utf8(all).unwrap()
    }

    #[test]
    fn secrets_across_pieces_are_masked() {
        let mut redactor = Redactor::new(["hunter2", "hunter2-long", "abc"]);
        let pieces: [&[u8]; 4] = [
            b"+ export P=hun",
            b"ter",
            b"2\nQ=hunter2-lo",
            b"ng abc hunt",
        ];
        assert_eq!(
            shown(&mut redactor, &pieces),
            "+ export P=********\nQ=******** abc hunt"
        );
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_no_secret_is_shown(
            text in "[ab]{0,40}", cuts in proptest::collection::vec(1usize..5, 0..20),
        ) {
            let mut redactor = Redactor::new(["abab", "bbbbb"]);
            let mut pieces = Vec::new();
            let mut rest = text.as_bytes();
            for cut in cuts {
                let (head, tail) = rest.split_at(cut.min(rest.len()));
                pieces.push(head);
                rest = tail;
            }
            pieces.push(rest);
            let shown = shown(&mut redactor, &pieces);
            prop_assert!(!shown.contains("abab") && !shown.contains("bbbbb"));
            if !text.contains("abab") && !text.contains("bbbbb") {
                prop_assert_eq!(shown, text);
            }
        }
    }
}
