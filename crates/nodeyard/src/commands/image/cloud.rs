//! The cloud that a command talks to without a store: a provider of the configuration, or an entry of clouds.yaml.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use clap::Args;
use nodeyard_config::{Config, ConfigSource, Mode};
use nodeyard_driver::{Driver, Images, Owner, SystemId};
use nodeyard_driver_common::DriverContext;
use nodeyard_model::ProviderName;
use serde_json::json;
use tokio::sync::watch;

use crate::commands::config::print_diagnostics;
use crate::commands::launcher::LauncherTools;
use crate::context::CommandContext;

/// Selects a cloud.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(super) struct CloudArgs {
    /// A provider of the configuration
    #[arg(long)]
    provider: Option<ProviderName>,
    /// An OpenStack cloud of clouds.yaml, as `cloud` or `cloud/region`; needs no configuration
    #[arg(long)]
    cloud: Option<String>,
}

/// The name of the provider that is generated for an entry of clouds.yaml. The entry's own name may start with `fake`,
/// which has a special meaning.
const GENERATED_PROVIDER: &str = "of-clouds-yaml";

/// A cloud with its name and driver.
pub(super) struct CommandCloud {
    pub(super) name: String,
    pub(super) provider: ProviderName,
    pub(super) driver: Arc<dyn Driver>,
}

impl CommandCloud {
    /// Opens a cloud. `system` identifies the resources that the command manages.
    pub(super) fn open(
        args: &CloudArgs,
        context: &CommandContext,
        system: SystemId,
    ) -> anyhow::Result<Self> {
        let (config, provider) = match (&args.provider, &args.cloud) {
            (Some(provider), _) => (configuration(context)?, provider.clone()),
            (None, Some(cloud)) => (
                config_for_cloud(cloud)?,
                ProviderName::new(GENERATED_PROVIDER)?,
            ),
            (None, None) => bail!("name a cloud with --provider or --cloud"),
        };
        let driver = driver(&config, &provider, system)?;
        let name = args.cloud.clone().unwrap_or_else(|| provider.to_string());
        Ok(Self {
            name,
            provider,
            driver,
        })
    }

    pub(super) fn images(&self) -> anyhow::Result<&dyn Images> {
        let images = self.driver.images();
        images.with_context(|| format!("{} does not support uploading images", self.name))
    }
}

pub(super) fn configuration(context: &CommandContext) -> anyhow::Result<Arc<Config>> {
    context.require()
}

pub(super) fn driver(
    config: &Arc<Config>,
    name: &ProviderName,
    system: SystemId,
) -> anyhow::Result<Arc<dyn Driver>> {
    let provider = config.providers.get(name.as_str());
    let provider = provider.with_context(|| format!("no provider {name} in the configuration"))?;
    let owner = Owner {
        system,
        provider: name.clone(),
    };
    let (_, in_force) = watch::channel(Arc::clone(config));
    let tools = LauncherTools::new(in_force)?;
    let context = DriverContext::new(owner);
    let driver = tools.drivers.make(provider, context);
    driver.with_context(|| format!("failed to start the driver of {name}"))
}

/// Creates a configuration with this cloud only; its settings come from where openstacksdk finds them.
fn config_for_cloud(text: &str) -> anyhow::Result<Arc<Config>> {
    let (cloud, region) = match text.split_once('/') {
        Some((cloud, region)) => (cloud, Some(region)),
        None => (text, None),
    };
    let mut provider = BTreeMap::from([
        ("name", json!(GENERATED_PROVIDER)),
        ("driver", json!("openstack")),
        ("cloud", json!(cloud)),
        ("rate", json!(0)),
    ]);
    if let Some(region) = region {
        provider.insert("region-name", json!(region));
    }
    let written = json!({"providers": [provider]});
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(written.to_string().as_bytes())?;
    let loaded = nodeyard_config::load(&ConfigSource::new(file.path(), None), Mode::Daemon);
    let Some(config) = loaded.config.clone() else {
        print_diagnostics(&loaded);
        bail!("invalid cloud name {text:?}");
    };
    Ok(Arc::new(config))
}
