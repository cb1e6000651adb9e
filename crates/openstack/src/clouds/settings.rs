//! The settings of one cloud.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use nodeyard_config::clouds::{CloudConfig, is_true, text};
use reqwest::Url;
use secrecy::SecretString;
use serde_json::{Value, json};

use super::SettingsError;
use crate::service::Service;

/// One region of one cloud.
#[derive(Debug, Clone)]
pub struct CloudSettings {
    pub name: Box<str>,
    pub region: Option<Box<str>>,
    pub auth_url: Url,
    pub credentials: Credentials,
    pub tls: Tls,
    /// Which endpoint of a service to use, the preferred one first.
    pub interfaces: Vec<Box<str>>,
    /// Settings of single services.
    pub services: BTreeMap<Service, ServiceSettings>,
    pub networks: Vec<NetworkSettings>,
    /// The format of images that it accepts.
    pub image_format: Box<str>,
    /// Whether machines are reached at their private addresses.
    pub private: bool,
    pub force_ipv4: bool,
    pub use_external_network: bool,
    pub use_internal_network: bool,
    /// Whether it has floating IPs.
    pub floating_ips: bool,
    pub api_timeout: Option<Duration>,
}

impl CloudSettings {
    pub(crate) fn service(&self, service: Service) -> &ServiceSettings {
        const NONE: &ServiceSettings = &ServiceSettings {
            endpoint_override: None,
            region: None,
            interface: None,
        };
        self.services.get(&service).unwrap_or(NONE)
    }

    pub(crate) fn interfaces(&self, service: Service) -> &[Box<str>] {
        match &self.service(service).interface {
            Some(interface) => std::slice::from_ref(interface),
            None => &self.interfaces,
        }
    }

    pub(crate) fn region_of(&self, service: Service) -> Option<&str> {
        let own = self.service(service).region.as_deref();
        own.or(self.region.as_deref())
    }
}

/// Settings of one service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceSettings {
    pub endpoint_override: Option<Box<str>>,
    pub region: Option<Box<str>>,
    pub interface: Option<Box<str>>,
}

/// An entry of `networks`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkSettings {
    /// The name or the id.
    pub name: Box<str>,
    pub routes_ipv4_externally: bool,
    pub routes_ipv6_externally: bool,
    /// Whether floating IPs come from it.
    pub nat_source: bool,
    /// Whether floating IPs lead to it.
    pub nat_destination: bool,
    /// Whether machines are reached over it.
    pub default_interface: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    pub verify: bool,
    /// Certificates to trust instead of the system's.
    pub cacert: Option<PathBuf>,
    /// The client certificate and its key, which may be in the same file.
    pub identity: Option<(PathBuf, Option<PathBuf>)>,
}

/// Credentials, by `auth_type`.
#[derive(Debug, Clone)]
pub enum Credentials {
    Password {
        user: User,
        password: SecretString,
        scope: Scope,
    },
    ApplicationCredentialId {
        id: Box<str>,
        secret: SecretString,
    },
    ApplicationCredentialName {
        name: Box<str>,
        user: User,
        secret: SecretString,
    },
    Token {
        token: SecretString,
        scope: Scope,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum User {
    Id(Box<str>),
    Named { name: Box<str>, domain: Domain },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Domain {
    Id(Box<str>),
    Name(Box<str>),
}

impl Domain {
    pub(crate) fn to_json(&self) -> Value {
        match self {
            Self::Id(id) => json!({"id": id}),
            Self::Name(name) => json!({"name": name}),
        }
    }
}

/// The scope of a login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    None,
    ProjectId(Box<str>),
    Project { name: Box<str>, domain: Domain },
    Domain(Domain),
    System,
}

pub(super) fn read(cloud: &CloudConfig) -> Result<CloudSettings, SettingsError> {
    let reader = Reader(cloud);
    let auth_url = reader
        .auth("auth_url")
        .ok_or_else(|| match reader.word("profile") {
            Some(profile) => reader.wrong(&format!(
                "has no auth_url, and its profile {profile:?} is not in clouds-public.yaml with one"
            )),
            None => reader.wrong("has no auth_url"),
        })?;
    let auth_url = auth_url.parse().map_err(|cause| {
        reader
            .wrong("has an auth_url that is no address")
            .with_source(cause)
    })?;
    let expand = |path: String| match (path.strip_prefix("~/"), &cloud.home) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(path),
    };
    let path = |key: &str| reader.word(key).map(expand);
    Ok(CloudSettings {
        name: cloud.name.as_str().into(),
        region: reader.word("region_name").map(Into::into),
        auth_url,
        credentials: reader.credentials()?,
        tls: Tls {
            verify: reader.flag("verify") != Some(false) && reader.flag("insecure") != Some(true),
            cacert: path("cacert"),
            identity: path("cert").map(|cert| (cert, path("key"))),
        },
        interfaces: reader.interfaces("interface"),
        services: reader.services(),
        networks: reader.networks()?,
        image_format: cloud.image_format().unwrap_or_default().into(),
        private: reader.flag("private") == Some(true),
        force_ipv4: reader.force_ipv4(),
        use_external_network: reader.flag("use_external_network") != Some(false),
        use_internal_network: reader.flag("use_internal_network") != Some(false),
        floating_ips: reader
            .word("floating_ip_source")
            .is_some_and(|source| !source.eq_ignore_ascii_case("none")),
        api_timeout: reader
            .word("api_timeout")
            .and_then(|seconds| Duration::try_from_secs_f64(seconds.parse().ok()?).ok())
            .filter(|limit| !limit.is_zero()),
    })
}

struct Reader<'c>(&'c CloudConfig);

