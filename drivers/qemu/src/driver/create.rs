//! Creates a machine and waits until it has booted.

use nodeyard_driver::{BootImage, Clock, CreateOrder, Error, ErrorClass, Instance, Progress};
use nodeyard_driver_common::LabelImage;
use nodeyard_model::ConnectionPort;

use super::{QemuDriver, local_id};
use crate::host::{GuestEndpoint, GuestFault, LocalId, MachineStatus, QemuMachine, UploadStatus};
use crate::local::{inspect, random_mac};
use crate::machine_spec::{Kernel, MachineSpec, Seed, check_readable};
use crate::options::QemuLabelOptions;

/// The result of waiting for a boot.
enum BootOutcome {
    Answering(GuestEndpoint),
    /// The machine failed under KVM and can be started again without it.
    KvmRejected,
}

impl QemuDriver {
    pub(super) async fn create_machine(
        &self,
        order: &CreateOrder,
        progress: &Progress,
    ) -> Result<Instance, Error> {
        let label = self.options.label(&order.pool, &order.label)?;
        let machine = self.find_or_record(order, label).await?;
        progress.set_external_id(machine.id.as_str());
        // Read again: only a recorded machine keeps its image from being deleted.
        let (spec, _) = self.machine_spec(order, label).await?;
        loop {
            self.host.start(&machine, &spec).await?;
            progress.set_stage("waiting for the guest to boot");
            match self.wait_until_booted(label, &machine.id).await? {
                BootOutcome::Answering(endpoint) => return Ok(instance(&machine, endpoint)),
                BootOutcome::KvmRejected => {}
            }
        }
    }

    async fn find_or_record(
        &self,
        order: &CreateOrder,
        label: &QemuLabelOptions,
    ) -> Result<QemuMachine, Error> {
        if !order.first_attempt
            && let Some(machine) = self.adopt(order).await?
        {
            return Ok(machine);
        }
        let (_, upload) = self.machine_spec(order, label).await?;
        let machine = new_machine(order, label, upload);
        self.host.write_machine(&machine).await?;
        Ok(machine)
    }

    /// Takes over one machine of an earlier call that runs or was never started, and deletes all others.
    async fn adopt(&self, order: &CreateOrder) -> Result<Option<QemuMachine>, Error> {
        let mut usable = None;
        for machine in self.machines_of_node(order.node).await? {
            let has_ended = machine.process.is_some() && !self.host.is_running(&machine).await?;
            if usable.is_none() && !machine.deleting && !has_ended {
                usable = Some(machine);
            } else {
                self.kill_and_remove(&machine).await?;
            }
        }
        Ok(usable)
    }

    /// Waits until the guest answers. Fails as soon as it stops or QEMU pauses it for good.
    async fn wait_until_booted(
        &self,
        label: &QemuLabelOptions,
        id: &LocalId,
    ) -> Result<BootOutcome, Error> {
        let access = self.options.guest_access(label)?;
        let must_greet = label.host_key_checking && access.greets;
        let timer = self.options.poll.start();
        loop {
            let machine = self.existing_machine(id).await?;
            let endpoint = match self.host.status(&machine, access.port).await? {
                MachineStatus::Running(endpoint) => endpoint,
                MachineStatus::Stopped => {
                    return self.handle_failed_boot(label, &machine, None).await;
                }
                MachineStatus::Failed(fault) => {
                    return self.handle_failed_boot(label, &machine, Some(fault)).await;
                }
            };
            if let Some(endpoint) = endpoint {
                let answers = tokio::select! {
                    biased;
                    answers = async { !must_greet || self.host.greets(endpoint).await } => answers,
                    () = self.host.wait_for_fault(id) => false,
                };
                if answers {
                    return Ok(BootOutcome::Answering(endpoint));
                }
            }
            if timer.age() > self.options.boot_timeout {
                return Err(self.give_up(label, &machine, endpoint).await?);
            }
            timer.tick_or(self.host.wait_for_fault(id)).await;
        }
    }

    async fn existing_machine(&self, id: &LocalId) -> Result<QemuMachine, Error> {
        let machines = self.host.machines().await?;
        let machine = machines.into_iter().find(|machine| machine.id == *id);
        machine
            .filter(|machine| !machine.deleting)
            .ok_or_else(|| Error::retry(format!("machine {id} was deleted while it was created")))
    }

