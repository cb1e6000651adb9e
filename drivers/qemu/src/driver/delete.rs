//! Deleting a machine: the guest is asked, then QEMU, then the process is killed.

use nodeyard_driver::{Error, ResourceKind, State, Step, Target, Wait};
use nodeyard_model::Timestamp;
use serde::{Deserialize, Serialize};

use super::{QemuDriver, local_id, stopping};
use crate::host::{Machine, Stop};

#[derive(Debug, Default, Serialize, Deserialize)]
enum Delete {
    #[default]
    Asked,
    PoweringDown {
        since: Timestamp,
    },
    Quitting {
        since: Timestamp,
    },
    Killing {
        since: Timestamp,
    },
}

impl QemuDriver {
    pub(super) async fn step_delete(
        &self,
        target: &Target,
        state: &mut State,
        now: Timestamp,
    ) -> Result<Step<()>, Error> {
        let machines = match target {
            // All that was made for a node carries its id, so that its external id tells nothing more.
            Target::Node { node, .. } => self.machines_of_node(*node).await?,
            Target::Resource { kind, id } if *kind == ResourceKind::INSTANCES => {
                let id = local_id(id)?;
                let mut machines = self.host.machines().await?;
                machines.retain(|machine| machine.id == id);
                machines
            }
            Target::Resource { kind, id } if *kind == ResourceKind::IMAGES => {
                let id = local_id(id)?;
                let mut uploads = self.host.uploads().await?;
                uploads.retain(|upload| upload.id == id);
                return self.step_delete_images(uploads).await;
            }
            Target::Resource { kind, .. } => {
                return Err(Error::unsupported(&format!("delete {kind}")));
            }
        };
        let mut running = Vec::new();
        for mut machine in machines {
            if !machine.going {
                machine.going = true;
                self.host.record(&machine).await?;
            }
            if self.host.is_up(&machine).await? {
                running.push(machine);
            } else {
                self.host.discard(&machine).await?;
            }
        }
        let Some(first) = running.first() else {
            return Ok(Step::Done(()));
        };
        let wait = Wait {
            at_most: self.stop(&running, state, now).await?,
            event: Some(stopping(&first.id)),
        };
        Ok(Step::Wait(wait))
    }

    /// Goes on to the next means when the last one had its time. Returns when to look again.
    async fn stop(
        &self,
        machines: &[Machine],
        state: &mut State,
        now: Timestamp,
    ) -> Result<std::time::Duration, Error> {
        let grace = self.options.stop_grace;
        let (how, next) = match state.read()? {
            Delete::Asked => (Stop::PowerDown, Delete::PoweringDown { since: now }),
            Delete::PoweringDown { since } if now.since(since) >= grace => {
                (Stop::Quit, Delete::Quitting { since: now })
            }
            Delete::Quitting { since } if now.since(since) >= grace => {
                (Stop::Kill, Delete::Killing { since: now })
            }
            Delete::PoweringDown { since } | Delete::Quitting { since } => {
                return Ok(grace.saturating_sub(now.since(since)));
            }
            Delete::Killing { since } => return Ok(self.options.poll.after(now.since(since))),
        };
        for machine in machines {
            self.host.stop(machine, how).await?;
        }
        state.write(&next)?;
        Ok(match next {
            Delete::Killing { .. } => self.options.poll.least,
            _ => grace,
        })
    }
}
