//! Disks: headers of images, the copy-on-write disk of a machine, and copies of images.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nodeyard_driver::{Error, Progress};
use rustix::fs::{SeekFrom, ioctl_ficlone, seek};
use tokio::process::Command;

use super::file_error;
use crate::machine_spec::{DiskFormat, MachineSpec};
use crate::options::Options;

/// The disk in the directory of a machine.
pub(super) const DISK: &str = "disk.qcow2";
/// The variables of the firmware in the directory of a machine.
pub(super) const VARIABLES: &str = "variables.fd";
const GIB: u64 = 1 << 30;

/// The header of a disk image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DiskHeader {
    pub(crate) format: DiskFormat,
    /// The virtual size in bytes.
    pub(crate) size: u64,
    /// Whether it refers to other files.
    pub(crate) names_others: bool,
}

/// Reads the header of an image. An image without the magic of qcow2 is raw.
pub(crate) fn inspect(path: &Path) -> io::Result<DiskHeader> {
    const MAGIC: &[u8] = b"QFI\xfb";
    const EXTERNAL_DATA: u64 = 1 << 2;
    let file = File::open(path)?;
    let mut bytes = Vec::new();
    (&file).take(80).read_to_end(&mut bytes)?;
    if !bytes.starts_with(MAGIC) {
        return Ok(DiskHeader {
            format: DiskFormat::Raw,
            size: file.metadata()?.len(),
            names_others: false,
        });
    }
    let number = |at: usize| {
        let field = bytes.get(at..at + 8)?.try_into().ok()?;
        Some(u64::from_be_bytes(field))
    };
    let damaged = || io::Error::new(io::ErrorKind::InvalidData, "the qcow2 header is truncated");
    let version = number(0).ok_or_else(damaged)? & 0xffff_ffff;
    let backing = number(8).ok_or_else(damaged)?;
    let size = number(24).ok_or_else(damaged)?;
    let features = if version >= 3 {
        number(72).ok_or_else(damaged)?
    } else {
        0
    };
    Ok(DiskHeader {
        format: DiskFormat::Qcow2,
        size,
        names_others: backing != 0 || features & EXTERNAL_DATA != 0,
    })
}

