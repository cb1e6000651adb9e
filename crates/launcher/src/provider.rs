//! A running provider: its driver, its pools, and what its cloud says about their labels.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use nodeyard_config as config;
use nodeyard_driver::backing::Backing;
use nodeyard_driver::{self as driver, Driver, ErrorClass, Machines, Owner};
use nodeyard_model::{ImageName, ImageUpload, UploadKey, UploadState};
use nodeyard_model::{Label, LauncherId, Limits, PoolName, ProviderName, Resources};
use nodeyard_plan::{LabelSetup, PoolKey, PoolSetup, ProviderSetup, Readiness, Supply, Zone};
use nodeyard_store::registry::{ImageId, ImageRecord, ImageShape};
use nodeyard_store::view::View;

use crate::backing::StoreBacking;
use crate::context::Context;
use crate::error::StartError;
use crate::launcher_id;
use crate::options::Options;
use crate::settings::{self, ImageSettings, LabelSettings, Settings};

/// Makes drivers. The binary implements it, because only the binary knows which drivers exist.
pub trait DriverFactory: Send + Sync {
    fn make(
        &self,
        provider: &config::Provider,
        around: Surroundings<'_>,
    ) -> Result<Arc<dyn Driver>, driver::Error>;
}

/// What a driver gets besides its configuration.
#[derive(Debug)]
pub struct Surroundings<'a> {
    /// Goes into the tags of everything that the driver creates.
    pub owner: Owner,
    ctx: &'a Context,
}

impl Surroundings<'_> {
    /// Returns the access to nodes of other providers, for a driver that builds on them. `identity` is the requestor's name.
    pub fn backing(&self, identity: &str) -> Arc<dyn Backing> {
        let provider = self.owner.provider.clone();
        Arc::new(StoreBacking::open(self.ctx.clone(), provider, identity))
    }
}

/// One generation of a provider: lasts until its configuration changes, or a broken label works again.
#[derive(Debug)]
pub(crate) struct Provider {
    pub(crate) name: ProviderName,
    pub(crate) config: config::Provider,
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) settings: Settings,
    pub(crate) owner: Owner,
    pub(crate) pools: BTreeMap<PoolName, Pool>,
    limits: Limits,
    /// The cluster within which its nodes reach each other.
    pub(crate) cluster: Option<Box<str>>,
}

#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) key: PoolKey,
    /// Identifies this pool in records; another one in every generation.
    pub(crate) id: LauncherId,
    labels: BTreeMap<Label, LabelSetup>,
    zones: Vec<Zone>,
}

impl Pool {
    /// Whether the label worked when the provider started.
    pub(crate) fn is_sound(&self, label: &Label) -> bool {
        let setup = self.labels.get(label);
        setup.is_some_and(|setup| !matches!(setup.readiness, Readiness::Broken { .. }))
    }

    pub(crate) fn labels(&self) -> impl Iterator<Item = &Label> {
        self.labels.keys()
    }
}

impl Provider {
    /// Creates the driver and asks the cloud for everything that decisions need.
    pub(crate) async fn start(
        config: config::Provider,
        factory: &dyn DriverFactory,
        ctx: &Context,
        options: &Options,
    ) -> Result<Self, StartError> {
        let name = ProviderName::new(config.name())?;
        let settings = Settings::of(&config)?;
        let owner = Owner {
            system: ctx.system.clone(),
            provider: name.clone(),
        };
        let around = Surroundings {
            owner: owner.clone(),
            ctx,
        };
        let driver = factory.make(&config, around)?;
        let (limits, cluster) = match driver.machines() {
            Some(machines) => (machines.limits().await?, machines.cluster().await),
            None => (Limits::unlimited(), None),
        };
        let mut pools = BTreeMap::new();
        for (pool, of) in &settings.pools {
            let key = PoolKey::new(name.clone(), pool.clone());
            let mut labels = BTreeMap::new();
            for (label, of) in &of.labels {
                labels.insert(label.clone(), setup(&*driver, &key, label, of).await?);
            }
            let zones = match driver.machines() {
                Some(machines) => machines.zones(pool).await?,
                None => Vec::new(),
            };
            let pool_run = Pool {
                key,
                id: launcher_id::generate(&options.fqdn, &name, pool),
                labels,
                zones: zones.iter().map(|zone| Zone::from(&**zone)).collect(),
            };
            pools.insert(pool.clone(), pool_run);
        }
        Ok(Self {
            name,
            config,
            driver,
            settings,
            owner,
            pools,
            limits,
            cluster,
        })
    }

    /// Returns None if its machines exist already.
    pub(crate) fn machines(&self) -> Option<&dyn Machines> {
        self.driver.machines()
    }

    pub(crate) fn label(&self, pool: &PoolName, label: &Label) -> Option<&LabelSettings> {
        self.settings.pools.get(pool)?.labels.get(label)
    }

