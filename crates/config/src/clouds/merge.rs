//! Merges the settings of one cloud from several places.

use serde_json::{Value, json};

use super::{CloudsError, CloudsYaml, text};
use crate::values::Object;

/// The defaults of openstacksdk.
const DEFAULTS: &[(&str, &str)] = &[
    ("auth_type", "password"),
    ("interface", "public"),
    ("floating_ip_source", "neutron"),
    ("image_format", "qcow2"),
];

/// Keys of `auth` with their aliases, in order of increasing precedence.
const AUTH_NAMES: &[(&str, &[&str])] = &[
    ("domain_id", &["domain_id"]),
    ("domain_name", &["domain_name"]),
    ("user_domain_id", &["user_domain_id"]),
    ("user_domain_name", &["user_domain_name"]),
    ("project_domain_id", &["project_domain_id"]),
    ("project_domain_name", &["project_domain_name"]),
    ("token", &["auth_token", "token"]),
    ("project_id", &["tenant_id", "project_id"]),
    ("project_name", &["tenant_name", "project_name"]),
];

/// Returns the settings of a cloud in a region, with every key in its newest spelling.
pub(super) fn merged(
    clouds: &CloudsYaml,
    name: &str,
    region: Option<&str>,
) -> Result<Object, CloudsError> {
    let own = clouds.clouds.get(name).ok_or_else(|| {
        CloudsError::new(format!(
            "no cloud {name:?}; known clouds: {}",
            clouds.known()
        ))
    })?;
    let own = normalized(own.clone());
    // `cloud` is the old name of `profile`.
    let profile = own
        .get("profile")
        .or(own.get("cloud"))
        .and_then(Value::as_str);
    let profile = profile.and_then(|profile| clouds.profiles.get(profile));
    let profile = normalized(profile.cloned().unwrap_or_default());
    let (region, of_region) = choose_region(name, &own, &profile, region)?;

    let mut cloud: Object = DEFAULTS
        .iter()
        .map(|(key, value)| ((*key).to_owned(), Value::from(*value)))
        .collect();
    cloud.insert("auth".to_owned(), json!({}));
    for layer in [profile, own, normalized(of_region)] {
        lay_over(&mut cloud, layer);
    }
    cloud.remove("regions");
    cloud.insert("region_name".to_owned(), region.into());
    rename(&mut cloud);
    settle_auth(&mut cloud);
    settle_domains(&mut cloud);
    fill_in(&mut cloud);
    Ok(cloud)
}

/// Returns the region's name, empty if the cloud has none, and the settings of the region alone.
fn choose_region(
    cloud: &str,
    own: &Object,
    profile: &Object,
    wanted: Option<&str>,
) -> Result<(String, Object), CloudsError> {
    let wanted = wanted.unwrap_or_default();
    let quoted_list = [own, profile]
        .into_iter()
        .find_map(|layer| layer.get("regions").or(layer.get("region_name")));
    let regions = regions(quoted_list);
    let chosen = if wanted.is_empty() {
        regions.first()
    } else {
        regions.iter().find(|(name, _)| name == wanted)
    };
    match chosen {
        Some(region) => Ok(region.clone()),
        None if regions.is_empty() => Ok((wanted.to_owned(), Object::new())),
        None => {
            let names: Vec<_> = regions.iter().map(|(name, _)| name.as_str()).collect();
            Err(CloudsError::new(format!(
                "cloud {cloud:?} has no region {wanted:?}; known regions: {}",
                names.join(", ")
            )))
        }
    }
}

fn regions(quoted_list: Option<&Value>) -> Vec<(String, Object)> {
    let one = |value: &Value| match value {
        Value::Object(region) => {
            let values = region.get("values").and_then(Value::as_object);
            let name = region.get("name").map(text).unwrap_or_default();
            (name, values.cloned().unwrap_or_default())
        }
        other => (text(other), Object::new()),
    };
    match quoted_list {
        Some(Value::Array(regions)) => regions.iter().map(one).collect(),
        Some(Value::String(names)) if !names.is_empty() => {
            let names = names.split(',');
            names.map(|name| (name.to_owned(), Object::new())).collect()
        }
        _ => Vec::new(),
    }
}

