//! Whether KVM really works here, found out by running a guest.
//!
//! That `/dev/kvm` opens says little: inside another virtual machine a guest may stall or die all the same. So a
//! small guest is run with the very processor and board that machines get, and KVM is used only if the guest gets
//! somewhere. The result is kept in a file together with what it depends on, so that it is found out again when the
//! host, QEMU or the configuration has changed.

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
use tracing::info;

use super::arguments::{Engine, base};
use super::disk::write_atomically;
use super::launch::{find_program, qemu_error};
use crate::options::{Options, host_architecture};

const RESULT: &str = "accelerator.json";
const SECTOR: &str = "accelerator.img";
/// A guest that KVM runs needs a second or two on an idle host.
const PATIENCE: Duration = Duration::from_secs(60);

/// Decides once, whoever asks.
#[derive(Debug, Default)]
pub(super) struct Accelerators {
    result: Mutex<Option<Trial>>,
}

/// What a trial came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Trial {
    /// All that the result depends on.
    circumstances: String,
    works: bool,
    /// For people.
    reason: String,
}

impl Accelerators {
    pub(super) async fn choose(&self, options: &Options) -> Result<Engine, Error> {
        match options.accelerator {
            Accelerator::Kvm => Ok(Engine::Kvm),
            Accelerator::Tcg => Ok(Engine::Tcg),
            Accelerator::Auto if *options.architecture != *host_architecture() => Ok(Engine::Tcg),
            Accelerator::Auto => {
                let circumstances = circumstances(options);
                let mut known = self.result.lock().await;
                let file = options.directory.join(RESULT);
                let stored = || serde_json::from_slice::<Trial>(&fs::read(&file).ok()?).ok();
                let earlier = known.take().or_else(stored);
                let trial = match earlier.filter(|trial| trial.circumstances == circumstances) {
                    Some(trial) => trial,
                    None => {
                        let trial = try_out(options, Engine::Kvm, circumstances).await?;
                        info!(
                            works = trial.works,
                            reason = trial.reason,
                            "KVM was tried out"
                        );
                        // The next process finds out again if this one cannot keep it.
                        let _kept = serde_json::to_vec_pretty(&trial)
                            .map(|text| write_atomically(&file, &text));
                        trial
                    }
                };
                let works = trial.works;
                *known = Some(trial);
                Ok(if works { Engine::Kvm } else { Engine::Tcg })
            }
        }
    }
}

fn can_open_device(options: &Options) -> bool {
    access(&options.kvm, Access::READ_OK | Access::WRITE_OK).is_ok()
}

/// The host, QEMU and the part of the configuration that a guest's start depends on.
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
        age(kernel(options).map(Into::into)),
    )
}

/// A kernel that machines boot is the best guest for a trial.
fn kernel(options: &Options) -> Option<&Path> {
    let labels = options.pools.iter().flat_map(|pool| &pool.labels);
    labels.into_iter().find_map(|label| label.kernel.as_deref())
}

/// Runs a guest until it shows that it works, or does not.
async fn try_out(options: &Options, engine: Engine, circumstances: String) -> Result<Trial, Error> {
    if !can_open_device(options) {
        return Ok(Trial {
            circumstances,
            works: false,
            reason: format!(
                "{} cannot be opened; on Debian its users are in the group kvm",
                options.kvm.display()
            ),
        });
    }
    let (guest, sign) = guest(options)?;
    let mut arguments = base(options, engine);
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
        Some(output) => timeout(PATIENCE, shows(output, &sign, &mut seen)).await,
        None => Ok(false),
    };
    let reason = match works {
        Ok(true) => "a guest ran".to_owned(),
        Ok(false) => {
            let mut said = String::new();
            if let Some(errors) = child.stderr.take() {
                let reading = async { errors.take(2000).read_to_string(&mut said).await };
                // Whatever has been read by then will do.
                let _read = timeout(Duration::from_secs(1), reading).await;
            }
            format!("the guest ended: {}", said.trim())
        }
        Err(_) => format!("the guest got nowhere within {PATIENCE:?}"),
    };
    Ok(Trial {
        circumstances,
        works: works.unwrap_or(false),
        reason,
    })
}

