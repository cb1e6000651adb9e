//! Generates the JSON schema of the file, for editors.

use std::collections::BTreeMap;

use serde_json::{Map as JsonMap, Value as Json, json};

use crate::file::MainFile;
use crate::provider::{DRIVERS, ProviderCommon, absent_drivers};
use crate::section::{DefaultValue, Describe, KeyInfo, Section, SectionInfo};

/// Returns the JSON schema (draft 2020-12) of nodepool.yaml, generated from the declarations of its sections.
pub fn schema() -> Json {
    let mut definitions = BTreeMap::new();
    let Some(top) = MainFile::type_info().section.map(|describe| describe()) else {
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
    section: &SectionInfo,
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

/// Returns whether the schema requires a key. With aliases it cannot, because one of them may replace the key.
fn is_required(key: &KeyInfo) -> bool {
    matches!(key.fallback, DefaultValue::Required) && key.aliases.is_empty()
}

fn property(
    key: &KeyInfo,
    properties: &mut JsonMap<String, Json>,
    definitions: &mut BTreeMap<String, Json>,
) {
    if let Some(describe) = key.type_info.section {
        let inner = describe();
        if !definitions.contains_key(inner.name) {
            // Reserves the name first, because a section may contain itself.
            definitions.insert(inner.name.to_owned(), Json::Null);
            let described = object(&inner, definitions);
            definitions.insert(inner.name.to_owned(), Json::Object(described));
        }
    }
    let mut described = match &key.type_info.schema {
        Json::Object(schema) => schema.clone(),
        _ => JsonMap::new(),
    };
    described.insert("description".into(), json!(key.doc));
    if let DefaultValue::Value(value) = &key.fallback
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

/// Adds the providers, whose keys depend on the driver, which depends on the name.
fn providers(definitions: &mut BTreeMap<String, Json>) {
    let names: Vec<&str> = DRIVERS.iter().map(|driver| driver.name).collect();
    let mut choices = Vec::new();
    for driver in DRIVERS {
        let Some(section) = (driver.type_info)().section.map(|describe| describe()) else {
            continue;
        };
        let definition = format!("Provider-{}", driver.name);
        let mut keys = <ProviderCommon as Section<()>>::keys();
        keys.extend(section.keys);
        let merged = SectionInfo {
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

/// Returns the condition under which a provider has this driver.
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
