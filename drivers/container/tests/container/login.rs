//! Containers that are logged in to.

use std::path::Path;
use std::process::Command;

use nodeyard_driver::{Instance, Machines};
use nodeyard_driver_container::{
    ContainerAccess, ContainerCloudImageOptions, ContainerImage, ContainerImageChoice,
    ContainerLabelOptions, Options,
};
use nodeyard_model::ConnectionPort;
use nodeyard_testbeds::ContainerRuntime;
use nodeyard_testbeds::containers::Kind;
use tempfile::TempDir;

use crate::common::{IMAGE, count, create, delete, driver, on_both_runtimes, options, order};

on_both_runtimes!(
    a_fresh_key_logs_in_to_a_fresh_machine,
    machines_of_one_image_have_host_keys_of_their_own,
    the_configured_user_logs_in_even_without_a_home,
    a_machine_by_exec_has_no_port,
);

/// A key that did not exist a moment ago.
struct Key {
    directory: TempDir,
}

impl Key {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let made = Command::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-C", "test", "-f"])
            .arg(directory.path().join("key"))
            .status()
            .unwrap();
        assert!(made.success());
        Self { directory }
    }

    fn path(&self) -> std::path::PathBuf {
        self.directory.path().join("key")
    }

    fn public(&self) -> Box<str> {
        let public = std::fs::read_to_string(self.path().with_extension("pub")).unwrap();
        public.trim().into()
    }

    /// Runs a command on the machine, which must show one of the host keys that its record has.
    fn login(&self, instance: &Instance, user: &str, command: &str) -> Result<String, String> {
        let Some(ConnectionPort::Number(port)) = instance.connection_port else {
            panic!("{instance:?}");
        };
        let address = instance.interface_ip.as_deref().unwrap();
        let known = self.directory.path().join("known_hosts");
        let lines = instance.host_keys.iter();
        let lines: String = lines
            .map(|key| format!("[{address}]:{port} {key}\n"))
            .collect();
        std::fs::write(&known, lines).unwrap();
        ssh(
            &self.path(),
            &known,
            &format!("{user}@{address}"),
            port,
            command,
        )
    }
}

fn ssh(key: &Path, known: &Path, who: &str, port: u16, command: &str) -> Result<String, String> {
    let output = Command::new("ssh")
        .args([
            "-F",
            "none",
            "-o",
            "BatchMode=yes",
            "-o",
            "IdentitiesOnly=yes",
        ])
        .args(["-o", "StrictHostKeyChecking=yes", "-o", "ConnectTimeout=20"])
        .arg("-o")
        .arg(format!("UserKnownHostsFile={}", known.display()))
        .args(["-p", &port.to_string(), "-i"])
        .arg(key)
        .args([who, command])
        .output()
        .unwrap();
    if output.status.success() {
        Ok(String::from_utf8(output.stdout).unwrap().trim().to_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

fn with_key(system: &str, key: &Key, label: impl FnOnce(&mut ContainerLabelOptions)) -> Options {
    options(system, |small| {
        small.authorized_keys = vec![key.public()];
        label(small);
    })
}

async fn a_fresh_key_logs_in_to_a_fresh_machine(runtime: &ContainerRuntime) {
    let key = Key::new();
    let driver = driver(runtime, with_key("login", &key, |_| {}));
    let order = order("login", 1);
    let begun = std::time::Instant::now();
    let instance = create(&driver, &order).await.unwrap();
    eprintln!("from order to host keys: {:?}", begun.elapsed());

    // Nobody said who logs in, so the image decides, and the record says so.
    assert_eq!(instance.username.as_deref(), Some("zuul"));
    assert_eq!(instance.interface_ip.as_deref(), Some("127.0.0.1"));
    let kinds: Vec<_> = instance
        .host_keys
        .iter()
        .map(|key| key.split(' ').next().unwrap())
        .collect();
    assert_eq!(kinds, ["ssh-ed25519", "ecdsa-sha2-nistp256"]);

    let said = key
        .login(&instance, "zuul", "id -un; hostname; echo ~")
        .unwrap();
    assert_eq!(said, "zuul\nnp0000000001\n/home/zuul");
    let refused = key.login(&instance, "root", "id -un").unwrap_err();
    assert!(refused.contains("Permission denied"), "{refused}");
    let stranger = Key::new();
    let refused = stranger.login(&instance, "zuul", "id -un").unwrap_err();
    assert!(refused.contains("Permission denied"), "{refused}");

    delete(&driver, &order).await;
    assert_eq!(count(&driver, "login").await, 0);
}

async fn machines_of_one_image_have_host_keys_of_their_own(runtime: &ContainerRuntime) {
    let key = Key::new();
    let driver = driver(runtime, with_key("twins", &key, |_| {}));
    let (first, second) = (order("twins", 1), order("twins", 2));
    let (one, two) = tokio::join!(create(&driver, &first), create(&driver, &second));
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_ne!(one.connection_port, two.connection_port);
    assert!(one.host_keys.iter().all(|key| !two.host_keys.contains(key)));
    delete(&driver, &first).await;
    // Its twin goes on.
    assert_eq!(key.login(&two, "zuul", "hostname").unwrap(), "np0000000002");
    delete(&driver, &second).await;
}

async fn the_configured_user_logs_in_even_without_a_home(runtime: &ContainerRuntime) {
    let key = Key::new();
    let mut options = with_key("homeless", &key, |label| {
        label.image = ContainerImage::Cloud("base".into());
        label.ssh_port = 2222;
    });
    options.cloud_images = vec![ContainerCloudImageOptions {
        name: "base".into(),
        choice: ContainerImageChoice::Reference(IMAGE.into()),
        username: Some("homeless".into()),
    }];
    let driver = driver(runtime, options);
    let order = order("homeless", 1);
    let instance = create(&driver, &order).await.unwrap();
    assert_eq!(instance.username, None, "the record knows it already");
    let said = key.login(&instance, "homeless", "id -un; touch ~/mine && echo done");
    assert_eq!(said.unwrap(), "homeless\ndone");
    delete(&driver, &order).await;
}

async fn a_machine_by_exec_has_no_port(runtime: &ContainerRuntime) {
    let options = options("exec", |label| label.access = ContainerAccess::Exec);
    let driver = driver(runtime, options);
    let order = order("exec", 1);
    let instance = create(&driver, &order).await.unwrap();
    let expected = match runtime.kind() {
        Kind::Podman => "podman",
        Kind::Docker => "docker",
    };
    assert_eq!(instance.connection_type.as_deref(), Some(expected));
    assert_eq!(instance.connection_port, Some(ConnectionPort::Null));
    let name = instance.interface_ip.as_deref().unwrap();
    assert_eq!(runtime.exec(name, &["hostname"]).unwrap(), "np0000000001");
    let evidence = driver.evidence(&order.pool, &order.label, &instance.external_id);
    assert!(evidence.await.unwrap().unwrap().contains("running"));
    delete(&driver, &order).await;
}
