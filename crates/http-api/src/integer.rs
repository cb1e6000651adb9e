//! Deserialisation of integers that JSON may contain as `5` or as `5.0`.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};

/// Deserialises an integer.
pub(crate) fn integer<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<i128>,
{
    deserializer.deserialize_any(IntegerVisitor(PhantomData))
}

/// Deserialises an integer that may be null.
pub(crate) fn optional_integer<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<i128>,
{
    struct ValidInteger<T>(T);

    impl<'de, T: TryFrom<i128>> Deserialize<'de> for ValidInteger<T> {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            integer(deserializer).map(Self)
        }
    }

    let field = Option::<ValidInteger<T>>::deserialize(deserializer)?;
    Ok(field.map(|ValidInteger(number)| number))
}

struct IntegerVisitor<T>(PhantomData<T>);

impl<T: TryFrom<i128>> IntegerVisitor<T> {
    fn within<E: Error>(&self, number: i128) -> Result<T, E> {
        T::try_from(number).map_err(|_| E::custom(format_args!("{number} is out of range")))
    }
}

impl<T: TryFrom<i128>> Visitor<'_> for IntegerVisitor<T> {
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
        // Floats are exact integers up to this.
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
        #[serde(deserialize_with = "integer")]
        one: u32,
        #[serde(default, deserialize_with = "optional_integer")]
        two: Option<i64>,
    }

    #[test]
    fn integers_may_be_written_as_floats() {
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
