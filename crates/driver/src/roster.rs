//! Machines that exist already.
//!
//! A driver that launches nothing says which places for nodes there are, and looks at the machines behind
//! them. Which of the places have a record, and who uses them, is the launcher's business.

use std::fmt;

use async_trait::async_trait;
use nodeyard_model::{Label, PoolName};

use crate::error::Error;

/// Which machine, and as whom. Two entries of the configuration that agree in this are one machine.
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

/// Room for one node: a machine, or a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub pool: PoolName,
    pub machine: Identity,
    /// Which part, from 0.
    pub slot: i64,
    pub labels: Vec<Label>,
    pub connection_type: Box<str>,
    pub shell_type: Option<Box<str>>,
    pub python_path: Box<str>,
    /// Host keys that a record of it must have; it may have more. `<type> <base64>` each.
    pub host_keys: Vec<Box<str>>,
}

/// What a look at a machine found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sighting {
    /// `<type> <base64>` each.
    pub host_keys: Vec<Box<str>>,
    pub public_ipv4: Option<Box<str>>,
    pub public_ipv6: Option<Box<str>>,
}

#[async_trait]
pub trait Roster: Send + Sync {
    /// Every place there should be a node for, whether the machine answers or not.
    fn places(&self) -> &[Place];

    /// Looks whether the machine is there and is the one it should be.
    async fn inspect(&self, place: &Place) -> Result<Sighting, Error>;

    /// Whether the machine answers at this moment. Cheap: asked before every use.
    async fn is_alive(&self, machine: &Identity) -> bool;
}
