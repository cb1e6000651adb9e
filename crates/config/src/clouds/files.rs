//! Finds and reads the files.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::merge::{merge, normalized};
use super::{CloudsError, CloudsYaml, is_true};
use crate::values::Object;
use crate::yaml::yaml_to_json;

/// The default name of the cloud that the environment defines.
const ENVIRONMENT: &str = "envvars";
/// Variables that select a cloud and do not define one.
const SELECTORS: &[&str] = &[
    "OS_CLOUD",
    "OS_REGION_NAME",
    "OS_CLIENT_CONFIG_FILE",
    "OS_CLIENT_SECURE_FILE",
    "OS_CLOUD_NAME",
];
/// Prefixes of variables of OpenStack's test programs.
const FOREIGN: &[&str] = &["OS_TEST", "OS_STD", "OS_LOG"];

/// The environment variables and working directory of a process.
#[derive(Clone, Default)]
pub struct ProcessEnvironment {
    pub variables: BTreeMap<String, String>,
    pub directory: PathBuf,
}

/// Hides the variables, some of which are passwords.
impl std::fmt::Debug for ProcessEnvironment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ProcessEnvironment")
            .field(&self.directory)
            .finish()
    }
}

impl ProcessEnvironment {
    /// Returns those of this process.
    pub fn current() -> Self {
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

    /// Reads the first file of this name, preceded by the one that a variable names.
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
                // Missing and inaccessible files are skipped.
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
    let wrong =
        |cause: String| CloudsError::new(format!("failed to parse {}: {cause}", path.display()));
    let text = std::str::from_utf8(bytes).map_err(|cause| wrong(cause.to_string()))?;
    match yaml_to_json(text).map_err(wrong)? {
        Value::Object(object) => Ok(object),
        Value::Null => Ok(Object::new()),
        _ => Err(wrong("expected a mapping with the key `clouds`".to_owned())),
    }
}

pub(super) fn find(around: &ProcessEnvironment) -> Result<CloudsYaml, CloudsError> {
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
            "cloud {environment:?} in {} has the same name as the cloud defined by the environment; rename it, or set OS_CLOUD_NAME",
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
    let boolean = |name: &str| around.variable(name).map(|text| is_true(&text.into()));
    let force_ipv4 = match boolean("OS_PREFER_IPV6") {
        Some(false) => Some(true),
        _ => boolean("OS_FORCE_IPV4"),
    };
    Ok(CloudsYaml {
        file,
        clouds,
        profiles: objects(profiles),
        client: normalized(client),
        default,
        force_ipv4,
        home: around.home(),
    })
}

/// Returns the cloud that the environment defines, if any.
fn described(around: &ProcessEnvironment) -> Option<Object> {
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
    // `cloud` would be read as the name of a profile.
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
