//! Decides whether machines run under KVM, by a trial with a small guest.
//!
//! Access to `/dev/kvm` proves little: inside another virtual machine a guest may still stall or crash. So a guest runs
//! with the processor and board of machines, and KVM is used only if it succeeds. The result is stored with everything
//! it depends on, and the trial is repeated when the host, QEMU or the configuration changes. A machine that fails under
//! KVM after a successful trial overrules it ([`AcceleratorSelector::reject_kvm`]).

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nodeyard_config::Accelerator;
use nodeyard_driver::Error;
use rustix::fs::{Access, access};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use tokio::sync::Mutex;
use tokio::time::timeout;
use tracing::{info, warn};

use super::arguments::{QemuAccelerator, base};
use super::disk::write_atomically;
use super::start::{find_program, qemu_error};
use crate::options::{Options, host_architecture};

const RESULT: &str = "accelerator.json";
const SECTOR: &str = "accelerator.img";
/// A guest under KVM needs a second or two on an idle host.
const TRIAL_LIMIT: Duration = Duration::from_secs(60);

/// The accelerator for a provider's machines, determined once.
#[derive(Debug, Default)]
pub(super) struct AcceleratorSelector {
    result: Mutex<Option<KvmTrial>>,
}

/// The result of a trial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct KvmTrial {
    /// Everything that the result depends on.
    circumstances: String,
    works: bool,
    /// For people.
    reason: String,
}

impl AcceleratorSelector {
    pub(super) async fn choose(&self, options: &Options) -> Result<QemuAccelerator, Error> {
        match options.accelerator {
            Accelerator::Kvm => Ok(QemuAccelerator::Kvm),
            Accelerator::Tcg => Ok(QemuAccelerator::Tcg),
            Accelerator::Auto if *options.architecture != *host_architecture() => {
                Ok(QemuAccelerator::Tcg)
            }
            Accelerator::Auto => {
                let circumstances = circumstances(options);
                let mut known = self.result.lock().await;
                let file = options.directory.join(RESULT);
                let stored = || serde_json::from_slice::<KvmTrial>(&fs::read(&file).ok()?).ok();
                let earlier = known.take().or_else(stored);
                let trial = match earlier.filter(|trial| trial.circumstances == circumstances) {
                    Some(trial) => trial,
                    None => {
                        let trial = run_trial(options, QemuAccelerator::Kvm, circumstances).await?;
                        info!(
                            works = trial.works,
                            reason = trial.reason,
                            "finished KVM trial"
                        );
                        store(&file, &trial);
                        trial
                    }
                };
                let works = trial.works;
                *known = Some(trial);
                Ok(if works {
                    QemuAccelerator::Kvm
                } else {
                    QemuAccelerator::Tcg
                })
            }
        }
    }

    /// Records that a machine failed under KVM, so that all machines run under TCG from now on. Returns false, and
    /// changes nothing, where the configuration asks for KVM.
    pub(super) async fn reject_kvm(&self, options: &Options, reason: &str) -> bool {
        if options.accelerator != Accelerator::Auto {
            return false;
        }
        let trial = KvmTrial {
            circumstances: circumstances(options),
            works: false,
            reason: format!("a machine failed: {reason}"),
        };
        warn!(reason, "KVM failed to run a machine; using TCG from now on");
        let mut known = self.result.lock().await;
        store(&options.directory.join(RESULT), &trial);
        *known = Some(trial);
        true
    }
}

/// Stores a result. If that fails, the next process repeats the trial.
fn store(file: &Path, trial: &KvmTrial) {
    let stored = serde_json::to_vec_pretty(trial)
        .map_err(std::io::Error::from)
        .and_then(|text| write_atomically(file, &text));
    if let Err(error) = stored {
        warn!(file = %file.display(), %error, "failed to store the result of the KVM trial");
    }
}

fn can_open_device(options: &Options) -> bool {
    access(&options.kvm, Access::READ_OK | Access::WRITE_OK).is_ok()
}

/// Describes the host, QEMU, and the part of the configuration that a guest depends on.
fn circumstances(options: &Options) -> String {
    let uname = rustix::system::uname();
    let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let processor = |key: &str| {
        let line = processors.lines().find(|line| line.starts_with(key));
        line.unwrap_or_default().to_owned()
    };
    let age = |path: Option<PathBuf>| {
        let path = path?;
        let metadata = fs::metadata(&path).ok()?;
        Some(format!(
            "{} {} {}",
            path.display(),
            metadata.size(),
            metadata.mtime()
        ))
    };
    format!(
        "{}; {:?} {:?}; {}; {}; {:?}; {:?}; {:?}; {:?}",
        can_open_device(options),
        uname.release(),
        uname.version(),
        processor("model name"),
        processor("flags"),
        age(find_program(&options.binary)),
        options.machine,
        age(options
            .firmware
            .as_ref()
            .map(|firmware| firmware.image.clone())),
        age(kernel(options)),
    )
}

/// Returns a kernel for the trial: one that machines boot, or else that of the host if it is readable.
fn kernel(options: &Options) -> Option<PathBuf> {
    let mut labels = options.pools.iter().flat_map(|pool| &pool.labels);
    labels
        .find_map(|label| label.kernel.clone())
        .or_else(|| host_kernel(options))
}

