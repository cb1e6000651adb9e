//! Making a machine.

use std::time::Duration;

use nodeyard_driver::{BootImage, CreateOrder, Error, ErrorClass, Instance, State, Step, Wait};
use nodeyard_driver_common::LabelImage;
use nodeyard_model::{ConnectionPort, Timestamp};
use serde::{Deserialize, Serialize};

use super::{QemuDriver, boot_failing, local_id};
use crate::host::{Answering, Endpoint, GuestFault, LocalId, Machine, Stop, UploadStatus, Vitals};
use crate::local::{inspect, random_mac};
use crate::options::LabelOptions;
use crate::recipe::{Kernel, Recipe, Seed, readable};

/// How far it is.
#[derive(Debug, Default, Serialize, Deserialize)]
enum Create {
    /// Asked for; a description may have been written without our knowing.
    #[default]
    Ordered,
    /// There is a description.
    Described {
        machine: LocalId,
    },
    Booting {
        machine: LocalId,
        since: Timestamp,
    },
}

impl QemuDriver {
    pub(super) async fn step_create(
        &self,
        order: &CreateOrder,
        state: &mut State,
        now: Timestamp,
    ) -> Result<Step<Instance>, Error> {
        let label = self.options.label(&order.pool, &order.label)?;
        match state.read()? {
            Create::Ordered => {
                let (_, upload) = self.recipe(order, label).await?;
                let earlier = if state.take_fresh() {
                    None
                } else {
                    match self.take_over(order).await? {
                        Debris::Cleared(machine) => machine,
                        Debris::Going => return Ok(Step::wait(self.options.poll.least)),
                    }
                };
                let machine = match earlier {
                    Some(machine) => machine,
                    None => {
                        let machine = describe(order, label, upload, now);
                        self.host.record(&machine).await?;
                        machine.id
                    }
                };
                state.external_id = Some(machine.as_str().into());
                state.write(&Create::Described { machine })?;
                Ok(Step::go_on())
            }
            Create::Described { machine } => {
                let Some(machine) = self.machine(&machine).await? else {
                    return start_over(state, &machine);
                };
                // Only now, with the description there, can the image not be deleted any more.
                let (recipe, _) = self.recipe(order, label).await?;
                self.host.start(&machine, &recipe).await?;
                state.write(&Create::Booting {
                    machine: machine.id,
                    since: now,
                })?;
                Ok(Step::go_on())
            }
            Create::Booting { machine, since } => {
                let Some(machine) = self.machine(&machine).await? else {
                    return start_over(state, &machine);
                };
                let booted = self.see_boot(label, &machine, now.since(since)).await;
                match booted {
                    Ok(Some(endpoint)) => Ok(Step::Done(instance(&machine, endpoint))),
                    Ok(None) => Ok(Step::Wait(Wait {
                        at_most: self.options.poll.after(now.since(since)),
                        event: Some(boot_failing(&machine.id)),
                    })),
                    Err(Boot::KvmRejected) => {
                        state.write(&Create::Described {
                            machine: machine.id,
                        })?;
                        Ok(Step::go_on())
                    }
                    Err(Boot::Failed(error)) => {
                        state.write(&Create::Ordered)?;
                        Err(error)
                    }
                    Err(Boot::Unseen(error)) => Err(error),
                }
            }
        }
    }

