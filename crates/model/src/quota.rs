//! Quota arithmetic: amounts of named resources and limits on them.
//!
//! An absent resource is zero in [`Resources`] and unlimited in [`Limits`]. All clouds have `cores`, `instances` and
//! `ram`; drivers may add others. Integers are added exactly; with a float operand the result is a float.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub, SubAssign};

use serde_json::value::RawValue;

use crate::json::{
    DecodeError, JsonField, ObjectKeys, ObjectWriter, finite_number, json_serde, write_float,
};

/// The name of a resource. The common names are static.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceName(Cow<'static, str>);

impl ResourceName {
    pub const CORES: Self = Self(Cow::Borrowed("cores"));
    pub const INSTANCES: Self = Self(Cow::Borrowed("instances"));
    /// In MiB.
    pub const RAM: Self = Self(Cow::Borrowed("ram"));

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for ResourceName {
    fn from(name: &str) -> Self {
        [Self::CORES, Self::INSTANCES, Self::RAM]
            .into_iter()
            .find(|known| known.as_str() == name)
            .unwrap_or_else(|| Self(Cow::Owned(name.to_owned())))
    }
}

impl fmt::Display for ResourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// An amount: an integer or a finite float. Compares by value.
#[derive(Clone, Copy)]
pub struct Quantity(Number);

#[derive(Clone, Copy)]
enum Number {
    Whole(i64),
    Float(f64),
}

impl Quantity {
    pub const ZERO: Self = Self(Number::Whole(0));

    /// Returns `None` if `number` is NaN or infinite.
    pub fn from_f64(number: f64) -> Option<Self> {
        number.is_finite().then_some(Self(Number::Float(number)))
    }

    pub fn as_f64(self) -> f64 {
        match self.0 {
            Number::Whole(number) => number as f64,
            Number::Float(number) => number,
        }
    }

    /// Applies an operation, exactly for integers. Saturates on overflow.
    fn combine(self, other: Self, whole: fn(i64, i64) -> i64, float: fn(f64, f64) -> f64) -> Self {
        Self(match (self.0, other.0) {
            (Number::Whole(a), Number::Whole(b)) => Number::Whole(whole(a, b)),
            _ => Number::Float(float(self.as_f64(), other.as_f64()).clamp(f64::MIN, f64::MAX)),
        })
    }
}

impl From<i64> for Quantity {
    fn from(number: i64) -> Self {
        Self(Number::Whole(number))
    }
}

impl Add for Quantity {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.combine(other, i64::saturating_add, f64::add)
    }
}

impl Sub for Quantity {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self.combine(other, i64::saturating_sub, f64::sub)
    }
}

/// Compares an integer with a float without rounding.
fn compare_i64_f64(whole: i64, float: f64) -> Ordering {
    const BEYOND_EVERY_I64: f64 = 1e20;
    if float.abs() > BEYOND_EVERY_I64 {
        return 0.0_f64.total_cmp(&float);
    }
    let floor = float.floor();
    i128::from(whole)
        .cmp(&(floor as i128))
        .then(if float > floor {
            Ordering::Less
        } else {
            Ordering::Equal
        })
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self.0, other.0) {
            (Number::Whole(a), Number::Whole(b)) => a.cmp(&b),
            (Number::Whole(a), Number::Float(b)) => compare_i64_f64(a, b),
            (Number::Float(a), Number::Whole(b)) => compare_i64_f64(b, a).reverse(),
            // Both are finite. Adding zero makes the two zeros equal.
            (Number::Float(a), Number::Float(b)) => (a + 0.0).total_cmp(&(b + 0.0)),
        }
    }
}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Quantity {}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Number::Whole(number) => fmt::Display::fmt(&number, f),
            Number::Float(number) => fmt::Display::fmt(&number, f),
        }
    }
}

impl fmt::Debug for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl JsonField for Quantity {
    fn read(value: &RawValue) -> Result<Self, DecodeError> {
        match value.get().parse::<i64>() {
            Ok(number) => Ok(number.into()),
            Err(_) => finite_number(value).map(|number| Self(Number::Float(number))),
        }
    }

    fn write(&self, out: &mut String) {
        match self.0 {
            Number::Whole(number) => number.write(out),
            Number::Float(number) => write_float(out, number),
        }
    }
}

/// A compact map of quantities, sorted by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct QuantityMap(Vec<(ResourceName, Quantity)>);

impl QuantityMap {
    fn find(&self, name: &ResourceName) -> Result<usize, usize> {
        self.0.binary_search_by(|(n, _)| n.cmp(name))
    }

    fn get(&self, name: &ResourceName) -> Option<Quantity> {
        let index = self.find(name).ok()?;
        self.0.get(index).map(|(_, quantity)| *quantity)
    }

