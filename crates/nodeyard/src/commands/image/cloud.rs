//! The clouds that a command asks by itself, without a store: those of the configuration, or one of clouds.yaml.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use clap::Args;
use nodeyard_config::{Config, Mode, Source};
use nodeyard_driver::{Driver, Images, Owner, SystemId};
use nodeyard_model::ProviderName;
use serde_json::json;
use tokio::sync::watch;

use crate::commands::config::print_diagnostics;
use crate::commands::launcher::Tools;
use crate::context::Context;

/// Which cloud.
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

/// The provider in the configuration that is made up for a cloud of clouds.yaml. Names that begin with `fake` have a
/// meaning, so the cloud's own would not do.
const MADE_UP: &str = "of-clouds-yaml";

/// A cloud, and what people call it.
pub(super) struct Cloud {
    pub(super) name: String,
    pub(super) provider: ProviderName,
    pub(super) driver: Arc<dyn Driver>,
}

impl Cloud {
    /// `system` is whose things the command looks after.
    pub(super) fn of(
        args: &CloudArgs,
        context: &Context,
        system: SystemId,
    ) -> anyhow::Result<Self> {
        let (config, provider) = match (&args.provider, &args.cloud) {
            (Some(provider), _) => (configuration(context)?, provider.clone()),
            (None, Some(cloud)) => (of_clouds_yaml(cloud)?, ProviderName::new(MADE_UP)?),
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
        images.with_context(|| format!("{} takes no images", self.name))
    }
}

pub(super) fn configuration(context: &Context) -> anyhow::Result<Arc<Config>> {
    context.require()
}

pub(super) fn driver(
    config: &Arc<Config>,
    name: &ProviderName,
    system: SystemId,
) -> anyhow::Result<Arc<dyn Driver>> {
    let provider = config.providers.get(name.as_str());
    let provider =
        provider.with_context(|| format!("there is no provider {name} in the configuration"))?;
    let owner = Owner {
        system,
        provider: name.clone(),
    };
    let (_, in_force) = watch::channel(Arc::clone(config));
    let tools = Tools::new(in_force)?;
    let driver = tools.drivers.of_cloud(provider, owner);
    driver.with_context(|| format!("the driver of {name} does not start"))
}

/// A configuration of nothing but this cloud: everything else about it is where openstacksdk would look.
fn of_clouds_yaml(text: &str) -> anyhow::Result<Arc<Config>> {
    let (cloud, region) = match text.split_once('/') {
        Some((cloud, region)) => (cloud, Some(region)),
        None => (text, None),
    };
    let mut provider = BTreeMap::from([
        ("name", json!(MADE_UP)),
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
    let loaded = nodeyard_config::load(&Source::new(file.path(), None), Mode::Daemon);
    let Some(config) = loaded.config.clone() else {
        print_diagnostics(&loaded);
        bail!("{text:?} does not name a cloud");
    };
    Ok(Arc::new(config))
}