impl Reader<'_> {
    fn wrong(&self, what: &str) -> SettingsError {
        SettingsError::new(format!("cloud {:?} {what}", self.0.name))
    }

    fn get(&self, key: &str) -> Option<&Value> {
        self.0.values.get(key)
    }

    fn word(&self, key: &str) -> Option<String> {
        self.0.word(key)
    }

    fn flag(&self, key: &str) -> Option<bool> {
        let value = self.get(key)?;
        // As a text, only `true` has a meaning.
        match value {
            Value::Bool(value) => Some(*value),
            value if is_true(value) => Some(true),
            _ => None,
        }
    }

    /// Returns a key of `auth`, or else beside it, where the environment puts it.
    fn auth(&self, key: &str) -> Option<String> {
        let inside = self.get("auth").and_then(|auth| auth.get(key));
        let inside = inside.map(text).filter(|text| !text.is_empty());
        inside.or_else(|| self.word(key))
    }

    fn secret(&self, key: &str) -> Result<SecretString, SettingsError> {
        let secret = self
            .auth(key)
            .ok_or_else(|| self.wrong(&format!("has no {key}")))?;
        Ok(secret.into())
    }

    fn credentials(&self) -> Result<Credentials, SettingsError> {
        let kind = self.word("auth_type").unwrap_or_default();
        match kind.as_str() {
            "password" | "v3password" => Ok(Credentials::Password {
                user: self.user()?,
                password: self.secret("password")?,
                scope: self.scope()?,
            }),
            "v3applicationcredential" => {
                let secret = self.secret("application_credential_secret")?;
                if let Some(id) = self.auth("application_credential_id") {
                    return Ok(Credentials::ApplicationCredentialId {
                        id: id.into(),
                        secret,
                    });
                }
                let name = self.auth("application_credential_name").ok_or_else(|| {
                    self.wrong(
                        "has neither application_credential_id nor application_credential_name",
                    )
                })?;
                Ok(Credentials::ApplicationCredentialName {
                    name: name.into(),
                    user: self.user()?,
                    secret,
                })
            }
            "token" | "v3token" => Ok(Credentials::Token {
                token: self.secret("token")?,
                scope: self.scope()?,
            }),
            other => Err(self.wrong(&format!(
                "has auth_type {other:?}; known are password, v3applicationcredential and v3token"
            ))),
        }
    }

    fn user(&self) -> Result<User, SettingsError> {
        if let Some(id) = self.auth("user_id") {
            return Ok(User::Id(id.into()));
        }
        let name = self.auth("username").or_else(|| self.auth("user_name"));
        let name = name.ok_or_else(|| self.wrong("has neither username nor user_id"))?;
        let domain = self.domain("user_domain").ok_or_else(|| {
            self.wrong("has a username, but neither user_domain_name nor user_domain_id")
        })?;
        Ok(User::Named {
            name: name.into(),
            domain,
        })
    }

    fn domain(&self, prefix: &str) -> Option<Domain> {
        let of = |prefix: &str| {
            let id = self
                .auth(&format!("{prefix}_id"))
                .map(|id| Domain::Id(id.into()));
            id.or_else(|| Some(Domain::Name(self.auth(&format!("{prefix}_name"))?.into())))
        };
        of(prefix).or_else(|| of("default_domain"))
    }

    fn scope(&self) -> Result<Scope, SettingsError> {
        if let Some(id) = self.auth("project_id") {
            return Ok(Scope::ProjectId(id.into()));
        }
        if let Some(name) = self.auth("project_name") {
            let domain = self.domain("project_domain").ok_or_else(|| {
                self.wrong(
                    "has a project_name, but neither project_domain_name nor project_domain_id",
                )
            })?;
            return Ok(Scope::Project {
                name: name.into(),
                domain,
            });
        }
        if self.auth("system_scope").is_some() {
            return Ok(Scope::System);
        }
        Ok(self.domain("domain").map_or(Scope::None, Scope::Domain))
    }

    fn interfaces(&self, key: &str) -> Vec<Box<str>> {
        // Older catalogs have `publicURL`.
        let name = |value: &Value| text(value).trim_end_matches("URL").into();
        match self.get(key) {
            Some(Value::Array(names)) => names.iter().map(name).collect(),
            Some(value) => vec![name(value)],
            None => Vec::new(),
        }
    }

    fn services(&self) -> BTreeMap<Service, ServiceSettings> {
        let of = |service: Service| {
            let word = |key: &str| {
                let types = service.types().iter();
                let mut keys = types.map(|kind| format!("{}_{key}", kind.replace('-', "_")));
                keys.find_map(|key| self.word(&key))
            };
            ServiceSettings {
                endpoint_override: word("endpoint_override")
                    .or_else(|| word("endpoint"))
                    .map(Into::into),
                region: word("region_name").map(Into::into),
                interface: word("interface").map(|name| name.trim_end_matches("URL").into()),
            }
        };
        let all = Service::ALL.iter().map(|service| (*service, of(*service)));
        all.filter(|(_, settings)| *settings != ServiceSettings::default())
            .collect()
    }

    fn networks(&self) -> Result<Vec<NetworkSettings>, SettingsError> {
        let listed = self.get("networks").and_then(Value::as_array);
        let mut networks = Vec::new();
        for entry in listed.into_iter().flatten() {
            let flag = |key: &str| entry.get(key).map(is_true);
            let name = entry.get("name").map(text).filter(|name| !name.is_empty());
            let name = name.ok_or_else(|| self.wrong("has an entry of networks without a name"))?;
            let external = flag("routes_externally").unwrap_or_default();
            networks.push(NetworkSettings {
                name: name.into(),
                routes_ipv4_externally: flag("routes_ipv4_externally").unwrap_or(external),
                routes_ipv6_externally: flag("routes_ipv6_externally").unwrap_or(external),
                nat_source: flag("nat_source").unwrap_or_default(),
                nat_destination: flag("nat_destination").unwrap_or_default(),
                default_interface: flag("default_interface").unwrap_or_default(),
            });
        }
        // Two older keys.
        for (key, external) in [("external_network", true), ("internal_network", false)] {
            let Some(name) = self.word(key) else { continue };
            if listed.is_some() {
                let text = format!("has both networks and {key}: remove {key}");
                return Err(self.wrong(&text));
            }
            networks.push(NetworkSettings {
                name: name.into(),
                routes_ipv4_externally: external,
                routes_ipv6_externally: external,
                nat_source: false,
                nat_destination: !external,
                default_interface: external,
            });
        }
        let count =
            |is: fn(&NetworkSettings) -> bool| networks.iter().filter(|net| is(net)).count();
        for (key, count) in [
            ("nat_destination", count(|network| network.nat_destination)),
            (
                "default_interface",
                count(|network| network.default_interface),
            ),
        ] {
            if count > 1 {
                return Err(self.wrong(&format!("has more than one network that is {key}")));
            }
        }
        Ok(networks)
    }

    fn force_ipv4(&self) -> bool {
        let of = |key: &str| self.get(key).map(is_true);
        of("prefer_ipv6") == Some(false) || of("force_ipv4").unwrap_or(self.0.force_ipv4)
    }
}