    /// Returns the provider as the plan sees it, in place of `before`.
    ///
    /// What others use is known only after the first poll of the cloud. Requests do not wait for it: ready nodes can be
    /// handed out meanwhile, and a full cloud refuses by itself.
    pub(crate) fn setup(&self, before: Option<&ProviderSetup>) -> ProviderSetup {
        ProviderSetup {
            limits: self.counted(self.limits.clone()),
            foreign: before.map_or_else(Resources::default, |before| before.foreign.clone()),
            leaked: before.map_or_else(Resources::default, |before| before.leaked.clone()),
            max_launches: self.settings.max_launches,
            keeps_to_cluster: settings::keeps_to_cluster(&self.config.driver),
        }
    }

    /// Returns the limits that count: none if the provider ignores its quota.
    pub(crate) fn counted(&self, limits: Limits) -> Limits {
        if self.settings.ignore_quota {
            Limits::unlimited()
        } else {
            limits
        }
    }

    /// Returns the pools as the plan sees them. The dispatcher adds which managed images have uploads.
    pub(crate) fn pool_setups(&self) -> Vec<PoolSetup> {
        let pools = self.pools.iter().filter_map(|(name, pool)| {
            let settings = self.settings.pools.get(name)?;
            let labels = pool.labels.iter().map(|(label, setup)| {
                let mut setup = setup.clone();
                let image = settings.labels.get(label).map(|label| &label.image);
                if let Some(ImageSettings::Managed(image)) = image
                    && setup.readiness == Readiness::Ready
                {
                    setup.readiness = Readiness::ImageMissing {
                        image: image.as_str().into(),
                        reason: None,
                        pending: None,
                    };
                }
                (label.clone(), setup)
            });
            Some(PoolSetup {
                id: pool.id.clone(),
                key: pool.key.clone(),
                limits: settings.limits.clone(),
                labels: labels.collect(),
                zones: pool.zones.clone(),
            })
        });
        pools.collect()
    }
}

async fn setup(
    driver: &dyn Driver,
    key: &PoolKey,
    label: &Label,
    settings: &LabelSettings,
) -> Result<LabelSetup, StartError> {
    let supply = match driver.roster() {
        Some(roster) => {
            let places = roster.places().iter();
            let places =
                places.filter(|place| place.pool == key.pool && place.labels.contains(label));
            Supply::Fixed(places.count())
        }
        None => Supply::Launched,
    };
    let mut setup = LabelSetup {
        cost: Resources::default(),
        readiness: Readiness::Ready,
        supply,
        bound: false,
    };
    if let Some(machines) = driver.machines() {
        setup.bound = machines.is_bound_to_request(&key.pool, label);
        match sound_cost(machines, &key.pool, label).await? {
            Ok(cost) => {
                setup.cost = cost;
                setup.readiness = cloud_readiness(machines, &key.pool, label, settings).await?;
            }
            Err(broken) => setup.readiness = broken,
        }
    }
    Ok(setup)
}

/// Returns how much one machine of a label uses. The inner error is a [`Readiness::Broken`]: the cloud lacks what the
/// label asks for.
pub(crate) async fn sound_cost(
    machines: &dyn Machines,
    pool: &PoolName,
    label: &Label,
) -> Result<Result<Resources, Readiness>, driver::Error> {
    match machines.cost(pool, label).await {
        Err(error) if error.class() == ErrorClass::Permanent => Ok(Err(Readiness::Broken {
            reason: error.to_string().into(),
        })),
        cost => cost.map(Ok),
    }
}

/// Returns what the cloud says about the image of a label. It need not know images that we manage.
pub(crate) async fn cloud_readiness(
    machines: &dyn Machines,
    pool: &PoolName,
    label: &Label,
    settings: &LabelSettings,
) -> Result<Readiness, driver::Error> {
    let ImageSettings::Cloud(image) = &settings.image else {
        return Ok(Readiness::Ready);
    };
    Ok(match machines.readiness(pool, label).await? {
        driver::Readiness::Ready => Readiness::Ready,
        driver::Readiness::NotReady(reason) => Readiness::ImageMissing {
            image: (&**image).into(),
            reason: Some(reason.into()),
            pending: None,
        },
    })
}

/// Returns the uploads that machines of this provider can boot from, the newest first, one of each build.
pub(crate) fn ready_uploads(
    images: &View<ImageShape>,
    image: &ImageName,
    provider: &ProviderName,
) -> Vec<(UploadKey, ImageUpload)> {
    let mut ready: Vec<(UploadKey, ImageUpload)> = Vec::new();
    images.for_each(|item| {
        let (ImageId::Upload(key), ImageRecord::Upload(upload)) = (&item.id, &*item.value) else {
            return;
        };
        let fits = key.build.image == *image
            && key.provider == *provider
            && upload.state == UploadState::Ready;
        if fits {
            ready.push((key.clone(), upload.clone()));
        }
    });
    ready.sort_by_key(|(_, upload)| std::cmp::Reverse(upload.state_time));
    let mut builds = HashSet::new();
    ready.retain(|(key, _)| builds.insert(key.build.build));
    ready
}
