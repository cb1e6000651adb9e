//! The drivers of providers.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use nodeyard_config as config;
use nodeyard_driver::{self as driver, Driver, Owner};
use nodeyard_driver_common::{DriverContext, DriverKinds};
use nodeyard_model::ProviderName;

/// The maximum number of drivers, because callers choose the owner.
const MAX_DRIVERS: usize = 64;

/// Caches drivers until the configuration of their provider changes.
pub(super) struct DriverCache {
    kinds: DriverKinds,
    made: Mutex<HashMap<(driver::SystemId, ProviderName), CachedDriver>>,
}

struct CachedDriver {
    config: config::Provider,
    driver: Arc<dyn Driver>,
}

impl fmt::Debug for DriverCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DriverCache")
    }
}

impl DriverCache {
    pub(super) fn new(kinds: DriverKinds) -> Self {
        Self {
            kinds,
            made: Mutex::default(),
        }
    }

    /// Returns the driver kinds.
    pub(super) fn kinds(&self) -> &DriverKinds {
        &self.kinds
    }

    pub(super) fn get(
        &self,
        provider: &config::Provider,
        owner: &Owner,
    ) -> Result<Arc<dyn Driver>, driver::Error> {
        let key = (owner.system.clone(), owner.provider.clone());
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = made.get(&key).filter(|known| known.config == *provider) {
            return Ok(Arc::clone(&known.driver));
        }
        let context = DriverContext::new(owner.clone());
        let driver = self.kinds.make(provider, context)?;
        if made.len() >= MAX_DRIVERS {
            made.clear();
        }
        let config = provider.clone();
        let entry = CachedDriver {
            config,
            driver: Arc::clone(&driver),
        };
        made.insert(key, entry);
        Ok(driver)
    }
}
