//! Runs `qemu-img convert`.

use std::path::Path;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};

use super::{ConversionSource, ConversionTarget, ConvertError, Converter, DiskCompression};

/// The maximum length of output kept for error messages.
const MAX_OUTPUT_LEN: usize = 16 * 1024;

pub(super) async fn convert(
    converter: &Converter,
    source: &ConversionSource,
    to: &Path,
    target: &ConversionTarget,
    progress: impl FnMut(f32) + Send,
) -> Result<(), ConvertError> {
    let (Some(from_driver), Some(to_driver)) =
        (source.format.qemu_driver(), target.format.qemu_driver())
    else {
        let format = target.format.clone();
        return Err(ConvertError::NotConvertible { format });
    };
    let mut command = Command::new(&converter.program);
    command
        .args(["convert", "-p", "-f", from_driver, "-O", to_driver])
        .args(options(target))
        // Absolute paths, because QEMU parses a prefix with a colon in a relative path as a protocol.
        .arg(&source.path)
        .arg(to)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    run(command, converter, progress).await
}

/// Returns the options for the new file.
fn options(target: &ConversionTarget) -> &'static [&'static str] {
    match (target.format.as_str(), target.compression) {
        ("qcow2", DiskCompression::None) => &["-o", "compat=0.10"],
        ("qcow2", DiskCompression::Zlib) => &["-c", "-o", "compat=0.10"],
        // Readers with zstd support any cluster size; larger clusters compress better and faster.
        ("qcow2", DiskCompression::Zstd) => &[
            "-c",
            "-o",
            "compat=1.1,compression_type=zstd,cluster_size=128k",
        ],
        ("vmdk", DiskCompression::None) => &["-o", "subformat=monolithicSparse"],
        ("vmdk", _) => &["-o", "subformat=streamOptimized"],
        // Otherwise the size is rounded up to a disk geometry.
        ("vhd", _) => &["-o", "subformat=dynamic,force_size=on"],
        _ => &[],
    }
}

async fn run(
    mut command: Command,
    converter: &Converter,
    progress: impl FnMut(f32) + Send,
) -> Result<(), ConvertError> {
    let program = || converter.program.clone();
    let child = command.spawn().map_err(|source| ConvertError::Start {
        program: program(),
        source,
    })?;
    let mut group = ProcessGroup::new(child);
    let (stdout, stderr) = (group.child.stdout.take(), group.child.stderr.take());
    let work = async {
        let ((), output) = tokio::join!(report_progress(stdout, progress), read_tail(stderr));
        (group.child.wait().await, output)
    };
    let Ok((status, output)) = tokio::time::timeout(converter.timeout, work).await else {
        return Err(ConvertError::TimedOut {
            program: program(),
            timeout: converter.timeout,
        });
    };
    group.ended = true;
    let status = status.map_err(|source| ConvertError::WaitFailed {
        program: program(),
        source,
    })?;
    if status.success() {
        return Ok(());
    }
    Err(ConvertError::Failed {
        program: program(),
        status,
        output: output.trim().to_owned(),
    })
}

/// A child process whose process group is killed when this is dropped before it ended.
struct ProcessGroup {
    child: Child,
    group: Option<Pid>,
    ended: bool,
}

impl ProcessGroup {
    fn new(child: Child) -> Self {
        let group = child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw);
        Self {
            child,
            group,
            ended: false,
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // The child has not been reaped, so its pid is still valid.
        if let (Some(group), false) = (self.group, self.ended) {
            let _ignored = kill_process_group(group, Signal::KILL);
        }
    }
}

/// Parses progress output such as `(12.34/100%)`.
async fn report_progress(
    output: Option<impl AsyncRead + Unpin>,
    mut progress: impl FnMut(f32) + Send,
) {
    let Some(mut output) = output else { return };
    let mut parser = ProgressParser::default();
    let mut buffer = [0; 512];
    while let Ok(got @ 1..) = output.read(&mut buffer).await {
        for byte in buffer.iter().take(got) {
            if let Some(percent) = parser.push(*byte) {
                progress(percent);
            }
        }
    }
}

#[derive(Default)]
struct ProgressParser {
    number: Option<String>,
}

impl ProgressParser {
    fn push(&mut self, byte: u8) -> Option<f32> {
        match (byte, self.number.as_mut()) {
            (b'(', _) => self.number = Some(String::new()),
            (b'0'..=b'9' | b'.', Some(number)) if number.len() < 8 => number.push(byte.into()),
            (b'/', Some(_)) => {
                let percent = self.number.take()?.parse::<f32>().ok()?;
                return Some(percent.clamp(0.0, 100.0));
            }
            _ => self.number = None,
        }
        None
    }
}

/// Reads all output, so that the program never blocks, and returns the end of it.
async fn read_tail(output: Option<impl AsyncRead + Unpin>) -> String {
    let Some(mut output) = output else {
        return String::new();
    };
    let mut tail = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(got @ 1..) = output.read(&mut buffer).await {
        tail.extend(buffer.iter().take(got));
        let surplus = tail.len().saturating_sub(MAX_OUTPUT_LEN);
        tail.drain(..surplus);
    }
    String::from_utf8_lossy(&tail).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_parsed() {
        let mut parser = ProgressParser::default();
        let text = b"    (0.00/100%)\r    (12.34/100%)\r (x/100%) (99999999999/1) ((100.00/100%)\n";
        let found: Vec<_> = text.iter().filter_map(|byte| parser.push(*byte)).collect();
        assert_eq!(found, [0.0, 12.34, 100.0]);
    }
}
