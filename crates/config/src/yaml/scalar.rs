//! The types of plain scalars in YAML 1.1, with PyYAML's exact patterns.
//!
//! Some surprises: `1e3` is text (an exponent needs a sign and a point), `08` and `0o17` are text, `1:30` is 90. Dates
//! stay text, because no key expects one.

use super::ScalarType;

/// Returns the type of an unquoted, untagged scalar.
pub(super) fn resolve(text: &str) -> ScalarType {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return ScalarType::Null,
        "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return ScalarType::Bool(true);
        }
        "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return ScalarType::Bool(false);
        }
        _ => {}
    }
    if !text.starts_with(|first: char| first.is_ascii_digit() || matches!(first, '-' | '+' | '.')) {
        return ScalarType::Text;
    }
    int(text)
        .map(ScalarType::Int)
        .or_else(|| float(text).map(ScalarType::Float))
        .unwrap_or(ScalarType::Text)
}

pub(super) fn bool(text: &str) -> Option<bool> {
    match resolve(text) {
        ScalarType::Bool(value) => Some(value),
        _ => None,
    }
}

pub(super) fn int(text: &str) -> Option<i128> {
    let (negative, body) = sign(text);
    let magnitude = if let Some(digits) = body.strip_prefix("0b") {
        radix(digits, 2)?
    } else if let Some(digits) = body.strip_prefix("0x") {
        radix(digits, 16)?
    } else if body.contains(':') {
        whole_sexagesimal(body)?
    } else if body == "0" {
        0
    } else if let Some(digits) = body.strip_prefix('0') {
        if digits.bytes().all(|byte| byte == b'_') {
            0
        } else {
            radix(digits, 8)?
        }
    } else {
        radix(body, 10)?
    };
    Some(if negative {
        magnitude.saturating_neg()
    } else {
        magnitude
    })
}

pub(super) fn float(text: &str) -> Option<f64> {
    let (negative, body) = sign(text);
    let signed = |value: f64| if negative { -value } else { value };
    match body {
        ".inf" | ".Inf" | ".INF" => return Some(signed(f64::INFINITY)),
        ".nan" | ".NaN" | ".NAN" if body.len() == text.len() => return Some(f64::NAN),
        _ => {}
    }
    let (whole, rest) = body.split_once('.')?;
    if let Some((head, seconds)) = whole.rsplit_once(':') {
        let minutes = whole_sexagesimal_parts(head)?;
        let seconds = sixty(seconds)?;
        let fraction = decimal("0", rest, "")?;
        return Some(signed(minutes * 60.0 + seconds + fraction));
    }
    let (fraction, exponent) = match rest.find(['e', 'E']) {
        Some(at) => (rest.get(..at)?, rest.get(at + 1..)?),
        None => (rest, ""),
    };
    if rest.contains(['e', 'E']) && !exponent_ok(exponent) {
        return None;
    }
    if whole.is_empty() {
        // A leading point needs a digit and allows no sign.
        let signless = body.len() == text.len();
        if !signless || !fraction.starts_with(|first: char| first.is_ascii_digit()) {
            return None;
        }
    } else if !whole.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    decimal(whole, fraction, exponent).map(signed)
}

fn sign(text: &str) -> (bool, &str) {
    match text.strip_prefix('-') {
        Some(body) => (true, body),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    }
}

fn exponent_ok(exponent: &str) -> bool {
    exponent.strip_prefix(['-', '+']).is_some_and(|digits| {
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    })
}

fn decimal(whole: &str, fraction: &str, exponent: &str) -> Option<f64> {
    let digits = |part: &str| {
        part.bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'_')
    };
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    let mut text = format!("0{whole}.{fraction}0").replace('_', "");
    if !exponent.is_empty() {
        text.push('e');
        text.push_str(exponent);
    }
    text.parse().ok()
}

/// Parses digits of a base with `_` between them; saturates.
fn radix(digits: &str, base: u32) -> Option<i128> {
    let mut value: i128 = 0;
    let mut seen = false;
    // A decimal number starts with a digit; other bases may start with an underscore.
    if base == 10 && digits.starts_with('_') {
        return None;
    }
    for digit in digits.chars().filter(|digit| *digit != '_') {
        value = value
            .saturating_mul(i128::from(base))
            .saturating_add(i128::from(digit.to_digit(base)?));
        seen = true;
    }
    seen.then_some(value)
}

fn whole_sexagesimal(body: &str) -> Option<i128> {
    let (first, rest) = body.split_once(':')?;
    if first.starts_with('0') {
        return None;
    }
    let mut value = radix(first, 10)?;
    for part in rest.split(':') {
        value = value
            .saturating_mul(60)
            .saturating_add(sixty(part)? as i128);
    }
    Some(value)
}

fn whole_sexagesimal_parts(text: &str) -> Option<f64> {
    let mut parts = text.split(':');
    let mut value = radix(parts.next()?, 10)? as f64;
    for part in parts {
        value = value * 60.0 + sixty(part)?;
    }
    Some(value)
}

/// Parses one or two digits below sixty.
fn sixty(part: &str) -> Option<f64> {
    let fits = (1..=2).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
    part.parse::<u8>()
        .ok()
        .filter(|value| fits && *value < 60)
        .map(f64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_have_the_types_of_pyyaml() {
        let cases = [
            ("yes", ScalarType::Bool(true)),
            ("Off", ScalarType::Bool(false)),
            ("y", ScalarType::Text),
            ("yEs", ScalarType::Text),
            ("~", ScalarType::Null),
            ("", ScalarType::Null),
            ("nULL", ScalarType::Text),
            ("0", ScalarType::Int(0)),
            ("-0", ScalarType::Int(0)),
            ("010", ScalarType::Int(8)),
            ("08", ScalarType::Text),
            ("0o17", ScalarType::Text),
            ("0x_fF", ScalarType::Int(255)),
            ("0b101", ScalarType::Int(5)),
            ("0b", ScalarType::Text),
            ("1_000", ScalarType::Int(1000)),
            ("_1", ScalarType::Text),
            ("1:30", ScalarType::Int(90)),
            ("-1:30:00", ScalarType::Int(-5400)),
            ("1:60", ScalarType::Text),
            ("0:30", ScalarType::Text),
            ("+12", ScalarType::Int(12)),
            (
                "99999999999999999999",
                ScalarType::Int(99_999_999_999_999_999_999),
            ),
            ("1.5", ScalarType::Float(1.5)),
            ("1.", ScalarType::Float(1.0)),
            (".5", ScalarType::Float(0.5)),
            ("-.5", ScalarType::Text),
            (".", ScalarType::Text),
            ("1e3", ScalarType::Text),
            ("1.0e3", ScalarType::Text),
            ("1.0e+3", ScalarType::Float(1000.0)),
            ("1_0.5_0", ScalarType::Float(10.5)),
            ("1:30.5", ScalarType::Float(90.5)),
            (".inf", ScalarType::Float(f64::INFINITY)),
            ("-.INF", ScalarType::Float(f64::NEG_INFINITY)),
            ("2024-01-01", ScalarType::Text),
            ("1.2.3", ScalarType::Text),
            ("-", ScalarType::Text),
            ("+", ScalarType::Text),
            ("10.0.0.1", ScalarType::Text),
        ];
        for (text, expected) in cases {
            assert_eq!(resolve(text), expected, "{text:?}");
        }
        assert!(matches!(resolve(".nan"), ScalarType::Float(value) if value.is_nan()));
    }
}
