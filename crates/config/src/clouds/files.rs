//! Which files there are.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::merge::{merge, normalized};
use super::{Clouds, CloudsError, truth};
use crate::values::Object;
use crate::yaml::yaml_to_json;

/// The cloud that the environment describes is called so, if it does not say otherwise.
const ENVIRONMENT: &str = "envvars";
/// These choose among clouds and describe none.
const SELECTORS: &[&str] = &[
    "OS_CLOUD",
    "OS_REGION_NAME",
    "OS_CLIENT_CONFIG_FILE",
    "OS_CLIENT_SECURE_FILE",
    "OS_CLOUD_NAME",
];
/// Of the test programs of OpenStack.
const FOREIGN: &[&str] = &["OS_TEST", "OS_STD", "OS_LOG"];

/// Where a process is.
#[derive(Clone, Default)]
pub struct Surroundings {
    pub variables: BTreeMap<String, String>,
    pub directory: PathBuf,
}

/// Some variables are passwords.
impl std::fmt::Debug for Surroundings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Surroundings")
            .field(&self.directory)
            .finish()
    }
}

impl Surroundings {
    pub fn of_process() -> Self {
        let variables = std::env::vars_os()
            .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)));
        Self {
            variables: variables.collect(),
            directory: std::env::current_dir().unwrap_or_default(),
        }
    }

    fn variable(&self, name: &str) -> Option<&str> {
        self.variables
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    fn home(&self) -> Option<PathBuf> {
        self.variable("HOME").map(PathBuf::from)
    }

    fn directories(&self) -> Vec<PathBuf> {
        let xdg = self.variable("XDG_CONFIG_HOME").map(PathBuf::from);
        let home = self.home().map(|home| home.join(".config"));
        let real_home = self.variable("SNAP_REAL_HOME");
        let real_home = real_home.map(|home| Path::new(home).join(".config"));
        let site = self.variable("XDG_CONFIG_DIRS").unwrap_or("/etc/xdg");
        let below = |directory: PathBuf| directory.join("openstack");
        std::iter::once(self.directory.clone())
            .chain(xdg.or_else(|| home.clone()).map(below))
            .chain(real_home.or(home).map(below))
            .chain(site.split(':').map(|directory| below(directory.into())))
            .chain([PathBuf::from("/etc/openstack")])
            .collect()
    }

    /// The first file of this name, after the one that a variable names.
    fn file(
        &self,
        stem: &str,
        variable: Option<&str>,
    ) -> Result<Option<(PathBuf, Object)>, CloudsError> {
        let named = variable
            .and_then(|name| self.variable(name))
            .map(PathBuf::from);
        let usual = self.directories().into_iter().flat_map(|directory| {
            ["yaml", "yml", "json"].map(|ending| directory.join(format!("{stem}.{ending}")))
        });
        for path in named.into_iter().chain(usual) {
            match std::fs::read(&path) {
                Ok(bytes) => {
                    let object = read(&path, &bytes)?;
                    return Ok(Some((path, object)));
                }
                // What is not for us, or not there, is passed over.
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::NotFound
                            | ErrorKind::PermissionDenied
                            | ErrorKind::NotADirectory
                    ) => {}
                Err(error) => return Err(CloudsError::unreadable(&path, error)),
            }
        }
        Ok(None)
    }
}

fn read(path: &Path, bytes: &[u8]) -> Result<Object, CloudsError> {
    let wrong = |cause: String| CloudsError::new(format!("cannot use {}: {cause}", path.display()));
    let text = std::str::from_utf8(bytes).map_err(|cause| wrong(cause.to_string()))?;
    match yaml_to_json(text).map_err(wrong)? {
        Value::Object(object) => Ok(object),
        Value::Null => Ok(Object::new()),
        _ => Err(wrong(
            "it has to be a mapping with the key `clouds`".to_owned(),
        )),
    }
}

pub(super) fn find(around: &Surroundings) -> Result<Clouds, CloudsError> {
    let found = around.file("clouds", Some("OS_CLIENT_CONFIG_FILE"))?;
    let (file, mut all) =
        found.map_or((None, Object::new()), |(path, object)| (Some(path), object));
    if let Some((_, secure)) = around.file("secure", Some("OS_CLIENT_SECURE_FILE"))? {
        merge(&mut all, secure);
    }
    let public = around.file("clouds-public", None)?;
    let profiles = public.and_then(|(_, mut public)| public.remove("public-clouds"));
    let mut clouds = objects(all.remove("clouds"));
    let client = objects_of(all.remove("client"));
    let environment = around.variable("OS_CLOUD_NAME").unwrap_or(ENVIRONMENT);
    if clouds.contains_key(environment) {
        return Err(CloudsError::new(format!(
            "{} has a cloud {environment:?}, which is what the one of the environment is called: rename it, or set OS_CLOUD_NAME",
            file.as_deref()
                .unwrap_or(Path::new("secure.yaml"))
                .display()
        )));
    }
    let mut default = around.variable("OS_CLOUD").map(ToOwned::to_owned);
    if let Some(described) = described(around) {
        clouds.insert(environment.to_owned(), described);
        default.get_or_insert_with(|| environment.to_owned());
    }
    if default.is_none() && clouds.len() == 1 {
        default = clouds.keys().next().cloned();
    }
    let boolean = |name: &str| around.variable(name).map(|text| truth(&text.into()));
    let force_ipv4 = match boolean("OS_PREFER_IPV6") {
        Some(false) => Some(true),
        _ => boolean("OS_FORCE_IPV4"),
    };
    Ok(Clouds {
        file,
        clouds,
        profiles: objects(profiles),
        client: normalized(client),
        default,
        force_ipv4,
        home: around.home(),
    })
}

/// The cloud that the environment describes, if it describes any.
fn described(around: &Surroundings) -> Option<Object> {
    let is_ours = |name: &&String| {
        name.starts_with("OS_") && !FOREIGN.iter().any(|foreign| name.starts_with(foreign))
    };
    let names: Vec<_> = around.variables.keys().filter(is_ours).collect();
    if names.iter().all(|name| SELECTORS.contains(&name.as_str())) {
        return None;
    }
    let entries = names.into_iter().filter_map(|name| {
        let key = name.strip_prefix("OS_")?.to_lowercase();
        Some((key, Value::from(around.variables.get(name)?.as_str())))
    });
    // The cloud's own name is no profile.
    Some(entries.filter(|(key, _)| key != "cloud").collect())
}

fn objects(value: Option<Value>) -> BTreeMap<String, Object> {
    let entries = objects_of(value).into_iter();
    entries
        .map(|(name, value)| (name, objects_of(Some(value))))
        .collect()
}

fn objects_of(value: Option<Value>) -> Object {
    match value {
        Some(Value::Object(object)) => object,
        _ => Object::new(),
    }
}
