//! A provider in a directory of its own, whose processes end with it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nodeyard_config::Accelerator;
use nodeyard_driver::{
    CreateOrder, Driver, Error, Instance, Owner, Poll, Progress, SystemId, Target, kit,
};
use nodeyard_driver_qemu::{
    GuestAccess, GuestNetwork, LabelImage, Options, QemuCloudImageOptions, QemuDriver,
    QemuImageChoice, QemuLabelOptions, QemuPoolOptions,
};
use nodeyard_model::{NodeId, ProviderName};
use tempfile::TempDir;
use tokio::time::timeout;

pub(crate) const PROVIDER: &str = "this-host";
pub(crate) const PATIENCE: Duration = Duration::from_secs(900);

pub(crate) fn owner() -> Owner {
    Owner {
        system: SystemId::new("ours"),
        provider: ProviderName::new(PROVIDER).unwrap(),
    }
}

pub(crate) fn node(number: u32) -> NodeId {
    format!("{number:010}").parse().unwrap()
}

pub(crate) fn order(number: u32) -> CreateOrder {
    kit::order(&owner(), node(number))
}

/// A provider with one label, whose machines have an empty disk and boot nothing.
#[derive(Debug)]
pub(crate) struct Yard {
    directory: TempDir,
    pub(crate) options: Options,
}

impl Yard {
    pub(crate) fn new() -> Self {
        let directory = tempfile::Builder::new()
            .prefix("nodeyard-qemu-")
            .tempdir()
            .unwrap();
        let image = directory.path().join("empty.raw");
        fs::write(&image, [0; 1 << 20]).unwrap();
        let options = Options {
            owner: owner(),
            directory: directory.path().join("provider"),
            binary: "qemu-system-x86_64".into(),
            architecture: "x86_64".into(),
            machine: None,
            accelerator: Accelerator::Tcg,
            kvm: "/dev/kvm".into(),
            firmware: None,
            network: GuestNetwork::User {
                address: [127, 0, 0, 1].into(),
            },
            boot_timeout: PATIENCE,
            cloud_images: vec![QemuCloudImageOptions {
                name: "file".into(),
                choice: QemuImageChoice::Path(image),
                username: None,
                access: GuestAccess::SSH,
            }],
            disk_images: Vec::new(),
            pools: vec![QemuPoolOptions {
                name: "main".into(),
                max_cores: None,
                labels: vec![label()],
            }],
            stop_grace: Duration::from_millis(100),
            poll: Poll::default(),
        };
        Self { directory, options }
    }

    pub(crate) fn with(change: impl FnOnce(&mut Options)) -> Self {
        let mut yard = Self::new();
        change(&mut yard.options);
        yard
    }

    pub(crate) fn with_label(change: impl FnOnce(&mut QemuLabelOptions)) -> Self {
        Self::with(|options| change(&mut options.pools[0].labels[0]))
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn driver(&self) -> QemuDriver {
        QemuDriver::new(self.options.clone())
    }

    pub(crate) fn shared_options(&self) -> Arc<Options> {
        Arc::new(self.options.clone())
    }

    /// Processes that run in this yard: their numbers.
    pub(crate) fn processes(&self) -> Vec<i32> {
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap() {
            let name = entry.unwrap().file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            let inside = fs::read_link(format!("/proc/{pid}/cwd"))
                .is_ok_and(|cwd| cwd.starts_with(self.path()));
            if inside {
                found.push(pid);
            }
        }
        found
    }

    /// Names of everything in one of the provider's directories.
    pub(crate) fn names(&self, directory: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.options.directory.join(directory)) else {
            return Vec::new();
        };
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    pub(crate) fn machine_directory(&self, instance: &Instance) -> PathBuf {
        let id = instance.external_id.to_string();
        self.options.directory.join("machines").join(id)
    }
}

impl Drop for Yard {
    fn drop(&mut self) {
        for pid in self.processes() {
            kill(pid);
        }
    }
}

pub(crate) fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    // It may have ended by itself.
    let _ended = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
}

pub(crate) fn label() -> QemuLabelOptions {
    QemuLabelOptions {
        name: "small".into(),
        image: LabelImage::Cloud("file".into()),
        cpus: 1,
        memory: 32,
        disk_size: None,
        kernel: None,
        initrd: None,
        kernel_args: None,
        userdata: None,
        authorized_keys: Vec::new(),
        host_key_checking: false,
        console_log: true,
        warm_template: false,
    }
}

/// Creates a machine as the first attempt of an order.
pub(crate) async fn launch(driver: &dyn Driver, order: &CreateOrder) -> Result<Instance, Error> {
    let progress = Progress::default();
    let creation = driver.machines().unwrap().create(order, &progress);
    timeout(PATIENCE, creation)
        .await
        .expect("the launch never ends")
}

/// Creates a machine as a later attempt, for which an earlier one may have left something behind.
pub(crate) async fn launch_again(driver: &dyn Driver, number: u32) -> Result<Instance, Error> {
    let order = CreateOrder {
        first_attempt: false,
        ..order(number)
    };
    launch(driver, &order).await
}

pub(crate) async fn remove(driver: &dyn Driver, number: u32) -> Result<(), Error> {
    let target = Target::Node {
        node: node(number),
        external_id: None,
    };
    timeout(PATIENCE, driver.machines().unwrap().delete(&target))
        .await
        .expect("the deletion never ends")
}
