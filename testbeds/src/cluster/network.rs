//! The addresses of a cluster, and the wire to it.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

/// Of the network between this machine and a cluster.
pub(super) const PREFIX: &str = "30";
const PATIENCE: Duration = Duration::from_secs(10);

/// Three networks with a number in common that no other cluster of this machine has.
#[derive(Debug)]
pub(super) struct Network {
    number: u32,
}

impl Network {
    pub(super) fn choose() -> Result<Self> {
        const COUNT: u32 = 250;
        let begin = std::process::id();
        for offset in 0..COUNT {
            let network = Self {
                number: begin.wrapping_add(offset) % COUNT,
            };
            if ip(&["link", "show", &network.device()]).is_err() {
                return Ok(network);
            }
        }
        bail!("too many clusters run on this machine")
    }

    fn device(&self) -> String {
        format!("nodeyard{}", self.number)
    }

    pub(super) fn host(&self) -> String {
        format!("10.213.{}.1", self.number)
    }

    pub(super) fn node(&self) -> String {
        format!("10.213.{}.2", self.number)
    }

    pub(super) fn pods(&self) -> String {
        format!("10.214.{}.0/24", self.number)
    }

    pub(super) fn services(&self) -> String {
        format!("10.215.{}.0/24", self.number)
    }

    /// The first of the services is the API server.
    pub(super) fn api_service(&self) -> String {
        format!("10.215.{}.1", self.number)
    }

    /// Puts `eth0` into the network of a process. The wire, and the routes over it, go with that network.
    pub(super) fn connect(&self, pid: u32) -> Result<()> {
        let network_of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        let deadline = Instant::now() + PATIENCE;
        let pid = pid.to_string();
        while network_of(&pid).is_none() || network_of(&pid) == network_of("self") {
            ensure!(Instant::now() < deadline, "there is no network to join");
            thread::sleep(Duration::from_millis(5));
        }
        let device = self.device();
        ip(&[
            "link", "add", &device, "type", "veth", "peer", "name", "eth0", "netns", &pid,
        ])?;
        let address = format!("{}/{PREFIX}", self.host());
        ip(&["address", "add", &address, "dev", &device])?;
        ip(&["link", "set", &device, "up"])?;
        for network in [self.pods(), self.services()] {
            ip(&["route", "add", &network, "via", &self.node()])?;
        }
        Ok(())
    }
}

fn ip(arguments: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(arguments).output()?;
    ensure!(
        output.status.success(),
        "ip {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