/// Whether `sign` appears before the end.
async fn shows(mut output: impl AsyncReadExt + Unpin, sign: &[u8], seen: &mut Vec<u8>) -> bool {
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

/// Arguments for the guest of a trial, and what it writes to its serial port when it works.
///
/// A kernel runs until it finds no root file system. Without one, a boot sector switches the processor through its
/// modes. Firmware of the operator's, or of other architectures, boots no such sector, but says something.
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
    write_atomically(&file, &boot_sector()).map_err(|cause| {
        Error::retry(format!("{} cannot be written", file.display())).because(cause)
    })?;
    let path = file.to_string_lossy().replace(',', ",,");
    let drive = format!("file={path},format=raw,if=ide,snapshot=on");
    Ok((vec!["-drive".to_owned(), drive], SIGN.into()))
}

const SIGN: &[u8] = b"the guest runs\n";

/// Goes from real mode through protected mode and paging to 64-bit mode, and writes [`SIGN`] to the first serial
/// port from there. The firmware loads it to 0x7c00.
fn boot_sector() -> Vec<u8> {
    #[rustfmt::skip]
    const CODE: &[u8] = &[
        0xfa,                               // cli
        0x31, 0xc0,                         // xor ax, ax
        0x8e, 0xd8,                         // mov ds, ax
        0x8e, 0xc0,                         // mov es, ax
        // Three page tables at 0x1000, which map the first 2 MiB to themselves.
        0x66, 0xbf, 0x00, 0x10, 0x00, 0x00, // mov edi, 0x1000
        0x0f, 0x22, 0xdf,                   // mov cr3, edi
        0x66, 0x31, 0xc0,                   // xor eax, eax
        0xb9, 0x00, 0x0c,                   // mov cx, 3072
        0xfc,                               // cld
        0x66, 0xf3, 0xab,                   // rep stosd
        0xc7, 0x06, 0x00, 0x10, 0x03, 0x20, // mov word [0x1000], 0x2003
        0xc7, 0x06, 0x00, 0x20, 0x03, 0x30, // mov word [0x2000], 0x3003
        0xc7, 0x06, 0x00, 0x30, 0x83, 0x00, // mov word [0x3000], 0x0083
        // Physical address extension, long mode, protection and paging.
        0xb0, 0x20,                         // mov al, 0x20
        0x0f, 0x22, 0xe0,                   // mov cr4, eax
        0x66, 0xb9, 0x80, 0x00, 0x00, 0xc0, // mov ecx, 0xc0000080
        0x0f, 0x32,                         // rdmsr
        0x80, 0xcc, 0x01,                   // or ah, 1
        0x0f, 0x30,                         // wrmsr
        0x66, 0x0f, 0x01, 0x16, 0x77, 0x7c, // lgdt [0x7c77]
        0x0f, 0x20, 0xc0,                   // mov eax, cr0
        0x66, 0x0d, 0x01, 0x00, 0x00, 0x80, // or eax, 0x80000001
        0x0f, 0x22, 0xc0,                   // mov cr0, eax
        0xea, 0x55, 0x7c, 0x08, 0x00,       // jmp 8:0x7c55
        // 64-bit from here.
        0xbe, 0x7d, 0x7c, 0x00, 0x00,       // mov esi, 0x7c7d
        0x66, 0xba, 0xf8, 0x03,             // mov dx, 0x3f8
        0xac,                               // lodsb
        0xee,                               // out dx, al
        0x84, 0xc0,                         // test al, al
        0x75, 0xfa,                         // jnz back to lodsb
        0xf4,                               // hlt
        0xeb, 0xfd,                         // jmp back to hlt
        // Descriptor table: nothing, and a segment of 64-bit code; then its size and address, at 0x7c77.
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x00, 0x9a, 0x20, 0x00,
        0x0f, 0x00, 0x67, 0x7c, 0x00, 0x00,
    ];
    const SIZE: usize = 512;
    const BOOTABLE: [u8; 2] = [0x55, 0xaa];
    let mut sector = [CODE, SIGN].concat();
    sector.resize(SIZE - BOOTABLE.len(), 0);
    sector.extend(BOOTABLE);
    sector
}
