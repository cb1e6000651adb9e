//! Contender names and their order.

/// Separates the random part of a name from its sequence number.
const SEPARATOR: &str = "__lock__";

const DIGITS: usize = 10;

/// Returns the name prefix of a new contender, to which the store appends the sequence number.
pub(super) fn new_prefix() -> String {
    format!("{}{SEPARATOR}", uuid::Uuid::new_v4().simple())
}

/// Returns the sort key of a contender's name, or `None` if it is not a contender.
///
/// Keys are compared as strings, as in kazoo. The counter is a signed 32-bit number, so after an overflow it has a
/// minus sign, which sorts before digits.
pub(super) fn order(name: &str) -> Option<&str> {
    let digits_at = name.len().checked_sub(DIGITS)?;
    let (head, digits) = name.split_at_checked(digits_at)?;
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    if head.ends_with(SEPARATOR) {
        return Some(digits);
    }
    let head = head.strip_suffix('-')?;
    head.ends_with(SEPARATOR)
        .then(|| name.get(digits_at - 1..))
        .flatten()
}

/// Returns the contender that holds the lock.
pub(super) fn first(names: &[String]) -> Option<&str> {
    let contenders = names
        .iter()
        .filter_map(|name| Some((order(name)?, name.as_str())));
    contenders.min().map(|(_, name)| name)
}

/// Returns the contender directly before `own`, which must be one of the names.
pub(super) fn predecessor<'a>(names: &'a [String], own: &str) -> Option<&'a str> {
    let own_order = own.rsplit_once(SEPARATOR).map_or(own, |(_, order)| order);
    names
        .iter()
        .filter_map(|name| Some((order(name)?, name.as_str())))
        .filter(|(order, _)| *order < own_order)
        .max_by_key(|(order, _)| *order)
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_has_32_hex_digits_and_the_mark() {
        let prefix = new_prefix();
        let uuid = prefix.strip_suffix("__lock__").unwrap();
        assert_eq!(uuid.len(), 32);
        assert!(
            uuid.bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        );
        assert_ne!(prefix, new_prefix());
    }

    #[test]
    fn only_ten_digits_after_the_mark_make_a_contender() {
        assert_eq!(order("ab__lock__0000000007"), Some("0000000007"));
        assert_eq!(order("__lock__0000000007"), Some("0000000007"));
        assert_eq!(order("ab__lock__-2147483648"), Some("-2147483648"));
        for other in [
            "",
            "lock",
            "0000000007",
            "ab__lock__",
            "ab__lock__007",
            "ab__lock__00000000007",
            "ab__lock__--000000007",
            "ab__rlock__0000000007",
            "ab__lock__000000000x",
            "ab__lock__0000000007x",
            "äöü__löck__äöüäöüäöü",
        ] {
            assert_eq!(order(other), None, "{other:?}");
        }
    }

    #[test]
    fn the_number_decides_and_not_the_random_part() {
        let names = [
            "c__lock__0000000001",
            "a__lock__0000000003",
            "b__lock__0000000002",
            "x",
        ]
        .map(str::to_owned);
        let before = |own| predecessor(&names, own);
        assert_eq!(before("a__lock__0000000003"), Some("b__lock__0000000002"));
        assert_eq!(before("b__lock__0000000002"), Some("c__lock__0000000001"));
        assert_eq!(before("c__lock__0000000001"), None);
    }
}