    /// Where a machine answers, if it does already.
    async fn see_boot(
        &self,
        label: &LabelOptions,
        machine: &Machine,
        age: Duration,
    ) -> Result<Option<Endpoint>, Boot> {
        let id = &machine.id;
        let reach = self.options.reach(label).map_err(Boot::Unseen)?;
        let vitals = self.host.look(machine, reach.port).await;
        let endpoint = match vitals.map_err(Boot::Unseen)? {
            Vitals::Up(endpoint) => endpoint,
            Vitals::Down => return Err(self.boot_failure(label, machine, None).await),
            Vitals::Failed(fault) => {
                return Err(self.boot_failure(label, machine, Some(fault)).await);
            }
        };
        let heard = match endpoint {
            Some(_) if !label.host_key_checking || !reach.greets => Answering::Yes,
            Some(endpoint) => self.host.hear(endpoint).await,
            None => Answering::No,
        };
        if heard == Answering::Yes {
            return Ok(endpoint);
        }
        let limit = self.options.boot_timeout;
        if age <= limit {
            return Ok(None);
        }
        let given_up = Machine {
            going: true,
            ..machine.clone()
        };
        self.host.record(&given_up).await.map_err(Boot::Unseen)?;
        let place = endpoint.map_or("anywhere".to_owned(), |place| format!("on {place}"));
        let text = format!("machine {id} did not answer {place} within {limit:?}");
        let error = self.failure(ErrorClass::Capacity, text, label, id).await;
        Err(Boot::Failed(error))
    }

    /// What becomes of a launch whose machine stopped, or whose guest QEMU paused, while it booted.
    async fn boot_failure(
        &self,
        label: &LabelOptions,
        machine: &Machine,
        fault: Option<GuestFault>,
    ) -> Boot {
        let id = &machine.id;
        let log = self.host.log(id).await;
        let by_kvm = match fault {
            Some(fault) => fault == GuestFault::InternalError,
            // A guest may end by itself; QEMU says so when KVM was the reason.
            None => log.to_ascii_lowercase().contains("kvm"),
        };
        if by_kvm {
            let first = log.lines().next().unwrap_or("QEMU gave no reason");
            match self.host.reject_kvm(machine, first).await {
                Ok(true) => return Boot::KvmRejected,
                Ok(false) => {}
                Err(error) => return Boot::Unseen(error),
            }
        }
        let (class, text) = match fault {
            None => (ErrorClass::Permanent, "stopped while it booted".to_owned()),
            Some(fault @ (GuestFault::HostDiskFull | GuestFault::IoError)) => {
                (ErrorClass::Capacity, format!("failed to boot: {fault}"))
            }
            Some(fault) => (ErrorClass::Permanent, format!("failed to boot: {fault}")),
        };
        if fault.is_some() {
            let given_up = Machine {
                going: true,
                ..machine.clone()
            };
            if let Err(error) = self.host.record(&given_up).await {
                return Boot::Unseen(error);
            }
        }
        let text = format!("machine {id} {text}");
        Boot::Failed(self.failure(class, text, label, id).await)
    }

    async fn machine(&self, id: &LocalId) -> Result<Option<Machine>, Error> {
        let machines = self.host.machines().await?;
        let machine = machines.into_iter().find(|machine| machine.id == *id);
        Ok(machine.filter(|machine| !machine.going))
    }

    /// What an earlier run of this order left behind: one that can still become something is taken over,
    /// everything else goes.
    async fn take_over(&self, order: &CreateOrder) -> Result<Debris, Error> {
        let mut good = None;
        let mut going = false;
        for machine in self.machines_of_node(order.node).await? {
            let stillborn = machine.process.is_some() && !self.host.is_up(&machine).await?;
            if good.is_none() && !machine.going && !stillborn {
                good = Some(machine.id);
            } else {
                going = true;
                self.remove_at_once(&machine).await?;
            }
        }
        Ok(if going {
            Debris::Going
        } else {
            Debris::Cleared(good)
        })
    }

    /// Nobody has used it: it need not be asked kindly.
    async fn remove_at_once(&self, machine: &Machine) -> Result<(), Error> {
        if self.host.is_up(machine).await? {
            self.host.stop(machine, Stop::Kill).await
        } else {
            self.host.discard(machine).await
        }
    }

