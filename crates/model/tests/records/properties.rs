//! Property tests: rewriting never loses data, and parsing never panics.
//!
//! `PROPTEST_CASES` raises the number of cases.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::canonical::Json;
use crate::{golden, rewrite};

const KINDS: [&str; 6] = ["request", "node", "build", "upload", "component", "pool"];

fn text() -> impl Strategy<Value = String> {
    any::<String>().prop_map(|text| serde_json::to_string(&text).unwrap())
}

/// Numbers as written by Python, including some larger than 64 bits.
fn number() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<i64>().prop_map(|n| n.to_string()),
        any::<u128>().prop_map(|n| n.to_string()),
        "-?[1-9][0-9]{0,60}",
        "-?[1-9][0-9]{0,5}\\.[0-9]{1,25}([eE][+-]?[0-9]{1,3})?",
    ]
}

fn json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        number(),
        text(),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(|items| format!("[{}]", items.join(", "))),
            vec((text(), inner), 0..4).prop_map(|entries| object(&entries)),
        ]
    })
}

fn object(entries: &[(String, String)]) -> String {
    let entries: Vec<_> = entries
        .iter()
        .map(|(key, value)| format!("{key}: {value}"))
        .collect();
    format!("{{{}}}", entries.join(", "))
}

/// The valid values of a key.
fn values(kind: &str, key: &str) -> BoxedStrategy<String> {
    let string_enum = |string_enum: &'static [&'static str]| {
        prop::sample::select(string_enum).prop_map(|word| format!("\"{word}\""))
    };
    let list = |item: BoxedStrategy<String>| {
        vec(item, 0..4).prop_map(|items| format!("[{}]", items.join(",")))
    };
    let float = || {
        any::<f64>()
            .prop_filter("finite", |n| n.is_finite())
            .prop_map(|n| format!("{n:?}"))
    };
    match key {
        "state_time" | "created_time" => float().boxed(),
        "relative_priority" | "slot" | "hold_expiration" | "model_api" | "priority" => {
            any::<i64>().prop_map(|n| n.to_string()).boxed()
        }
        "reuse" | "paused" => any::<bool>().prop_map(|b| b.to_string()).boxed(),
        "node_types" | "declined_by" | "host_keys" | "supported_labels" => {
            list(text().boxed()).boxed()
        }
        "type" => prop_oneof![text(), list(text().boxed())].boxed(),
        "nodes" => list("\"[0-9]{10}\"".boxed()).boxed(),
        "allocated_to" => prop_oneof!["\"[0-9]{3}-[0-9]{10}\"", text()].boxed(),
        "provider" | "provider_name" => "\"[a-z. -]{3,9}\"".boxed(),
        "connection_port" | "ssh_port" => prop_oneof![
            any::<u16>().prop_map(|n| n.to_string()),
            vec((text(), json()), 0..3).prop_map(|entries| object(&entries)),
        ]
        .boxed(),
        "resources" => vec(
            (
                text(),
                prop_oneof![any::<i32>().prop_map(|n| n.to_string()), float()],
            ),
            0..5,
        )
        .prop_map(|entries| object(&entries))
        .boxed(),
        "kind" => string_enum(&["launcher", "pool", "builder"]).boxed(),
        "requestor_data" | "attributes" | "node_properties" | "driver_data" | "user_data" => {
            json().boxed()
        }
        "external_id" if kind == "node" => json().boxed(),
        _ => text().boxed(),
    }
}

fn states(kind: &str) -> &'static [&'static str] {
    match kind {
        "request" => &["requested", "pending", "fulfilled", "failed"],
        "node" => &["init", "building", "ready", "in-use", "hold", "deleted"],
        "build" => &["building", "ready", "deleting", "failed"],
        "upload" => &["uploading", "ready", "deleting", "failed"],
        _ => &["initializing", "running", "paused", "stopped"],
    }
}

