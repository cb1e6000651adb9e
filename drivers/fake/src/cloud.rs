//! The state of a simulated cloud: its resources, their usage, and events that are due later.
//!
//! A [`Cloud`] does no input or output and has no clock: the time comes with each call, and random numbers come from one
//! seeded generator. Later events (a server becomes active, a deleted one disappears) are queued and applied at the next
//! call.

mod catalog;
mod error;
mod images;
mod network;
mod quota;
mod random;
mod servers;
mod time;
mod volumes;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use nodeyard_model::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};

use self::catalog::Catalog;
use self::images::Images;
use self::network::{FloatingIps, Ports};
use self::quota::Usage;
use self::random::Random;
use self::servers::Servers;
use self::volumes::Volumes;
use crate::simulate::{FailureRates, Quota, Simulate, Span};

pub use self::error::CloudError;

/// The effect of a call.
#[derive(Debug)]
pub enum Outcome {
    Answer(Result<Reply, CloudError>),
    /// It took effect, and its response is lost.
    Lost,
    /// It had no effect, and never returns.
    Hang,
}

/// A successful response.
#[derive(Debug)]
pub struct Reply {
    pub result: Box<RawValue>,
    /// The response is delayed until then, for callers that wait for the end of an upload.
    pub not_before: Option<Timestamp>,
}

impl Reply {
    fn now(result: &impl Serialize) -> Result<Self, CloudError> {
        Ok(Self {
            result: to_raw_value(result).map_err(|error| CloudError::internal(&error))?,
            not_before: None,
        })
    }
}

/// An event of the resource with this number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    ServerBooted(u64),
    ServerGone(u64),
    ImageUploaded(u64),
}

/// One provider's cloud.
#[derive(Debug)]
pub struct Cloud {
    boot_time: Span,
    delete_time: Span,
    upload_time: Span,
    failures: BTreeMap<String, FailureRates>,
    catalog: Catalog,
    servers: Servers,
    images: Images,
    volumes: Volumes,
    ports: Ports,
    floating_ips: FloatingIps,
    quota: Quota,
    used: Usage,
    random: Random,
    events: BinaryHeap<Reverse<(Timestamp, Event)>>,
}

impl Cloud {
    pub fn new(options: &Simulate, now: Timestamp) -> Self {
        let mut random = Random::new(options.seed);
        Self {
            boot_time: options.boot_time,
            delete_time: options.delete_time,
            upload_time: options.upload_time,
            failures: options.failures.clone(),
            catalog: Catalog::new(options, &mut random),
            servers: Servers::default(),
            images: Images::new(&options.images, &mut random, now),
            volumes: Volumes::default(),
            ports: Ports::new(&mut random),
            floating_ips: FloatingIps::default(),
            quota: options.quota,
            used: Usage::default(),
            random,
            events: BinaryHeap::new(),
        }
    }

    /// Calls `method` with `arguments`, the text of a JSON object.
    pub fn call(&mut self, method: &str, arguments: &[u8], now: Timestamp) -> Outcome {
        self.catch_up(now);
        match self.draw_failure(method) {
            Some(Failure::Hang) => Outcome::Hang,
            Some(Failure::Lost) => {
                let _lost = self.dispatch(method, arguments, now);
                Outcome::Lost
            }
            Some(Failure::Error(class)) => {
                Outcome::Answer(Err(self.fail(method, &class, arguments, now)))
            }
            None => Outcome::Answer(self.dispatch(method, arguments, now)),
        }
    }

    fn dispatch(
        &mut self,
        method: &str,
        arguments: &[u8],
        now: Timestamp,
    ) -> Result<Reply, CloudError> {
        match method {
            "list_servers" => self.list_servers(),
            "get_server" => self.get_server(&parse(arguments)?),
            "create_server" => self.create_server(parse(arguments)?, now),
            "delete_server" => self.delete_server(&parse(arguments)?, now),
            "get_server_console" => self.get_server_console(&parse(arguments)?),
            "list_images" => self.list_images(),
            "get_image" => self.get_image(&parse(arguments)?),
            "create_image" => self.create_image(parse(arguments)?, now),
            "delete_image" => self.delete_image(&parse(arguments)?),
            "list_flavors" => Reply::now(&self.catalog.flavors),
            "get_network" => self.get_network(&parse(arguments)?),
            "list_availability_zone_names" => Reply::now(&self.catalog.zones),
            "get_compute_limits" => self.get_compute_limits(),
            "get_volume_limits" => self.get_volume_limits(),
            "list_volumes" => self.list_volumes(),
            "list_floating_ips" => self.list_floating_ips(),
            "create_floating_ip" => self.create_floating_ip(&parse(arguments)?),
            "delete_floating_ip" => self.delete_floating_ip(&parse(arguments)?),
            "list_ports" => self.list_ports(&parse(arguments)?),
            "delete_port" => self.delete_port(&parse(arguments)?),
            _ => Err(CloudError::unknown_method(method)),
        }
    }

    fn draw_failure(&mut self, call: &str) -> Option<Failure> {
        if self.failures.is_empty() {
            return None;
        }
        let rates = self.failures.get(call).or_else(|| self.failures.get("*"))?;
        let drawn = self.random.fraction();
        if drawn < rates.hang {
            Some(Failure::Hang)
        } else if drawn < rates.hang + rates.lost {
            Some(Failure::Lost)
        } else if drawn < rates.hang + rates.lost + rates.error {
            Some(Failure::Error(rates.class.clone()))
        } else {
            None
        }
    }

    /// Returns the error of a call that is to fail. A creation that fails late leaves a server behind.
    fn fail(&mut self, method: &str, class: &str, arguments: &[u8], now: Timestamp) -> CloudError {
        if class == CloudError::CREATE && method == "create_server" {
            return match parse(arguments).and_then(|order| self.half_create(order, now)) {
                Ok(error) | Err(error) => error,
            };
        }
        CloudError::simulated(class, method)
    }

    /// Applies the events that are due.
    fn catch_up(&mut self, now: Timestamp) {
        while let Some(Reverse((due, event))) = self.events.peek().copied() {
            if due > now {
                return;
            }
            self.events.pop();
            match event {
                Event::ServerBooted(number) => self.server_booted(number),
                Event::ServerGone(number) => self.server_gone(number),
                Event::ImageUploaded(number) => self.images.uploaded(number),
            }
        }
    }

    /// Schedules `event` after a time drawn from `span`, and returns when it is due.
    fn schedule(&mut self, event: Event, span: Span, now: Timestamp) -> Timestamp {
        let due = time::after(now, self.random.duration(span));
        self.events.push(Reverse((due, event)));
        due
    }
}

enum Failure {
    Hang,
    Lost,
    Error(String),
}

fn parse<T: DeserializeOwned>(arguments: &[u8]) -> Result<T, CloudError> {
    // An empty body means no arguments.
    let text = if arguments.is_empty() {
        b"{}"
    } else {
        arguments
    };
    serde_json::from_slice(text).map_err(|error| CloudError::malformed(&error))
}

#[cfg(test)]
mod tests;
