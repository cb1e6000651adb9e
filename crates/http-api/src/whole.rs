//! Whole numbers as JSON has them: `5`, and `5.0` as well.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};

/// For a field that must be there, or has a default.
pub(crate) fn whole<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<i128>,
{
    deserializer.deserialize_any(Whole(PhantomData))
}

/// For a field that may be null.
pub(crate) fn maybe_whole<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<i128>,
{
    struct Field<T>(T);

    impl<'de, T: TryFrom<i128>> Deserialize<'de> for Field<T> {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            whole(deserializer).map(Self)
        }
    }

    let field = Option::<Field<T>>::deserialize(deserializer)?;
    Ok(field.map(|Field(number)| number))
}

struct Whole<T>(PhantomData<T>);

impl<T: TryFrom<i128>> Whole<T> {
    fn within<E: Error>(&self, number: i128) -> Result<T, E> {
        T::try_from(number).map_err(|_| E::custom(format_args!("{number} is out of range")))
    }
}

impl<T: TryFrom<i128>> Visitor<'_> for Whole<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
        self.within(number.into())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
        self.within(number.into())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<T, E> {
        // Far beyond every range, and exact within it.
        const MOST: f64 = (1_u64 << 53) as f64;
        if number.fract() == 0.0 && number.abs() <= MOST {
            return self.within(number as i128);
        }
        Err(E::invalid_value(Unexpected::Float(number), &self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    struct Numbers {
        #[serde(deserialize_with = "whole")]
        one: u32,
        #[serde(default, deserialize_with = "maybe_whole")]
        two: Option<i64>,
    }

    #[test]
    fn a_whole_number_is_one_however_it_is_written() {
        for (text, one, two) in [
            (r#"{"one": 5}"#, 5, None),
            (r#"{"one": 5.0, "two": null}"#, 5, None),
            (r#"{"one": 5e2, "two": -7.0}"#, 500, Some(-7)),
        ] {
            let read: Numbers = serde_json::from_str(text).unwrap();
            assert_eq!((read.one, read.two), (one, two), "{text}");
        }
        for text in [
            "-1",
            "1.5",
            "1e300",
            "4294967296",
            "\"5\"",
            "true",
            "null",
            "[]",
        ] {
            let text = format!("{{\"one\": {text}}}");
            assert!(serde_json::from_str::<Numbers>(&text).is_err(), "{text}");
        }
    }
}