/// The keys of a kind, from a golden file.
fn keys(kind: &str) -> Vec<&'static str> {
    let case = match kind {
        "request" => "request-failed",
        "node" => "node-ready",
        "build" => "build-ready",
        "upload" => "upload-ready",
        "component" => "component-launcher",
        _ => "pool-running",
    };
    let all = golden::all();
    let golden = all
        .iter()
        .find(|golden| golden.name == format!("nodepool-{case}"))
        .unwrap();
    Json::record(&golden.data)
        .into_keys()
        .map(|key| &*key.leak())
        .collect()
}

fn is_required(key: &str) -> bool {
    matches!(
        key,
        "state" | "state_time" | "hostname" | "kind" | "id" | "name" | "provider_name"
    )
}

/// A valid record: any values, some keys absent, some unknown keys.
fn record(kind: &'static str) -> impl Strategy<Value = (String, Vec<(String, String)>)> {
    let known: Vec<_> = keys(kind)
        .into_iter()
        .map(|key| {
            let value = match key {
                "state" => prop::sample::select(states(kind))
                    .prop_map(|state| format!("\"{state}\""))
                    .boxed(),
                _ => values(kind, key),
            };
            let maybe = if is_required(key) {
                value.prop_map(Some).boxed()
            } else {
                option::weighted(0.8, value).boxed()
            };
            maybe.prop_map(move |value| value.map(|value| (format!("\"{key}\""), value)))
        })
        .collect();
    let unknown = vec(
        ("x-[a-zü]{1,8}".prop_map(|key| format!("\"{key}\"")), json()),
        0..4,
    );
    (known, unknown).prop_map(|(known, unknown)| {
        let entries: Vec<_> = known.into_iter().flatten().chain(unknown.clone()).collect();
        (object(&entries), unknown)
    })
}

fn any_record() -> impl Strategy<Value = (&'static str, String, Vec<(String, String)>)> {
    let kinds: Vec<_> = KINDS
        .into_iter()
        .map(|kind| record(kind).prop_map(move |(json, unknown)| (kind, json, unknown)))
        .map(Strategy::boxed)
        .collect();
    prop::strategy::Union::new(kinds)
}

proptest! {
    #[test]
    fn records_and_unknown_keys_are_preserved((kind, json, unknown) in any_record()) {
        let written = Json::record(&rewrite(kind, json.as_bytes()).unwrap());
        let before = Json::record(json.as_bytes());
        for (key, _) in unknown {
            let key: String = serde_json::from_str(&key).unwrap();
            prop_assert_eq!(&written[&key], &before[&key]);
        }
        for opaque in ["requestor_data", "driver_data", "user_data", "attributes"] {
            if let Some(value) = before.get(opaque) {
                prop_assert_eq!(&written[opaque], value);
            }
        }
    }

    #[test]
    fn any_json_is_parsed_or_rejected(
        json in json(),
        entries in vec((prop::sample::select(keys("node")), json()), 0..6),
        kind in prop::sample::select(&KINDS[..]),
    ) {
        let _any = rewrite(kind, json.as_bytes());
        let entries: Vec<_> = entries
            .into_iter()
            .map(|(key, value)| (format!("\"{key}\""), value))
            .collect();
        let _any = rewrite(kind, object(&entries).as_bytes());
        let valid = [
            ("\"state\"".to_owned(), format!("\"{}\"", states(kind)[0])),
            ("\"state_time\"".to_owned(), "1.5".to_owned()),
        ];
        let _any = rewrite(kind, object(&[&entries[..], &valid[..]].concat()).as_bytes());
    }

    #[test]
    fn any_bytes_are_parsed_or_rejected(
        bytes in vec(any::<u8>(), 0..64),
        kind in prop::sample::select(&KINDS[..]),
    ) {
        let _any = rewrite(kind, &bytes);
    }

    #[test]
    fn damaged_records_are_parsed_or_rejected(
        file in any::<prop::sample::Index>(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut all = golden::all();
        let chosen = file.index(all.len());
        let golden = &mut all[chosen];
        for (at, byte) in damage {
            let at = at.index(golden.data.len());
            golden.data[at] = byte;
        }
        let _any = rewrite(golden.kind(), &golden.data);
        let _any = rewrite(golden.kind(), &golden.data[..cut.index(golden.data.len())]);
    }
}