/// Configured firmware may reject a kernel from the command line, so that only the default firmware gets that of the host.
fn host_kernel(options: &Options) -> Option<PathBuf> {
    if options.firmware.is_some() || *options.architecture != *host_architecture() {
        return None;
    }
    let release = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    let path = Path::new("/boot").join(format!("vmlinuz-{release}"));
    access(&path, Access::READ_OK).is_ok().then_some(path)
}

/// Runs a guest until it works or fails.
async fn run_trial(
    options: &Options,
    accelerator: QemuAccelerator,
    circumstances: String,
) -> Result<KvmTrial, Error> {
    if !can_open_device(options) {
        return Ok(KvmTrial {
            circumstances,
            works: false,
            reason: format!(
                "failed to open {}; on Debian its users are in the group kvm",
                options.kvm.display()
            ),
        });
    }
    let (guest, sign) = guest(options)?;
    let mut arguments = base(options, accelerator);
    arguments.extend(["-m", "256M", "-serial", "stdio", "-no-reboot"].map(ToOwned::to_owned));
    arguments.extend(guest);
    let mut child = Command::new(&*options.binary)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|cause| qemu_error(options, cause))?;
    let mut seen = Vec::new();
    let works = match child.stdout.take() {
        Some(output) => timeout(TRIAL_LIMIT, prints(output, &sign, &mut seen)).await,
        None => Ok(false),
    };
    let reason = match works {
        Ok(true) => "a guest ran".to_owned(),
        Ok(false) => {
            let mut errors_text = String::new();
            if let Some(errors) = child.stderr.take() {
                let reading = async { errors.take(2000).read_to_string(&mut errors_text).await };
                // A part of the errors is enough.
                let _read = timeout(Duration::from_secs(1), reading).await;
            }
            format!("the guest exited: {}", errors_text.trim())
        }
        Err(_) => format!("the guest did not boot within {TRIAL_LIMIT:?}"),
    };
    Ok(KvmTrial {
        circumstances,
        works: works.unwrap_or(false),
        reason,
    })
}

/// Returns whether the output contains `sign`.
async fn prints(mut output: impl AsyncReadExt + Unpin, sign: &[u8], seen: &mut Vec<u8>) -> bool {
    let mut chunk = [0; 4096];
    loop {
        match output.read(&mut chunk).await {
            Ok(0) | Err(_) => return false,
            Ok(count) => seen.extend(chunk.iter().take(count)),
        }
        if seen
            .windows(sign.len().max(1))
            .any(|window| window.starts_with(sign))
        {
            return true;
        }
    }
}

/// Returns the arguments of a trial's guest, and what it writes to its serial port when it works.
///
/// A kernel runs until it finds no root file system. Without a kernel, a boot sector switches the processor through its
/// modes. Configured firmware, or that of other architectures, does not boot this sector, but writes something.
fn guest(options: &Options) -> Result<(Vec<String>, Vec<u8>), Error> {
    if let Some(kernel) = kernel(options) {
        let console = match &*options.architecture {
            "aarch64" | "arm" => "ttyAMA0",
            _ => "ttyS0",
        };
        let text = format!("console={console} panic=-1");
        let arguments = ["-kernel", &kernel.to_string_lossy(), "-append", &text];
        return Ok((
            arguments.map(ToOwned::to_owned).into(),
            b"Kernel panic".into(),
        ));
    }
    if &*options.architecture != "x86_64" || options.firmware.is_some() {
        return Ok((Vec::new(), Vec::new()));
    }
    let file = options.directory.join(SECTOR);
    write_atomically(&file, BOOT_SECTOR).map_err(|cause| {
        Error::retry(format!("failed to write {}", file.display())).because(cause)
    })?;
    let path = file.to_string_lossy().replace(',', ",,");
    let drive = format!("file={path},format=raw,if=ide,snapshot=on");
    Ok((vec!["-drive".to_owned(), drive], SIGN.into()))
}

const SIGN: &[u8] = b"the guest runs\n";

/// A boot sector that writes [`SIGN`] to the first serial port after it switched the processor through its modes. Its
/// source is `trial.S`.
const BOOT_SECTOR: &[u8; 512] = include_bytes!("trial.bin");

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_boot_sector_is_what_its_source_assembles_to() {
        let directory = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/local/trial.S");
        let (object, binary) = (
            directory.path().join("trial.o"),
            directory.path().join("trial.bin"),
        );
        let run = |command: &mut Command| assert!(command.status().unwrap().success());
        run(Command::new("as").arg("-o").arg(&object).arg(&source));
        run(Command::new("ld")
            .args([
                "-m",
                "elf_x86_64",
                "-Ttext=0x7c00",
                "--oformat",
                "binary",
                "-o",
            ])
            .arg(&binary)
            .arg(&object));
        assert_eq!(fs::read(&binary).unwrap(), BOOT_SECTOR);
        assert!(BOOT_SECTOR.windows(SIGN.len()).any(|window| window == SIGN));
    }
}
