//! The simulated clouds of a process, one for each provider.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use nodeyard_driver::Clock;
use nodeyard_model::Timestamp;

use crate::cloud::{Cloud, CloudError, Outcome};
use crate::simulate::Simulate;

/// Limits the clouds that callers of the server create by naming providers.
const MAX_PROVIDERS: usize = 1000;

/// Clouds by the name of their provider, created at their first call.
#[derive(Debug)]
pub struct World {
    clock: Clock,
    /// The behaviour of each cloud; providers without an entry have the default.
    options: HashMap<String, Simulate>,
    clouds: Mutex<HashMap<String, Arc<Mutex<Cloud>>>>,
}

impl World {
    pub fn new(options: HashMap<String, Simulate>, clock: Clock) -> Self {
        Self {
            clock,
            options,
            clouds: Mutex::default(),
        }
    }

    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Calls a method of a provider's cloud.
    pub fn call(&self, provider: &str, method: &str, arguments: &[u8]) -> Outcome {
        let now = self.clock.now();
        match self.cloud(provider, now) {
            Some(cloud) => cloud
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .call(method, arguments, now),
            None => Outcome::Answer(Err(CloudError::no_room_for_provider(provider))),
        }
    }

    fn cloud(&self, provider: &str, now: Timestamp) -> Option<Arc<Mutex<Cloud>>> {
        let mut clouds = self.clouds.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cloud) = clouds.get(provider) {
            return Some(Arc::clone(cloud));
        }
        let options = self.options.get(provider);
        if options.is_none() && clouds.len() >= MAX_PROVIDERS {
            return None;
        }
        let default = Simulate::default();
        let cloud = Cloud::new(options.unwrap_or(&default), now);
        let cloud = Arc::new(Mutex::new(cloud));
        clouds.insert(provider.to_owned(), Arc::clone(&cloud));
        Some(cloud)
    }
}
