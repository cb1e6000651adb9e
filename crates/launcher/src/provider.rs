//! A provider that runs: its driver, its pools, and what its cloud says about them.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use nodeyard_config as config;
use nodeyard_driver::backing::Backing;
use nodeyard_driver::{self as driver, Driver, ErrorClass, Owner};
use nodeyard_model::{Clock, ImageName, ImageUpload, UploadKey, UploadState};
use nodeyard_model::{Label, LauncherId, Limits, PoolName, ProviderName, Resources};
use nodeyard_plan::{LabelSetup, PoolKey, PoolSetup, ProviderSetup, Readiness, Supply, Zone};
use nodeyard_store::registry::{ImageId, ImageRecord, ImageShape};
use nodeyard_store::view::View;
use uuid::Uuid;

use crate::backing::StoreBacking;
use crate::context::Context;
use crate::error::StartError;
use crate::options::Options;
use crate::settings::{self, ImageSettings, LabelSettings, Settings};

/// Makes drivers. The binary implements it: only there is known which drivers exist.
pub trait DriverFactory: Send + Sync {
    fn make(
        &self,
        provider: &config::Provider,
        around: Surroundings<'_>,
    ) -> Result<Arc<dyn Driver>, driver::Error>;
}

/// What a driver can be given besides its configuration.
#[derive(Debug)]
pub struct Surroundings<'a> {
    /// What everything that the driver makes has to carry.
    pub owner: Owner,
    ctx: &'a Context,
}

impl Surroundings<'_> {
    /// For a driver that builds on nodes of other providers: what it asks for and holds under a name.
    pub fn backing(&self, identity: &str) -> Arc<dyn Backing> {
        let provider = self.owner.provider.clone();
        Arc::new(StoreBacking::open(self.ctx.clone(), provider, identity))
    }
}

/// One generation of a provider: it lasts until its configuration changes, or a label that was broken is not any more.
#[derive(Debug)]
pub(crate) struct Provider {
    pub(crate) name: ProviderName,
    pub(crate) config: config::Provider,
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) settings: Settings,
    pub(crate) owner: Owner,
    pub(crate) pools: BTreeMap<PoolName, Pool>,
    limits: Limits,
    /// Where its nodes reach each other.
    pub(crate) cluster: Option<Box<str>>,
}

#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) key: PoolKey,
    /// Signs what this pool declines and launches; another one in every generation.
    pub(crate) id: LauncherId,
    labels: BTreeMap<Label, LabelSetup>,
    zones: Vec<Zone>,
}

impl Pool {
    /// Whether the cloud knew how to make machines of this label when the provider started.
    pub(crate) fn is_sound(&self, label: &Label) -> bool {
        let setup = self.labels.get(label);
        setup.is_some_and(|setup| !matches!(setup.readiness, Readiness::Broken { .. }))
    }

    pub(crate) fn labels(&self) -> impl Iterator<Item = &Label> {
        self.labels.keys()
    }
}

impl Provider {
    /// Makes the driver and asks the cloud for everything that decisions need.
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
        let limits = driver.limits().await?;
        let cluster = driver.cluster().await;
        let mut pools = BTreeMap::new();
        for (pool, of) in &settings.pools {
            let key = PoolKey::new(name.clone(), pool.clone());
            let mut labels = BTreeMap::new();
            for (label, of) in &of.labels {
                labels.insert(
                    label.clone(),
                    setup(&*driver, &key, label, of, &ctx.clock).await?,
                );
            }
            let zones = driver.zones(pool).await?;
            let id = format!(
                "{}-PoolWorker.{name}-{pool}-{}",
                options.fqdn,
                Uuid::new_v4().simple()
            );
            let pool_run = Pool {
                key,
                id: LauncherId::new(id),
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

    pub(crate) fn launches(&self) -> bool {
        self.driver.capabilities().launches
    }

    pub(crate) fn label(&self, pool: &PoolName, label: &Label) -> Option<&LabelSettings> {
        self.settings.pools.get(pool)?.labels.get(label)
    }

    /// What the plan has to know of the provider, which takes the place of `before`.
    ///
    /// What others use is known when the whole cloud was looked at. That takes a while, in which ready nodes can be handed
    /// out and a cloud that is full says so itself; so nobody waits for it.
    pub(crate) fn setup(&self, before: Option<&ProviderSetup>) -> ProviderSetup {
        ProviderSetup {
            limits: self.counted(self.limits.clone()),
            foreign: before.map_or_else(Resources::default, |before| before.foreign.clone()),
            leaked: before.map_or_else(Resources::default, |before| before.leaked.clone()),
            max_launches: self.settings.max_launches,
            keeps_to_cluster: settings::keeps_to_cluster(&self.config.driver),
        }
    }

    /// The limits of the cloud as far as they count.
    pub(crate) fn counted(&self, limits: Limits) -> Limits {
        if self.settings.ignore_quota {
            Limits::unlimited()
        } else {
            limits
        }
    }

    /// What the plan has to know of the pools. Whether there are uploads of managed images is for the dispatcher to say.
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
    clock: &Clock,
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
    let (cost, readiness) = match sound_cost(driver, &key.pool, label).await? {
        Ok(cost) => {
            let readiness = cloud_readiness(driver, &key.pool, label, settings, clock);
            (cost, readiness.await?)
        }
        Err(broken) => (Resources::default(), broken),
    };
    Ok(LabelSetup {
        cost,
        readiness,
        supply,
        bound: driver.binds(&key.pool, label),
    })
}

/// What one machine of a label takes. The inner error is a [`Readiness::Broken`]: the cloud lacks what the label asks for.
pub(crate) async fn sound_cost(
    driver: &dyn Driver,
    pool: &PoolName,
    label: &Label,
) -> Result<Result<Resources, Readiness>, driver::Error> {
    match driver.cost(pool, label).await {
        Err(error) if error.class() == ErrorClass::Permanent => Ok(Err(Readiness::Broken {
            reason: error.to_string().into(),
        })),
        told => told.map(Ok),
    }
}

/// What the cloud says about the image of a label; of images that we manage it need not know.
pub(crate) async fn cloud_readiness(
    driver: &dyn Driver,
    pool: &PoolName,
    label: &Label,
    settings: &LabelSettings,
    clock: &Clock,
) -> Result<Readiness, driver::Error> {
    let ImageSettings::Cloud(image) = &settings.image else {
        return Ok(Readiness::Ready);
    };
    Ok(match driver.readiness(pool, label, clock.now()).await? {
        driver::Readiness::Ready => Readiness::Ready,
        driver::Readiness::NotReady(reason) => Readiness::ImageMissing {
            image: (&**image).into(),
            reason: Some(reason.into()),
            pending: None,
        },
    })
}

/// The uploads that machines of this provider can boot from, the newest first, one of each build.
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