    fn set(&mut self, name: ResourceName, quantity: Quantity) {
        match self.find(&name) {
            Ok(index) => {
                if let Some((_, old)) = self.0.get_mut(index) {
                    *old = quantity;
                }
            }
            Err(index) => self.0.insert(index, (name, quantity)),
        }
    }

    fn iter(&self) -> impl Iterator<Item = (&ResourceName, Quantity)> {
        self.0.iter().map(|(name, quantity)| (name, *quantity))
    }
}

impl JsonField for QuantityMap {
    fn read(value: &RawValue) -> Result<Self, DecodeError> {
        ObjectKeys::of(value)?
            .remaining(|name, value| Ok((ResourceName::from(name), Quantity::read(value)?)))
            .map(Self)
    }

    fn write(&self, out: &mut String) {
        let mut object = ObjectWriter::default();
        for (name, quantity) in &self.0 {
            object.entry(name.as_str(), quantity);
        }
        object.write(out);
    }
}

/// Amounts of resources, needed or in use. An absent resource is zero.
#[derive(Debug, Clone, Default)]
pub struct Resources(QuantityMap);

impl Resources {
    /// Creates amounts of the resources that all clouds have.
    pub fn new(
        cores: impl Into<Quantity>,
        instances: impl Into<Quantity>,
        ram: impl Into<Quantity>,
    ) -> Self {
        [
            (ResourceName::CORES, cores.into()),
            (ResourceName::INSTANCES, instances.into()),
            (ResourceName::RAM, ram.into()),
        ]
        .into_iter()
        .collect()
    }

    pub fn get(&self, name: &ResourceName) -> Quantity {
        self.0.get(name).unwrap_or(Quantity::ZERO)
    }

    pub fn set(&mut self, name: ResourceName, quantity: impl Into<Quantity>) {
        self.0.set(name, quantity.into());
    }

    pub fn iter(&self) -> impl Iterator<Item = (&ResourceName, Quantity)> {
        self.0.iter()
    }

    fn combine(&mut self, other: &Self, operation: fn(Quantity, Quantity) -> Quantity) {
        for (name, quantity) in other.iter() {
            self.set(name.clone(), operation(self.get(name), quantity));
        }
    }
}

/// Zero and absent are the same amount.
impl PartialEq for Resources {
    fn eq(&self, other: &Self) -> bool {
        let covers = |a: &Self, b: &Self| a.iter().all(|(name, q)| b.get(name) == q);
        covers(self, other) && covers(other, self)
    }
}

impl Eq for Resources {}

impl AddAssign<&Resources> for Resources {
    fn add_assign(&mut self, other: &Resources) {
        self.combine(other, Quantity::add);
    }
}

impl SubAssign<&Resources> for Resources {
    fn sub_assign(&mut self, other: &Resources) {
        self.combine(other, Quantity::sub);
    }
}

impl<'a> Sum<&'a Resources> for Resources {
    fn sum<I: Iterator<Item = &'a Resources>>(all: I) -> Self {
        all.fold(Self::default(), |mut sum, one| {
            sum += one;
            sum
        })
    }
}

/// Limits on resources: of a provider, a pool or a tenant. An absent resource is not limited.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits(QuantityMap);

impl Limits {
    pub fn unlimited() -> Self {
        Self::default()
    }

    /// Returns the limit, or `None` if unlimited.
    pub fn get(&self, name: &ResourceName) -> Option<Quantity> {
        self.0.get(name)
    }

    pub fn set(&mut self, name: ResourceName, limit: impl Into<Quantity>) {
        self.0.set(name, limit.into());
    }

    pub fn iter(&self) -> impl Iterator<Item = (&ResourceName, Quantity)> {
        self.0.iter()
    }

    /// Returns the limits minus `used`; negative where a limit is exceeded.
    pub fn remaining(&self, used: &Resources) -> Self {
        self.iter()
            .map(|(name, limit)| (name.clone(), limit - used.get(name)))
            .collect()
    }

    /// Returns whether no limit is exceeded. A negative limit does not even allow zero.
    pub fn allows(&self, amount: &Resources) -> bool {
        self.iter().all(|(name, limit)| amount.get(name) <= limit)
    }
}

macro_rules! impl_quantity_map {
    ($($name:ident),*) => {$(
        impl<Q: Into<Quantity>> FromIterator<(ResourceName, Q)> for $name {
            fn from_iter<I: IntoIterator<Item = (ResourceName, Q)>>(all: I) -> Self {
                let mut table = QuantityMap::default();
                for (name, quantity) in all {
                    table.set(name, quantity.into());
                }
                Self(table)
            }
        }

        impl JsonField for $name {
            fn read(value: &RawValue) -> Result<Self, DecodeError> {
                QuantityMap::read(value).map(Self)
            }

            fn write(&self, out: &mut String) {
                self.0.write(out);
            }
        }
    )*};
}

impl_quantity_map!(Resources, Limits);
json_serde!(Quantity, Resources, Limits);

#[cfg(test)]
mod tests;