/// Overlays a layer: its values win, except that `auth` is merged key by key.
fn lay_over(cloud: &mut Object, layer: Object) {
    for (key, value) in layer {
        match (key.as_str(), value) {
            (_, Value::Null) => {}
            ("auth", Value::Object(auth)) => {
                if let Some(Value::Object(below)) = cloud.get_mut("auth") {
                    below.extend(auth);
                }
            }
            (_, value) => {
                cloud.insert(key, value);
            }
        }
    }
}

/// Merges `above` into `below` recursively.
pub(super) fn merge(below: &mut Object, above: Object) {
    for (key, value) in above {
        match (below.get_mut(&key), value) {
            (Some(Value::Object(below)), Value::Object(above)) => merge(below, above),
            (_, value) => {
                below.insert(key, value);
            }
        }
    }
}

/// Replaces dashes in keys.
pub(super) fn normalized(object: Object) -> Object {
    let entries = object.into_iter().map(|(key, value)| {
        let value = match value {
            Value::Object(inner) => Value::Object(normalized(inner)),
            other => other,
        };
        (key.replace('-', "_"), value)
    });
    entries.collect()
}

fn rename(cloud: &mut Object) {
    let old: Vec<_> = cloud
        .keys()
        .filter(|key| key.ends_with("endpoint_type"))
        .cloned()
        .collect();
    for key in old {
        if let Some(value) = cloud.remove(&key) {
            cloud.insert(key.replace("endpoint_type", "interface"), value);
        }
    }
}

/// Moves credentials from outside of `auth`, as the environment sets them, into it; they win.
fn settle_auth(cloud: &mut Object) {
    let Some(Value::Object(mut auth)) = cloud.remove("auth") else {
        return;
    };
    for (target, names) in AUTH_NAMES {
        let mut value = None;
        for name in *names {
            value = auth.remove(*name).or(value);
            value = cloud.remove(*name).or(value);
        }
        if let Some(value) = value
            .map(|value| text(&value))
            .filter(|text| !text.is_empty())
        {
            auth.insert((*target).to_owned(), value.into());
        }
    }
    cloud.insert("auth".to_owned(), Value::Object(auth));
}

/// Uses a single domain for both the user and the project.
fn settle_domains(cloud: &mut Object) {
    let Some(Value::Object(auth)) = cloud.get_mut("auth") else {
        return;
    };
    if !auth.contains_key("project_id") && !auth.contains_key("project_name") {
        return;
    }
    for (domain, of_both) in [
        ("domain_id", ["user_domain_id", "project_domain_id"]),
        ("domain_name", ["user_domain_name", "project_domain_name"]),
    ] {
        if let Some(domain) = auth.remove(domain) {
            for key in of_both {
                auth.entry(key).or_insert_with(|| domain.clone());
            }
        }
    }
}

/// Substitutes other values in texts, such as `{region_name}`.
fn fill_in(cloud: &mut Object) {
    let known = cloud.clone();
    let fill = |value: &mut Value| {
        if let Value::String(template) = value {
            *template = filled(template, &known);
        }
    };
    for (key, value) in cloud.iter_mut() {
        match value {
            Value::Object(auth) if key == "auth" => {
                if let Some(url) = auth.get_mut("auth_url") {
                    fill(url);
                }
            }
            value if key != "password" => fill(value),
            _ => {}
        }
    }
}

fn filled(template: &str, known: &Object) -> String {
    let mut out = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        out.push_str(before);
        match after.split_once('}') {
            Some((name, after)) if known.get(name).is_some_and(Value::is_string) => {
                out.push_str(known.get(name).and_then(Value::as_str).unwrap_or_default());
                rest = after;
            }
            _ => {
                out.push('{');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}
