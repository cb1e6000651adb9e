//! Machines that exist already.
//!
//! The driver lists the slots of these machines and checks them. The launcher keeps the records of their nodes.

use std::fmt;

use async_trait::async_trait;
use nodeyard_model::{Label, PoolName};

use crate::error::Error;

/// A machine and its user. Two entries of the configuration with the same identity are one machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    /// Host name or address.
    pub name: Box<str>,
    pub username: Box<str>,
    pub port: u16,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}:{}", self.username, self.name, self.port)
    }
}

/// A slot for one node: a machine, or a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub pool: PoolName,
    pub machine: Identity,
    /// The number of the part, from 0.
    pub slot: i64,
    pub labels: Vec<Label>,
    pub connection_type: Box<str>,
    pub shell_type: Option<Box<str>>,
    pub python_path: Box<str>,
    /// Host keys that its record must have, among others. `<type> <base64>` each.
    pub host_keys: Vec<Box<str>>,
}

/// The result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sighting {
    /// `<type> <base64>` each.
    pub host_keys: Vec<Box<str>>,
    pub public_ipv4: Option<Box<str>>,
    pub public_ipv6: Option<Box<str>>,
}

#[async_trait]
pub trait Roster: Send + Sync {
    /// Returns all slots, of reachable and unreachable machines.
    fn places(&self) -> &[Place];

    /// Checks that the machine is reachable and has the expected host keys.
    async fn inspect(&self, place: &Place) -> Result<Sighting, Error>;

    /// Returns whether the machine is reachable. Cheap: called before every use.
    async fn is_alive(&self, machine: &Identity) -> bool;
}
