//! Making a machine.

use nodeyard_driver::{BootImage, CreateOrder, Error, ErrorClass, Instance, State, Step, Wait};
use nodeyard_model::{ConnectionPort, Timestamp};
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::{QemuDriver, local_id, stopping};
use crate::host::{Answering, Endpoint, LocalId, Machine, Stop, UploadStatus, Vitals};
use crate::local::{inspect, random_mac};
use crate::options::{LabelImage, LabelOptions};
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
                let port = self.options.guest_port(label)?;
                let endpoint = match self.host.look(&machine, port).await? {
                    Vitals::Down => {
                        state.write(&Create::Ordered)?;
                        let text = format!("machine {} stopped while it booted", machine.id);
                        return Err(self
                            .failure(ErrorClass::Permanent, text, label, &machine)
                            .await);
                    }
                    Vitals::Up(endpoint) => endpoint,
                };
                let heard = match endpoint {
                    Some(_) if !label.host_key_checking => Answering::Yes,
                    Some(endpoint) => self.host.hear(endpoint).await,
                    None => Answering::No,
                };
                if let (Answering::Yes, Some(endpoint)) = (heard, endpoint) {
                    return Ok(Step::Done(instance(&machine, endpoint)));
                }
                let age = now.since(since);
                if age > self.options.boot_timeout {
                    state.write(&Create::Ordered)?;
                    let limit = self.options.boot_timeout;
                    let place =
                        endpoint.map_or("anywhere".to_owned(), |place| format!("on {place}"));
                    let text = format!(
                        "machine {} did not answer {place} within {limit:?}",
                        machine.id
                    );
                    return Err(self
                        .failure(ErrorClass::Capacity, text, label, &machine)
                        .await);
                }
                Ok(Step::Wait(Wait {
                    at_most: self.options.poll.after(age),
                    event: Some(stopping(&machine.id)),
                }))
            }
        }
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
        let username = match &label.image {
            LabelImage::Cloud(name) => self.options.cloud_image(name)?.username.clone(),
            LabelImage::Disk(_) => None,
        };
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
                username,
            },
            guest_port: self.options.guest_port(label)?,
        };
        Ok((recipe, upload))
    }

    /// What went wrong, with what the machine had to say about it.
    async fn failure(
        &self,
        class: ErrorClass,
        text: String,
        label: &LabelOptions,
        machine: &Machine,
    ) -> Error {
        if !label.console_log {
            return Error::new(class, text);
        }
        let evidence = self.host.evidence(&machine.id).await.unwrap_or_default();
        warn!(machine = %machine.id, evidence, "{text}");
        Error::new(class, format!("{text}; {}", evidence.trim_end()))
    }
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