/// Creates the disk of a machine on top of its image. Replaces an existing one.
pub(super) async fn make_overlay(directory: &Path, spec: &MachineSpec) -> Result<(), Error> {
    let backing = spec.backing.display();
    let header = inspect(&spec.backing).map_err(|cause| {
        Error::permanent(format!("failed to read image {backing}")).because(cause)
    })?;
    let size = header
        .size
        .max(spec.disk_size.unwrap_or(0).saturating_mul(GIB));
    // A unique name: the program may outlive this call, and must not disturb the next one.
    let draft = directory.join(format!("{}.{DISK}", uuid::Uuid::new_v4().simple()));
    let mut command = Command::new("qemu-img");
    // The format is stated, never detected: a guest could make its raw disk look like one that refers to a file of
    // this host.
    command
        .args([
            "create",
            "-q",
            "-f",
            "qcow2",
            "-F",
            spec.format.as_str(),
            "-b",
        ])
        .arg(&spec.backing)
        .arg(&draft)
        .arg(size.to_string())
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = command
        .output()
        .await
        .map_err(|cause| missing_tool("qemu-img", "qemu-utils", cause))?;
    if output.status.success() {
        return fs::rename(&draft, directory.join(DISK)).map_err(|cause| {
            Error::retry(format!("failed to create a disk on top of {backing}")).because(cause)
        });
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(disk_error(
        format!(
            "failed to create a disk on top of {backing}: {}",
            text.trim()
        ),
        &text,
    ))
}

/// Copies the variables of the firmware, if it has some.
pub(super) fn copy_variables(directory: &Path, options: &Options) -> Result<(), Error> {
    let firmware = options.firmware.as_ref();
    let Some(source) = firmware.and_then(|firmware| firmware.variables.as_ref()) else {
        return Ok(());
    };
    let bytes = fs::read(source).map_err(|cause| {
        let text = format!("failed to read `firmware-variables` {}", source.display());
        Error::permanent(text).because(cause)
    })?;
    // The permissions are not copied: the source may be read-only.
    fs::write(directory.join(VARIABLES), bytes)
        .map_err(|cause| file_error("copy the variables of the firmware", cause))
}

pub(super) fn missing_tool(program: &str, package: &str, cause: io::Error) -> Error {
    let text = match cause.kind() {
        io::ErrorKind::NotFound => {
            format!("{program} is not installed; on Debian it is in {package}")
        }
        _ => format!("failed to run {program}"),
    };
    Error::permanent(text).because(cause)
}

/// A full disk is a lack of capacity.
fn disk_error(text: String, output: &str) -> Error {
    if output.contains("No space left") {
        Error::new(nodeyard_driver::ErrorClass::Capacity, text)
    } else {
        Error::permanent(text)
    }
}

/// Copies `source` to `target` atomically. Shares the blocks where the file system supports it, or makes a hard link:
/// images are never written to.
pub(super) async fn copy_image(
    source: &Path,
    target: &Path,
    progress: &Progress,
) -> io::Result<()> {
    let (source, target) = (source.to_owned(), target.to_owned());
    let progress = progress.clone();
    let cancelled = Arc::new(AtomicBool::new(false));
    let _guard = SetOnDrop(Arc::clone(&cancelled));
    let task = tokio::task::spawn_blocking(move || {
        let directory = target.parent().unwrap_or(Path::new("."));
        if target.exists() {
            return Ok(());
        }
        let part = tempfile::Builder::new()
            .prefix(".part-")
            .tempfile_in(directory)?;
        let from = File::open(&source)?;
        if ioctl_ficlone(part.as_file(), &from).is_err() {
            if fs::hard_link(&source, &target).is_ok() {
                return Ok(());
            }
            copy_data(&from, part.as_file(), &progress, &cancelled)?;
        }
        part.as_file().sync_all()?;
        part.persist(&target)?;
        Ok(())
    });
    task.await.map_err(io::Error::other)?
}

/// Cancels the copy when the caller drops it.
struct SetOnDrop(Arc<AtomicBool>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Copies the data and leaves out the holes.
fn copy_data(
    from: &File,
    to: &File,
    progress: &Progress,
    cancelled: &AtomicBool,
) -> io::Result<()> {
    let length = from.metadata()?.len();
    to.set_len(length)?;
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    while at < length {
        let data = match seek(from, SeekFrom::Data(at)) {
            Ok(data) => data,
            // No more data.
            Err(rustix::io::Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let end = seek(from, SeekFrom::Hole(data))?.min(length);
        at = data;
        while at < end {
            if cancelled.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let want = usize::try_from(end - at)
                .unwrap_or(usize::MAX)
                .min(buffer.len());
            let Some(chunk) = buffer.get_mut(..want) else {
                break;
            };
            from.read_exact_at(chunk, at)?;
            to.write_all_at(chunk, at)?;
            at += want as u64;
            progress.set_bytes(at, length);
        }
    }
    Ok(())
}

/// Replaces a small file atomically.
pub(super) fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new()
        .prefix(".part-")
        .tempfile_in(directory)?;
    file.write_all(bytes)?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn header(backing: u64, features: u64) -> Vec<u8> {
        let mut bytes = vec![0; 104];
        bytes[..4].copy_from_slice(b"QFI\xfb");
        bytes[7] = 3;
        bytes[8..16].copy_from_slice(&backing.to_be_bytes());
        bytes[24..32].copy_from_slice(&(5 * GIB).to_be_bytes());
        bytes[72..80].copy_from_slice(&features.to_be_bytes());
        bytes
    }

    #[test]
    fn images_that_refer_to_other_files_are_detected() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        let look = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            inspect(&path)
        };
        let complete = look(&header(0, 0)).unwrap();
        assert_eq!(
            (complete.format, complete.size, complete.names_others),
            (DiskFormat::Qcow2, 5 * GIB, false)
        );
        assert!(look(&header(104, 0)).unwrap().names_others);
        assert!(look(&header(0, 4)).unwrap().names_others);
        assert!(look(b"QFI\xfb").is_err());
        let raw = look(&[7; 1000]).unwrap();
        assert_eq!(
            (raw.format, raw.size, raw.names_others),
            (DiskFormat::Raw, 1000, false)
        );
        assert_eq!(look(b"").unwrap().size, 0);
    }

    #[test]
    fn holes_stay_holes() {
        let directory = tempfile::tempdir().unwrap();
        let from = File::create_new(directory.path().join("from")).unwrap();
        from.set_len(64 << 20).unwrap();
        from.write_all_at(b"begin", 0).unwrap();
        from.write_all_at(b"middle", (32 << 20) + 3).unwrap();
        let from = File::open(directory.path().join("from")).unwrap();
        let to = File::create_new(directory.path().join("to")).unwrap();
        copy_data(&from, &to, &Progress::default(), &AtomicBool::new(false)).unwrap();
        let metadata = fs::metadata(directory.path().join("to")).unwrap();
        assert_eq!(metadata.len(), 64 << 20);
        assert!(metadata.blocks() * 512 < 4 << 20);
        let bytes = |name| fs::read(directory.path().join(name)).unwrap();
        assert!(bytes("from") == bytes("to"));
        let stop = copy_data(&from, &to, &Progress::default(), &AtomicBool::new(true));
        assert_eq!(stop.unwrap_err().kind(), io::ErrorKind::Interrupted);
    }

    #[tokio::test]
    async fn an_image_is_copied_once_and_outlives_its_source() {
        let directory = tempfile::tempdir().unwrap();
        let (source, target) = (
            directory.path().join("source"),
            directory.path().join("target"),
        );
        fs::write(&source, b"bytes").unwrap();
        copy_image(&source, &target, &Progress::default())
            .await
            .unwrap();
        fs::remove_file(&source).unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"bytes");
        copy_image(&source, &target, &Progress::default())
            .await
            .unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
