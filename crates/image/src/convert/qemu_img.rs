//! Running `qemu-img convert`.

use std::path::Path;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};

use super::{Compression, ConvertError, Converter, Source, Target};

/// How much of what the program says is kept.
const LONGEST_OUTPUT: usize = 16 * 1024;

pub(super) async fn convert(
    converter: &Converter,
    source: &Source,
    to: &Path,
    target: &Target,
    progress: impl FnMut(f32) + Send,
) -> Result<(), ConvertError> {
    let (Some(from_driver), Some(to_driver)) =
        (source.format.qemu_driver(), target.format.qemu_driver())
    else {
        let format = target.format.clone();
        return Err(ConvertError::NotADisk { format });
    };
    let mut command = Command::new(&converter.program);
    command
        .args(["convert", "-p", "-f", from_driver, "-O", to_driver])
        .args(options(target))
        // Both are absolute: QEMU would take what is before a colon in a relative one for a protocol.
        .arg(&source.path)
        .arg(to)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    run(command, converter, progress).await
}

/// What the program is told of the new file.
fn options(target: &Target) -> &'static [&'static str] {
    match (target.format.as_str(), target.compression) {
        ("qcow2", Compression::None) => &["-o", "compat=0.10"],
        ("qcow2", Compression::Zlib) => &["-c", "-o", "compat=0.10"],
        // Who knows zstd knows any size of clusters. Larger ones compress better, and for less.
        ("qcow2", Compression::Zstd) => &[
            "-c",
            "-o",
            "compat=1.1,compression_type=zstd,cluster_size=128k",
        ],
        ("vmdk", Compression::None) => &["-o", "subformat=monolithicSparse"],
        ("vmdk", _) => &["-o", "subformat=streamOptimized"],
        // Else the size is rounded up to a geometry that no cloud asks for.
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
    let mut group = Group::new(child);
    let (stdout, stderr) = (group.child.stdout.take(), group.child.stderr.take());
    let work = async {
        let ((), output) = tokio::join!(follow(stdout, progress), last_words(stderr));
        (group.child.wait().await, output)
    };
    let Ok((status, output)) = tokio::time::timeout(converter.timeout, work).await else {
        return Err(ConvertError::TimedOut {
            program: program(),
            timeout: converter.timeout,
        });
    };
    group.ended = true;
    let status = status.map_err(|source| ConvertError::Lost {
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

/// A child with its own process group, all of which is killed if it has not ended.
struct Group {
    child: Child,
    group: Option<Pid>,
    ended: bool,
}

impl Group {
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

impl Drop for Group {
    fn drop(&mut self) {
        // The child has not been waited for, so its number still means it.
        if let (Some(group), false) = (self.group, self.ended) {
            let _gone_already = kill_process_group(group, Signal::KILL);
        }
    }
}

/// Reports what is done, as `(12.34/100%)` says it.
async fn follow(output: Option<impl AsyncRead + Unpin>, mut progress: impl FnMut(f32) + Send) {
    let Some(mut output) = output else { return };
    let mut parser = Progress::default();
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
struct Progress {
    number: Option<String>,
}

impl Progress {
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

/// The end of what the program says; all of it is read, so that it never waits for a reader.
async fn last_words(output: Option<impl AsyncRead + Unpin>) -> String {
    let Some(mut output) = output else {
        return String::new();
    };
    let mut said = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(got @ 1..) = output.read(&mut buffer).await {
        said.extend(buffer.iter().take(got));
        let surplus = said.len().saturating_sub(LONGEST_OUTPUT);
        said.drain(..surplus);
    }
    String::from_utf8_lossy(&said).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percents_are_found_in_what_qemu_img_prints() {
        let mut parser = Progress::default();
        let text = b"    (0.00/100%)\r    (12.34/100%)\r (x/100%) (99999999999/1) ((100.00/100%)\n";
        let found: Vec<_> = text.iter().filter_map(|byte| parser.push(*byte)).collect();
        assert_eq!(found, [0.0, 12.34, 100.0]);
    }
}
