//! The NoCloud seed: a small disk with the host name and the authorized keys of a machine, for cloud-init.
//!
//! It is a FAT file system with the label that cloud-init searches for. The authorized keys are also in a file of their
//! own, for guests without cloud-init: they mount the disk and copy the file.

use std::io::{Cursor, Write};

use fatfs::{FileSystem, FormatVolumeOptions, FsOptions};
use serde_json::{Map, Value, json};

use crate::host::QemuMachine;
use crate::machine_spec::Seed;

pub(super) const SEED: &str = "seed.img";
const LABEL: [u8; 11] = *b"CIDATA     ";
/// The instance id of a template.
pub(super) const TEMPLATE_INSTANCE: &str = "nodeyard-template";
/// Most seeds have this size: a guest that starts from a template keeps the size of the seed of the template.
const DEFAULT_SIZE: usize = 2 << 20;
/// Space for the tables of the file system.
const OVERHEAD: usize = 512 * 1024;

/// Returns the seed of a machine.
pub(super) fn image(machine: &QemuMachine, seed: &Seed) -> std::io::Result<Vec<u8>> {
    make(machine.id.as_str(), seed)
}

/// Returns the seed of a template.
pub(super) fn template(seed: &Seed) -> std::io::Result<Vec<u8>> {
    make(TEMPLATE_INSTANCE, seed)
}

/// Returns whether a machine with this seed can start from a template.
pub(super) fn fits_template(seed: &Seed) -> bool {
    make(TEMPLATE_INSTANCE, seed).is_ok_and(|disk| disk.len() == DEFAULT_SIZE)
}

fn make(instance: &str, seed: &Seed) -> std::io::Result<Vec<u8>> {
    let files = [
        ("meta-data", meta_data(instance, seed)),
        ("user-data", user_data(seed)),
        ("authorized_keys", keys_file(seed)),
    ];
    let content: usize = files.iter().map(|(_, text)| text.len()).sum();
    // In whole sectors.
    let size = (content + OVERHEAD).next_multiple_of(512);
    let mut disk = Cursor::new(vec![0; size]);
    fatfs::format_volume(&mut disk, FormatVolumeOptions::new().volume_label(LABEL))?;
    {
        let system = FileSystem::new(&mut disk, FsOptions::new())?;
        let root = system.root_dir();
        for (name, text) in files {
            root.create_file(name)?.write_all(text.as_bytes())?;
        }
    }
    let mut disk = disk.into_inner();
    disk.resize(size.max(DEFAULT_SIZE), 0);
    Ok(disk)
}

/// JSON is valid YAML.
fn meta_data(instance: &str, seed: &Seed) -> String {
    json!({
        "instance-id": instance,
        "local-hostname": seed.hostname,
        "public-keys": seed.authorized_keys,
    })
    .to_string()
}

/// Returns the user data of the label unchanged, or else a configuration that lets the user log in.
fn user_data(seed: &Seed) -> String {
    if let Some(text) = &seed.userdata {
        return text.to_string();
    }
    let mut config = Map::new();
    match seed.username.as_deref() {
        None => {}
        Some("root") => {
            config.insert("disable_root".to_owned(), false.into());
        }
        Some(name) => {
            config.insert("user".to_owned(), name.into());
        }
    }
    format!("#cloud-config\n{}\n", Value::Object(config))
}

fn keys_file(seed: &Seed) -> String {
    let keys = seed.authorized_keys.iter();
    keys.map(|key| format!("{key}\n")).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use nodeyard_driver::Tags;
    use nodeyard_model::Timestamp;

    use super::*;
    use crate::host::LocalId;

    fn read_back(seed: &Seed) -> (String, [String; 3]) {
        let machine = QemuMachine {
            id: LocalId::parse("np1-abc").unwrap(),
            name: "np1".into(),
            tags: Tags::default(),
            upload: None,
            cpus: 1,
            memory: 1,
            mac: "52:54:00:01:02:03".into(),
            created: Timestamp::from_secs(0.0).unwrap(),
            deleting: false,
            process: None,
        };
        let disk = image(&machine, seed).unwrap();
        let system = FileSystem::new(Cursor::new(disk), FsOptions::new()).unwrap();
        let texts = ["meta-data", "user-data", "authorized_keys"].map(|name| {
            let mut text = String::new();
            let mut file = system.root_dir().open_file(name).unwrap();
            file.read_to_string(&mut text).unwrap();
            text
        });
        (system.volume_label(), texts)
    }

    #[test]
    fn a_seed_contains_the_host_name_and_the_keys() {
        let mut seed = Seed {
            hostname: "np1".into(),
            authorized_keys: vec!["ssh-ed25519 A \"quoted\" comment".into()],
            userdata: None,
            username: Some("zuul".into()),
        };
        let (label, [meta, user, keys]) = read_back(&seed);
        assert_eq!(label.trim(), "CIDATA");
        let meta: Value = serde_json::from_str(&meta).unwrap();
        assert_eq!(meta["instance-id"], "np1-abc");
        assert_eq!(meta["local-hostname"], "np1");
        assert_eq!(meta["public-keys"][0], "ssh-ed25519 A \"quoted\" comment");
        assert_eq!(user, "#cloud-config\n{\"user\":\"zuul\"}\n");
        assert_eq!(keys, "ssh-ed25519 A \"quoted\" comment\n");
        seed.username = Some("root".into());
        assert_eq!(
            read_back(&seed).1[1],
            "#cloud-config\n{\"disable_root\":false}\n"
        );
    }

    #[test]
    fn user_data_is_passed_on_whatever_its_size() {
        for size in [0, 1, 511, 512, 16 << 10, 5 << 20] {
            let text: String = "#cloud-config\n".chars().cycle().take(size).collect();
            let seed = Seed {
                userdata: Some(text.as_str().into()),
                ..Seed::default()
            };
            assert!(read_back(&seed).1[1] == text, "{size} bytes");
        }
    }
}
