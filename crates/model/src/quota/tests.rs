use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn name() -> impl Strategy<Value = ResourceName> {
    prop_oneof![
        Just(ResourceName::CORES),
        Just(ResourceName::INSTANCES),
        Just(ResourceName::RAM),
        "[a-z]{1,3}".prop_map(|name| ResourceName::from(name.as_str())),
    ]
}

fn table<T: FromIterator<(ResourceName, i64)> + fmt::Debug>() -> impl Strategy<Value = T> {
    vec((name(), -1000_i64..1000), 0..6).prop_map(|all| all.into_iter().collect())
}

fn quantity() -> impl Strategy<Value = Quantity> {
    prop_oneof![
        any::<i64>().prop_map(Quantity::from),
        any::<f64>().prop_filter_map("finite", Quantity::from_f64),
        // Near the edge of what a float can tell apart.
        (-4_i64..4).prop_map(|n| Quantity::from((1 << 53) + n)),
        (-4_i32..4).prop_map(|n| Quantity(Number::Float(9_007_199_254_740_992.0 + f64::from(n)))),
    ]
}

fn plus(a: &Resources, b: &Resources) -> Resources {
    [a, b].into_iter().sum()
}

proptest! {
    #[test]
    fn subtraction_reverses_addition(a in table::<Resources>(), b in table::<Resources>()) {
        let mut sum = plus(&a, &b);
        prop_assert_eq!(&sum, &plus(&b, &a));
        sum -= &b;
        prop_assert_eq!(sum, a);
    }

    #[test]
    fn remaining_is_limit_minus_used(
        limits in table::<Limits>(), used in table::<Resources>(), need in table::<Resources>(),
    ) {
        prop_assert_eq!(
            limits.remaining(&used).allows(&need),
            limits.allows(&plus(&used, &need))
        );
    }

    #[test]
    fn limits_apply_to_each_resource(limits in table::<Limits>(), need in table::<Resources>()) {
        let kept = limits.iter().all(|(name, limit)| need.get(name) <= limit);
        prop_assert_eq!(limits.allows(&need), kept);
        prop_assert!(Limits::unlimited().allows(&need));
    }

    #[test]
    fn quantities_are_totally_ordered(a in quantity(), b in quantity(), c in quantity()) {
        prop_assert_eq!(a.cmp(&b), b.cmp(&a).reverse());
        if a <= b && b <= c {
            prop_assert!(a <= c);
        }
        if a == b {
            prop_assert_eq!(a.cmp(&c), b.cmp(&c));
        }
    }

    #[test]
    fn quantities_survive_json(a in quantity()) {
        let json = serde_json::to_string(&a).unwrap();
        let back: Quantity = serde_json::from_str(&json).unwrap();
        prop_assert_eq!(back, a);
        prop_assert_eq!(serde_json::to_string(&back).unwrap(), json);
    }

    #[test]
    fn arithmetic_stays_finite(a in quantity(), b in quantity()) {
        prop_assert!((a + b).as_f64().is_finite());
        prop_assert!((a - b).as_f64().is_finite());
    }
}

#[test]
fn integers_and_floats_compare_by_value() {
    let half = Quantity::from_f64(0.5).unwrap();
    assert_eq!(half + half, Quantity::from(1));
    assert!(Quantity::from(0) < half && half < Quantity::from(1));
    assert!(Quantity::from(-1) < Quantity::from_f64(-0.5).unwrap());
    assert_eq!(Quantity::from_f64(-0.0).unwrap(), Quantity::ZERO);
    assert!(Quantity::from(i64::MAX) < Quantity::from_f64(1e300).unwrap());
    assert!(Quantity::from(i64::MIN) > Quantity::from_f64(-1e300).unwrap());
}

#[test]
fn resources_keep_the_numbers_and_names_they_were_read_with() {
    for json in [
        r#"{"cores": 4, "instances": 1, "ram": 8192}"#,
        r#"{"cores": 0.5, "instances": 1, "nvidia.com/gpu": 2.0, "ram": 512}"#,
        "{}",
    ] {
        let resources: Resources = serde_json::from_str(json).unwrap();
        assert_eq!(serde_json::to_string(&resources).unwrap(), json);
    }
}

#[test]
fn a_pool_over_its_limit_allows_nothing() {
    let limits: Limits = [(ResourceName::RAM, 100)].into_iter().collect();
    let left = limits.remaining(&Resources::new(0, 0, 101));
    assert!(!left.allows(&Resources::new(1, 1, 0)));
    assert!(
        limits
            .remaining(&Resources::new(0, 0, 100))
            .allows(&Resources::new(1, 1, 0))
    );
}