    /// Replaces KVM if it made the boot fail, and otherwise returns why the boot failed.
    async fn handle_failed_boot(
        &self,
        label: &QemuLabelOptions,
        machine: &QemuMachine,
        fault: Option<GuestFault>,
    ) -> Result<BootOutcome, Error> {
        let id = &machine.id;
        let log = self.host.qemu_log(id).await;
        let by_kvm = match fault {
            Some(fault) => fault == GuestFault::InternalError,
            // A guest may stop by itself; the log of QEMU tells whether KVM was the reason.
            None => log.to_ascii_lowercase().contains("kvm"),
        };
        if by_kvm {
            let reason = log.lines().next().unwrap_or("QEMU gave no reason");
            if self.host.reject_kvm(machine, reason).await? {
                return Ok(BootOutcome::KvmRejected);
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
            self.mark_deleting(machine).await?;
        }
        let text = format!("machine {id} {text}");
        Err(self.boot_error(class, text, label, id).await)
    }

    /// Gives a machine up that exceeded `boot-timeout`: the next attempt creates another one.
    async fn give_up(
        &self,
        label: &QemuLabelOptions,
        machine: &QemuMachine,
        endpoint: Option<GuestEndpoint>,
    ) -> Result<Error, Error> {
        let (id, limit) = (&machine.id, self.options.boot_timeout);
        self.mark_deleting(machine).await?;
        let text = match endpoint {
            Some(endpoint) => format!("machine {id} did not answer on {endpoint} within {limit:?}"),
            None => format!("machine {id} got no address within {limit:?}"),
        };
        Ok(self.boot_error(ErrorClass::Capacity, text, label, id).await)
    }

    /// Returns an error with QEMU's messages, and the end of the console where the label has `console-log`.
    async fn boot_error(
        &self,
        class: ErrorClass,
        text: String,
        label: &QemuLabelOptions,
        machine: &LocalId,
    ) -> Error {
        let evidence = if label.console_log {
            self.host.evidence(machine).await.unwrap_or_default()
        } else {
            let log = self.host.qemu_log(machine).await;
            if log.is_empty() {
                return Error::new(class, text);
            }
            format!("QEMU says:\n{log}")
        };
        Error::new(class, format!("{text}; {}", evidence.trim_end()))
    }

    /// Returns the specification of a machine, and the upload that its disk is based on.
    async fn machine_spec(
        &self,
        order: &CreateOrder,
        label: &QemuLabelOptions,
    ) -> Result<(MachineSpec, Option<LocalId>), Error> {
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
                    Error::permanent(format!("failed to read image {}", path.display()))
                        .because(cause)
                })?;
                (path, header.format, None)
            }
            (BootImage::Cloud, LabelImage::Disk(image)) => {
                return Err(Error::permanent(format!(
                    "label {} needs an upload of {image}, but none exists",
                    label.name
                )));
            }
        };
        for (path, kind) in [(&label.kernel, "kernel"), (&label.initrd, "initrd")] {
            if let Some(path) = path {
                check_readable(path, kind)?;
            }
        }
        let spec = MachineSpec {
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
            guest_port: self.options.guest_access(label)?.port,
        };
        Ok((spec, upload))
    }
}

fn new_machine(
    order: &CreateOrder,
    label: &QemuLabelOptions,
    upload: Option<LocalId>,
) -> QemuMachine {
    QemuMachine {
        id: LocalId::new(&order.hostname()),
        name: order.hostname().into(),
        tags: order.tags.clone(),
        upload,
        cpus: label.cpus,
        memory: label.memory,
        mac: random_mac(),
        created: Clock::system().now(),
        deleting: false,
        process: None,
    }
}

fn instance(machine: &QemuMachine, endpoint: GuestEndpoint) -> Instance {
    let address: Box<str> = endpoint.address.to_string().into();
    Instance {
        public_ipv4: Some(address.clone()),
        private_ipv4: Some(address.clone()),
        interface_ip: Some(address),
        connection_port: Some(ConnectionPort::Number(endpoint.port)),
        ..Instance::new(machine.id.as_str().into(), machine.cost())
    }
}
