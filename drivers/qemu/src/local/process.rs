//! Identifies processes that may not be children of this one, even if their id is reused.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Identifies a process. Its id alone may be reused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    pid: i32,
    /// In clock ticks since the host was started.
    started: u64,
    /// The boot id of the host.
    boot: Box<str>,
}

impl ProcessIdentity {
    /// Returns None if no process has this id, or if it is a zombie.
    pub(super) fn of(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some(Self {
            pid,
            started: start_time(&stat)?,
            boot: boot_id()?,
        })
    }

    pub(super) fn is_alive(&self) -> bool {
        Self::of(self.pid).as_ref() == Some(self)
    }

    /// Returns a handle to the process, or None if it has exited.
    fn open(&self) -> io::Result<Option<OwnedFd>> {
        let Some(pid) = Pid::from_raw(self.pid) else {
            return Ok(None);
        };
        match pidfd_open(pid, PidfdFlags::NONBLOCK) {
            // It was opened by id, which may be reused; the handle keeps it from now on.
            Ok(handle) => Ok(self.is_alive().then_some(handle)),
            Err(rustix::io::Errno::SRCH) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn kill(&self) -> io::Result<()> {
        match self.open()? {
            Some(handle) => match pidfd_send_signal(handle, Signal::KILL) {
                Err(rustix::io::Errno::SRCH) => Ok(()),
                result => Ok(result?),
            },
            None => Ok(()),
        }
    }

    /// Returns when the process has exited.
    pub(super) async fn ended(&self) -> io::Result<()> {
        if let Some(handle) = self.open()? {
            #[expect(
                deprecated,
                reason = "its successor cannot be called safely; an owned descriptor stays open while it is registered"
            )]
            let handle = AsyncFd::with_interest(handle, Interest::READABLE)?;
            handle.readable().await?.retain_ready();
        }
        Ok(())
    }
}

/// Returns the process whose command line has `marker` as two consecutive arguments. A process that was just started may
/// have no command line yet.
pub(super) fn find(marker: [&str; 2]) -> io::Result<Option<ProcessIdentity>> {
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // It may have exited since.
        let Ok(line) = fs::read(format!("/proc/{pid}/cmdline")) else {
            continue;
        };
        let arguments: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        if arguments
            .windows(2)
            .any(|pair| pair == marker.map(str::as_bytes))
            && let Some(identity) = ProcessIdentity::of(pid)
        {
            return Ok(Some(identity));
        }
    }
    Ok(None)
}

/// Returns the 22nd field of `/proc/<pid>/stat`, or None if the process is a zombie.
fn start_time(stat: &str) -> Option<u64> {
    // The second field is the name, in parentheses, and may contain anything.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X" | "x") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

fn boot_id() -> Option<Box<str>> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(text.trim().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_names_do_not_shift_the_fields() {
        let rest = "1 2 3 0 -1 4194560 1 0 0 0 1 1 0 0 20 0 1 0 777 99 1";
        assert_eq!(start_time(&format!("12 (a) b) S (c) S {rest}")), Some(777));
        assert_eq!(start_time(&format!("12 (qemu) Z {rest}")), None);
        assert_eq!(start_time("12 (qemu) S 1"), None);
        assert_eq!(start_time(""), None);
    }

    #[tokio::test]
    async fn a_process_is_found_and_killed_and_a_reused_id_is_not() {
        let marker = uuid::Uuid::new_v4().to_string();
        let mut child = tokio::process::Command::new("sh")
            .args(["-c", "read x", "-name", &marker])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = i32::try_from(child.id().unwrap()).unwrap();
        let found = loop {
            if let Some(found) = find(["-name", &marker]).unwrap() {
                break found;
            }
        };
        assert_eq!(found, ProcessIdentity::of(pid).unwrap());
        for other in [
            ProcessIdentity {
                started: found.started + 1,
                ..found.clone()
            },
            ProcessIdentity {
                boot: "another".into(),
                ..found.clone()
            },
        ] {
            assert!(!other.is_alive());
            other.kill().unwrap();
        }
        assert!(
            found.is_alive(),
            "another process with the same id was killed"
        );
        found.kill().unwrap();
        found.ended().await.unwrap();
        child.wait().await.unwrap();
        assert!(!found.is_alive());
        assert_eq!(find(["-name", &marker]).unwrap(), None);
    }
}
