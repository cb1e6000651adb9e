//! Deletes machines: asks the guest to shut down, then QEMU to quit, then kills the process.

use nodeyard_driver::{Error, ResourceKind, Target};
use tokio::time::timeout;

use super::{QemuDriver, local_id};
use crate::host::{QemuMachine, StopMethod};

impl QemuDriver {
    pub(super) async fn delete_target(&self, target: &Target) -> Result<(), Error> {
        let machines = match target {
            // Every machine carries the id of its node in its tags, so that the external id adds nothing.
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
                return self.delete_uploads(uploads).await;
            }
            Target::Resource { kind, .. } => {
                return Err(Error::unsupported(&format!("delete {kind}")));
            }
        };
        for machine in &machines {
            self.mark_deleting(machine).await?;
        }
        for machine in &machines {
            self.shut_down(machine).await?;
            self.kill_and_remove(machine).await?;
        }
        Ok(())
    }

    /// Excludes a machine from being taken over by a later call.
    pub(super) async fn mark_deleting(&self, machine: &QemuMachine) -> Result<(), Error> {
        if machine.deleting {
            return Ok(());
        }
        let machine = QemuMachine {
            deleting: true,
            ..machine.clone()
        };
        self.host.write_machine(&machine).await
    }

    /// Asks the guest, then QEMU, and gives each `stop_grace`. The machine may run on.
    async fn shut_down(&self, machine: &QemuMachine) -> Result<(), Error> {
        for method in [StopMethod::PowerDown, StopMethod::Quit] {
            if !self.host.is_running(machine).await? {
                break;
            }
            self.host.stop(machine, method).await?;
            let exit = self.host.wait_for_exit(&machine.id);
            let _elapsed = timeout(self.options.stop_grace, exit).await;
        }
        Ok(())
    }

    pub(super) async fn kill_and_remove(&self, machine: &QemuMachine) -> Result<(), Error> {
        let timer = self.options.poll.start();
        while self.host.is_running(machine).await? {
            self.host.stop(machine, StopMethod::Kill).await?;
            timer.tick_or(self.host.wait_for_exit(&machine.id)).await;
        }
        self.host.remove_machine(machine).await
    }
}
