//! A project of the test cloud, a gateway in front of it, and a driver behind that.

use std::path::PathBuf;
use std::time::Duration;

use nodeyard_config::{Config, ConfigSource, Driver as Section, Mode};
use nodeyard_driver::{
    Error, ErrorClass, ExternalId, ImageTarget, Images as _, Owner, Progress, SystemId,
    UploadOrder, UploadedImage,
};
use nodeyard_driver_openstack::{OpenStackDriver, Options};
use nodeyard_model::{BuildId, BuildKey, ImageName, ProviderName, UploadKey};
use nodeyard_openstack::ProcessEnvironment;
use nodeyard_testbeds::openstack::{Gateway, GatewayTls, Project};
use nodeyard_testbeds::{Certificates, OpenStack};
use serde_json::Value;
use tokio::time::timeout;

/// A broken cloud must not hang the test.
const PATIENCE: Duration = Duration::from_secs(900);
/// How often one upload is repeated.
const MAX_FAILURES: usize = 20;

pub(crate) struct Bed {
    pub(crate) project: Project,
    pub(crate) gateway: Gateway,
    cloud: OpenStack,
}

impl Bed {
    pub(crate) fn new(purpose: &str) -> Option<Self> {
        let cloud = OpenStack::start_if_possible().unwrap()?;
        Some(Self {
            project: cloud.project(purpose).unwrap(),
            gateway: Gateway::start(&cloud).unwrap(),
            cloud,
        })
    }

    pub(crate) fn over_tls(purpose: &str) -> Option<Self> {
        let mut bed = Self::new(purpose)?;
        let certificates = Certificates::create(&bed.project.directory().join("tls")).unwrap();
        let tls = GatewayTls::of(&certificates);
        bed.gateway = Gateway::start_with_tls(&bed.cloud, &tls).unwrap();
        Some(bed)
    }

    /// Another one for each test: what was uploaded once in a Glance is never made again.
    pub(crate) fn owner(&self) -> Owner {
        Owner {
            system: SystemId::new(self.project.name()),
            provider: provider(),
        }
    }

    /// A process of its own, as far as the driver can tell.
    pub(crate) fn driver(&self) -> OpenStackDriver {
        self.driver_with("")
    }

    /// With more keys of the provider.
    pub(crate) fn driver_with(&self, keys: &str) -> OpenStackDriver {
        let path = self.project.directory().join("nodepool.yaml");
        let text = format!(
            "labels: [{{name: small}}]\n\
             providers:\n  - name: cloud\n    driver: openstack\n    cloud: nodepool\n    rate: 0\n{keys}"
        );
        std::fs::write(&path, text).unwrap();
        let loaded = nodeyard_config::load(&ConfigSource::new(&path, None), Mode::Check);
        let config: Config = loaded
            .config
            .unwrap_or_else(|| panic!("{:?}", loaded.diagnostics));
        let Section::OpenStack(section) = &config.providers["cloud"].driver else {
            panic!("another driver");
        };
        let mut options = Options::of(section, self.owner()).unwrap();
        options.poll.least = Duration::from_millis(100);
        options.poll.most = Duration::from_millis(500);
        options.image_age = Duration::ZERO;
        let clouds = self.project.clouds_yaml_through(&self.gateway).unwrap();
        let variable = (
            "OS_CLIENT_CONFIG_FILE".to_owned(),
            clouds.to_str().unwrap().to_owned(),
        );
        let around = ProcessEnvironment {
            variables: [variable].into(),
            directory: self.project.directory().to_owned(),
        };
        OpenStackDriver::connect(options, &around).unwrap()
    }

    /// A file with something in every megabyte.
    pub(crate) fn file(&self, name: &str, megabytes: usize) -> PathBuf {
        let path = self.project.directory().join(name);
        let mut content = vec![0_u8; megabytes << 20];
        for (number, place) in content.iter_mut().step_by(4096).enumerate() {
            *place = (number % 251) as u8;
        }
        if name.ends_with(".qcow2") {
            content[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
        }
        std::fs::write(&path, content).unwrap();
        path
    }

    pub(crate) fn order(&self, number: u32, file: PathBuf) -> UploadOrder {
        let format = file.extension().unwrap().to_str().unwrap().into();
        let upload = key(number);
        UploadOrder {
            tags: self.owner().upload_tags(upload.build.build, upload.upload),
            name: format!("disk-{number}").into(),
            file,
            format,
            md5: None,
            sha256: None,
            metadata: [("os", "jammy"), ("min_disk", "1")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            marks: vec!["ci".into()],
            first_attempt: true,
            upload,
        }
    }

    /// What Glance has of this project, straight.
    pub(crate) fn images(&self) -> Vec<Value> {
        self.project.images().unwrap()
    }
}

fn provider() -> ProviderName {
    ProviderName::new("cloud").unwrap()
}

pub(crate) fn key(number: u32) -> UploadKey {
    UploadKey {
        build: BuildKey {
            image: ImageName::new("disk").unwrap(),
            build: BuildId::from_u128(7),
        },
        provider: provider(),
        upload: format!("{number:010}").parse().unwrap(),
    }
}

/// Uploads as a builder does: an error of class `Retry` repeats the operation.
pub(crate) async fn upload(
    driver: &OpenStackDriver,
    order: &UploadOrder,
) -> Result<UploadedImage, Error> {
    upload_reporting(driver, order, &Progress::default()).await
}

pub(crate) async fn upload_reporting(
    driver: &OpenStackDriver,
    order: &UploadOrder,
    progress: &Progress,
) -> Result<UploadedImage, Error> {
    let mut order = order.clone();
    let mut failures = 0;
    loop {
        let uploaded = timeout(PATIENCE, driver.upload(&order, progress)).await;
        match uploaded.expect("an upload in time") {
            Err(error) if error.class() == ErrorClass::Retry && failures < MAX_FAILURES => {
                failures += 1;
            }
            result => return result,
        }
        order.first_attempt = false;
    }
}

/// Runs an upload until it has reported progress `reports` times, and drops it.
pub(crate) async fn interrupted_upload(
    driver: &OpenStackDriver,
    order: &UploadOrder,
    reports: usize,
) {
    let progress = Progress::default();
    let mut reported = progress.subscribe();
    let interruption = async {
        for _ in 0..reports {
            reported.changed().await.unwrap();
        }
    };
    tokio::select! {
        biased;
        _ = driver.upload(order, &progress) => {}
        () = interruption => {}
    }
}

pub(crate) async fn delete(
    driver: &OpenStackDriver,
    number: u32,
    id: Option<&str>,
) -> Result<(), Error> {
    let target = ImageTarget {
        upload: key(number),
        external_id: id.map(ExternalId::from),
    };
    driver.delete_image(&target).await
}