    /// What the machine is made of, and the upload that it builds on.
    async fn recipe(
        &self,
        order: &CreateOrder,
        label: &LabelOptions,
    ) -> Result<(Recipe, Option<LocalId>), Error> {
        let (backing, format, upload) = match (&order.image, &label.image) {
            (BootImage::Upload { external_id, .. }, _) => {
                let id = local_id(external_id)?;
                let uploads = self.host.uploads().await?;
                let upload = uploads
                    .into_iter()
                    .find(|upload| upload.id == id && upload.status == UploadStatus::Active);
                let upload = upload
                    .ok_or_else(|| Error::permanent(format!("image {id} is not on this host")))?;
                (
                    self.host.upload_path(&upload),
                    upload.format,
                    Some(upload.id),
                )
            }
            (BootImage::Cloud, LabelImage::Cloud(name)) => {
                let path = self.cloud_image_file(name).await?;
                let header = inspect(&path).map_err(|cause| {
                    Error::permanent(format!("image {} cannot be read", path.display()))
                        .because(cause)
                })?;
                (path, header.format, None)
            }
            (BootImage::Cloud, LabelImage::Disk(image)) => {
                return Err(Error::permanent(format!(
                    "label {} boots from an upload of {image}, but there is none",
                    label.name
                )));
            }
        };
        for (path, what) in [(&label.kernel, "kernel"), (&label.initrd, "initrd")] {
            if let Some(path) = path {
                readable(path, what)?;
            }
        }
        let recipe = Recipe {
            backing,
            format,
            disk_size: label.disk_size,
            kernel: label.kernel.as_ref().map(|path| Kernel {
                path: path.clone(),
                initrd: label.initrd.clone(),
                arguments: label.kernel_args.clone(),
            }),
            seed: Seed {
                hostname: order.hostname().into(),
                authorized_keys: label.authorized_keys.clone(),
                userdata: label.userdata.clone(),
                username: self.options.username(label)?,
            },
            warm: label.warm_template,
            guest_port: self.options.reach(label)?.port,
        };
        Ok((recipe, upload))
    }

    /// Returns an error with QEMU's messages, and the end of the console where the label has `console-log`.
    async fn failure(
        &self,
        class: ErrorClass,
        text: String,
        label: &LabelOptions,
        machine: &LocalId,
    ) -> Error {
        let evidence = if label.console_log {
            self.host.evidence(machine).await.unwrap_or_default()
        } else {
            let log = self.host.log(machine).await;
            if log.is_empty() {
                return Error::new(class, text);
            }
            format!("QEMU says:\n{log}")
        };
        Error::new(class, format!("{text}; {}", evidence.trim_end()))
    }
}

/// Why a boot does not go on.
enum Boot {
    /// Its accelerator failed; the machine can be started again without it.
    KvmRejected,
    /// Nothing will become of this machine.
    Failed(Error),
    /// It may well be up.
    Unseen(Error),
}

/// What was in the way of an order.
enum Debris {
    /// Nothing, or what can be taken over.
    Cleared(Option<LocalId>),
    /// It is on its way out.
    Going,
}

fn describe(
    order: &CreateOrder,
    label: &LabelOptions,
    upload: Option<LocalId>,
    now: Timestamp,
) -> Machine {
    Machine {
        id: LocalId::new(&order.hostname()),
        name: order.hostname().into(),
        tags: order.tags.clone(),
        upload,
        cpus: label.cpus,
        memory: label.memory,
        mac: random_mac(),
        created: now,
        going: false,
        process: None,
    }
}

fn instance(machine: &Machine, endpoint: Endpoint) -> Instance {
    let address: Box<str> = endpoint.address.to_string().into();
    Instance {
        public_ipv4: Some(address.clone()),
        private_ipv4: Some(address.clone()),
        interface_ip: Some(address),
        connection_port: Some(ConnectionPort::Number(endpoint.port)),
        ..Instance::new(machine.id.as_str().into(), machine.takes())
    }
}

/// Somebody deleted the machine meanwhile; the next run makes another.
fn start_over(state: &mut State, machine: &LocalId) -> Result<Step<Instance>, Error> {
    state.write(&Create::Ordered)?;
    state.external_id = None;
    Err(Error::retry(format!(
        "machine {machine} was deleted while it was made"
    )))
}
