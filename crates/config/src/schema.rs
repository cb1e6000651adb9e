//! The JSON schema of the file, for editors.

use std::collections::BTreeMap;

use serde_json::{Map as JsonMap, Value as Json, json};

use crate::file::File;
use crate::provider::{DRIVERS, ProviderCommon, absent_drivers};
use crate::section::{Describe, Description, Fallback, Key, Section};

/// JSON schema (draft 2020-12) of nodepool.yaml, made from the declarations of its sections.
pub fn schema() -> Json {
    let mut definitions = BTreeMap::new();
    let Some(top) = File::shape().section.map(|describe| describe()) else {
        return Json::Null;
    };
    let mut root = object(&top, &mut definitions);
    providers(&mut definitions);
    root.insert(
        "$schema".into(),
        json!("https://json-schema.org/draft/2020-12/schema"),
    );
    root.insert("title".into(), json!("nodepool.yaml"));
    root.insert("$defs".into(), json!(definitions));
    Json::Object(root)
}

fn object(
    section: &Description,
    definitions: &mut BTreeMap<String, Json>,
) -> JsonMap<String, Json> {
    let mut properties = JsonMap::new();
    for key in &section.keys {
        property(key, &mut properties, definitions);
    }
    let required: Vec<&str> = section
        .keys
        .iter()
        .filter(|key| is_required(key))
        .map(|key| key.key)
        .collect();
    let mut object = JsonMap::new();
    object.insert("type".into(), json!(["object", "null"]));
    object.insert("description".into(), json!(section.doc));
    object.insert("properties".into(), Json::Object(properties));
    object.insert(
        "additionalProperties".into(),
        section.other_keys.clone().unwrap_or(json!(false)),
    );
    if !required.is_empty() {
        object.insert("required".into(), json!(required));
    }
    object
}

/// Where there are aliases, one of them may stand for the key.
fn is_required(key: &Key) -> bool {
    matches!(key.fallback, Fallback::Required) && key.aliases.is_empty()
}

fn property(
    key: &Key,
    properties: &mut JsonMap<String, Json>,
    definitions: &mut BTreeMap<String, Json>,
) {
    if let Some(describe) = key.shape.section {
        let inner = describe();
        if !definitions.contains_key(inner.name) {
            // Claims the name first, so that a section may contain itself.
            definitions.insert(inner.name.to_owned(), Json::Null);
            let described = object(&inner, definitions);
            definitions.insert(inner.name.to_owned(), Json::Object(described));
        }
    }
    let mut described = match &key.shape.schema {
        Json::Object(schema) => schema.clone(),
        _ => JsonMap::new(),
    };
    described.insert("description".into(), json!(key.doc));
    if let Fallback::Value(value) = &key.fallback
        && !value.is_null()
        && !value.is_object()
    {
        described.insert("default".into(), value.clone());
    }
    if key.deprecated {
        described.insert("deprecated".into(), json!(true));
    }
    for name in std::iter::once(&key.key).chain(key.aliases) {
        properties.insert((*name).to_owned(), Json::Object(described.clone()));
    }
}

/// A provider's keys depend on its driver, and its driver on its name.
fn providers(definitions: &mut BTreeMap<String, Json>) {
    let names: Vec<&str> = DRIVERS.iter().map(|driver| driver.name).collect();
    let mut choices = Vec::new();
    for driver in DRIVERS {
        let Some(section) = (driver.shape)().section.map(|describe| describe()) else {
            continue;
        };
        let definition = format!("Provider-{}", driver.name);
        let mut keys = <ProviderCommon as Section<()>>::keys();
        keys.extend(section.keys);
        let merged = Description {
            name: section.name,
            doc: section.doc,
            keys,
            other_keys: None,
        };
        let mut described = object(&merged, definitions);
        if let Some(Json::Object(properties)) = described.get_mut("properties") {
            properties.insert(
                "driver".into(),
                json!({"description": "Driver of this provider.", "enum": names}),
            );
        }
        definitions.insert(definition.clone(), Json::Object(described));
        choices.push(json!({
            "if": chosen(driver.name),
            "then": {"$ref": format!("#/$defs/{definition}")},
        }));
    }
    let provider = json!({
        "type": "object",
        "description": format!("A place that has nodes. {}", absent_drivers()),
        "required": ["name"],
        "properties": {"driver": {"enum": names}},
        "allOf": choices,
    });
    definitions.insert("Provider".into(), provider);
}

/// The condition under which a provider has this driver.
fn chosen(driver: &str) -> Json {
    let fake_name = json!({"required": ["name"], "properties": {"name": {"type": "string", "pattern": "^fake"}}});
    let named = json!({"required": ["driver"], "properties": {"driver": {"const": driver}}});
    match driver {
        "fake" => json!({"anyOf": [fake_name, named]}),
        "openstack" => {
            json!({"not": fake_name, "anyOf": [named, {"not": {"required": ["driver"]}}]})
        }
        _ => json!({"not": fake_name, "allOf": [named]}),
    }
}
