//! The NoCloud seed: a small disk from which cloud-init reads who the machine is and who may log in.
//!
//! It is a FAT file system with the label that cloud-init looks for. The authorized keys also lie in a file of their
//! own, for guests that have no cloud-init: mounting the disk and copying the file is all they need.

use std::io::{Cursor, Write};

use fatfs::{FileSystem, FormatVolumeOptions, FsOptions};
use serde_json::{Map, Value, json};

use crate::host::Machine;
use crate::recipe::Seed;

pub(super) const SEED: &str = "seed.img";
const LABEL: [u8; 11] = *b"CIDATA     ";
/// Room for the tables of the file system.
const OVERHEAD: usize = 512 * 1024;

/// The bytes of the disk.
pub(super) fn image(machine: &Machine, seed: &Seed) -> std::io::Result<Vec<u8>> {
    let files = [
        ("meta-data", meta_data(machine, seed)),
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
    Ok(disk.into_inner())
}

/// JSON is YAML, and cannot be misread.
fn meta_data(machine: &Machine, seed: &Seed) -> String {
    json!({
        "instance-id": machine.id,
        "local-hostname": seed.hostname,
        "public-keys": seed.authorized_keys,
    })
    .to_string()
}

/// What the operator wrote, untouched; otherwise what makes the given user able to log in.
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
