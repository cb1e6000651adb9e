//! Drains: launchers, providers, pools and labels that accept no new requests.
//!
//! A drain is a record in the store, so that all launchers follow it and restarts keep it. Every process with access to
//! the store can begin and end a drain and see its progress ([`DrainSnapshot`]).

mod remaining;

use std::fmt;

use bytes::Bytes;
use nodeyard_model::layout::DRAINS;
use nodeyard_model::{Label, PoolName, ProviderName};
use nodeyard_plan::PoolKey;
use nodeyard_store::view::{Kind, Shape};
use nodeyard_store::{CreateMode, Result, Stat, Tree, TreePath, ext};

pub use remaining::{DrainSnapshot, RemainingItem, RemainingWork, pool_key};

/// What a drain applies to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DrainScope {
    /// All pools of the launchers on this host.
    Launcher(Box<str>),
    Provider(ProviderName),
    Pool(PoolName, ProviderName),
    /// Requests with this label wait until the drain ends.
    Label(Label),
}

impl fmt::Display for DrainScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Launcher(host) => write!(f, "launcher {host}"),
            Self::Provider(name) => write!(f, "provider {name}"),
            Self::Pool(pool, provider) => write!(f, "pool {provider}/{pool}"),
            Self::Label(label) => write!(f, "label {label}"),
        }
    }
}

impl DrainScope {
    /// Returns whether the drain applies to this pool of a launcher on `hostname`. Drains of labels apply to requests.
    pub fn covers(&self, hostname: &str, key: &PoolKey) -> bool {
        match self {
            Self::Launcher(host) => **host == *hostname,
            Self::Provider(name) => *name == key.provider,
            Self::Pool(pool, provider) => *pool == key.pool && *provider == key.provider,
            Self::Label(_) => false,
        }
    }

    /// Returns the name of the drain's record: kind and names, separated by `:`.
    fn record_name(&self) -> String {
        match self {
            Self::Launcher(host) => format!("launcher:{}", escape(host)),
            Self::Provider(name) => format!("provider:{}", escape(name.as_str())),
            Self::Pool(pool, provider) => {
                format!(
                    "pool:{}:{}",
                    escape(provider.as_str()),
                    escape(pool.as_str())
                )
            }
            Self::Label(label) => format!("label:{}", escape(label.as_str())),
        }
    }

    fn parse(name: &str) -> Option<Self> {
        let parts: Vec<&str> = name.split(':').collect();
        match *parts {
            ["launcher", host] => Some(Self::Launcher(unescape(host)?.into())),
            ["provider", name] => Some(Self::Provider(ProviderName::new(unescape(name)?).ok()?)),
            ["pool", provider, pool] => Some(Self::Pool(
                PoolName::new(unescape(pool)?),
                ProviderName::new(unescape(provider)?).ok()?,
            )),
            ["label", label] => Some(Self::Label(Label::new(unescape(label)?))),
            _ => None,
        }
    }
}

/// Escapes characters that are not allowed in paths.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02x}"));
        }
    }
    escaped
}

fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
        } else {
            byte
        });
    }
    String::from_utf8(bytes).ok()
}

/// Parses the records of drains for a cached view.
#[derive(Debug, Clone, Copy)]
pub struct DrainShape;

impl Shape for DrainShape {
    type Id = DrainScope;
    type Value = ();

    fn kind(&self, path: &TreePath) -> Kind<DrainScope> {
        let name = path
            .as_str()
            .strip_prefix(DRAINS)
            .and_then(|rest| rest.strip_prefix('/'));
        match name.and_then(DrainScope::parse) {
            Some(id) => Kind::Record {
                id,
                branch: false,
                lock: false,
            },
            None => Kind::Nothing,
        }
    }

    fn parse(
        &self,
        _: &DrainScope,
        _: &[u8],
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(())
    }
}

/// Begins a drain. Returns false if it is already in force.
pub async fn begin(tree: &dyn Tree, scope: &DrainScope) -> Result<bool> {
    let dir = TreePath::new(DRAINS)?;
    ext::ensure_path(tree, &dir).await?;
    let path = dir.join(&scope.record_name())?;
    let data = Bytes::from(scope.to_string());
    match tree.create(&path, data, CreateMode::Persistent).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_node_exists() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Ends a drain. Returns false if there was none.
pub async fn end(tree: &dyn Tree, scope: &DrainScope) -> Result<bool> {
    let path = TreePath::new(DRAINS)?.join(&scope.record_name())?;
    ext::delete_opt(tree, &path).await
}

/// Lists the drains in force with their records' metadata.
pub async fn list(tree: &dyn Tree) -> Result<Vec<(DrainScope, Stat)>> {
    let records = match tree.list(&TreePath::new(DRAINS)?).await {
        Err(error) if error.is_no_node() => Vec::new(),
        records => records?,
    };
    let mut drains: Vec<_> = records
        .into_iter()
        .filter_map(|(name, record)| Some((DrainScope::parse(&name)?, record.stat)))
        .collect();
    drains.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(drains)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_round_trip_through_record_names() {
        for scope in [
            DrainScope::Launcher("np01".into()),
            DrainScope::Provider(ProviderName::new("cloud one").unwrap()),
            DrainScope::Pool("main/a:b%".into(), ProviderName::new("cloud").unwrap()),
            DrainScope::Label("ubuntu/ünïcode".into()),
        ] {
            let path = TreePath::new(DRAINS)
                .unwrap()
                .join(&scope.record_name())
                .unwrap();
            let Kind::Record { id, .. } = DrainShape.kind(&path) else {
                panic!("{path} is not a drain");
            };
            assert_eq!(id, scope);
        }
    }

    #[test]
    fn other_records_are_ignored() {
        for name in ["", "launcher", "pool:a", "label:%zz", "other:x"] {
            assert_eq!(DrainScope::parse(name), None, "{name}");
        }
    }
}
