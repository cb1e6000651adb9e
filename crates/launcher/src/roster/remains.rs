//! The readable fields of a malformed record, which show the machine it is for.
//!
//! The machine may be in use, so its place must not get a second node. The fields are used for nothing else.

use std::collections::BTreeMap;

use nodeyard_driver::Place;
use nodeyard_model::ProviderName;
use serde_json::Value;
use serde_json::value::RawValue;

/// A record of a certain provider, as far as it can be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Remains {
    name: Option<String>,
    username: Option<String>,
    port: Option<u16>,
    slot: Option<i64>,
}

impl Remains {
    /// Reads the fields of a record. None if it is of another provider, or names none.
    pub(super) fn of(provider: &ProviderName, data: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(data);
        let fields: BTreeMap<String, &RawValue> = serde_json::from_str(&text).ok()?;
        // Each field is decoded independently of the others.
        let value = |key| serde_json::from_str::<Value>(fields.get(key)?.get()).ok();
        let string = |key| Some(value(key)?.as_str()?.to_owned());
        (string("provider")? == provider.as_str()).then(|| Self {
            name: string("hostname").or_else(|| string("interface_ip")),
            username: string("username"),
            port: value("connection_port").and_then(|port| u16::try_from(port.as_u64()?).ok()),
            slot: value("slot").and_then(|slot| slot.as_i64()),
        })
    }

    /// Returns whether the record may be that of this place.
    pub(super) fn fits(&self, place: &Place) -> bool {
        let machine = &place.machine;
        let is = |said: Option<&str>, there: &str| said.is_none_or(|said| said == there);
        is(self.name.as_deref(), &machine.name)
            && is(self.username.as_deref(), &machine.username)
            && self.port.is_none_or(|port| port == machine.port)
            && self.slot.is_none_or(|slot| slot == place.slot)
    }
}

#[cfg(test)]
mod tests {
    use nodeyard_driver::Identity;

    use super::*;

    fn place(name: &str, slot: i64) -> Place {
        Place {
            pool: "main".into(),
            machine: Identity {
                name: name.into(),
                username: "zuul".into(),
                port: 22,
            },
            slot,
            labels: Vec::new(),
            connection_type: "ssh".into(),
            shell_type: None,
            python_path: "auto".into(),
            host_keys: Vec::new(),
        }
    }

    #[test]
    fn what_is_legible_tells_which_places_it_may_be() {
        let lab = ProviderName::new("lab").unwrap();
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        let cases = [
            (
                r#""hostname": "one", "slot": 1, "username": "zuul", "connection_port": 22"#,
                [false, true, false],
            ),
            (r#""hostname": "one", "slot": "first""#, [true, true, false]),
            (
                r#""hostname": 7, "interface_ip": "two""#,
                [false, false, true],
            ),
            (r#""connection_port": 70000"#, [true, true, true]),
            (r#""connection_port": 23"#, [false, false, false]),
        ];
        for (fields, fits) in cases {
            for more in ["\"dreaming\"", &deep] {
                let record = format!(r#"{{"provider": "lab", {fields}, "state": {more}}}"#);
                let remains = Remains::of(&lab, record.as_bytes()).unwrap();
                let places = [place("one", 0), place("one", 1), place("two", 0)];
                assert_eq!(places.map(|place| remains.fits(&place)), fits, "{fields}");
            }
        }
        let damaged = b"{\"provider\": \"lab\", \"hostname\": \"one\", \"comment\": \"\xff\"}";
        assert!(Remains::of(&lab, damaged).unwrap().fits(&place("one", 0)));
        for record in [
            "",
            "null",
            "{\"provider\": \"lab\"",
            "{}",
            r#"{"provider": "other"}"#,
            r#"{"provider": 1}"#,
        ] {
            assert_eq!(Remains::of(&lab, record.as_bytes()), None, "{record}");
        }
    }
}
