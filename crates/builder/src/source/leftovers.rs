//! Kills processes that a build left behind.
//!
//! A program can leave its process group, and a killed worker cannot clean up. Processes of a build are therefore found by an
//! inherited environment variable that contains the path of the build's files. Linux only.

use std::path::Path;

/// The variable with the path of a build's files, without extension.
pub(super) const OUTPUT_VARIABLE: &str = "NODEYARD_OUTPUT";

/// Kills the processes of the build whose files are at `base` and returns their number.
pub fn kill_leftovers(base: &Path) -> usize {
    #[cfg(target_os = "linux")]
    let ended = linux::kill_marked(base);
    #[cfg(not(target_os = "linux"))]
    let ended = 0;
    ended
}

#[cfg(target_os = "linux")]
mod linux {
    use std::os::fd::OwnedFd;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

    pub(super) fn kill_marked(base: &Path) -> usize {
        let mut mark = format!("{}=", super::OUTPUT_VARIABLE).into_bytes();
        mark.extend_from_slice(base.as_os_str().as_bytes());
        let Ok(processes) = std::fs::read_dir("/proc") else {
            return 0;
        };
        let pids = processes
            .flatten()
            .filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
        let marked = pids.filter_map(|pid| hold(pid, &mark));
        marked
            .filter(|process| pidfd_send_signal(process, Signal::KILL).is_ok())
            .count()
    }

    /// Opens a process if its environment has the mark. Uses a pidfd, so a reused process id is not affected.
    fn hold(pid: Pid, mark: &[u8]) -> Option<OwnedFd> {
        let carries_mark = || {
            let environment = std::fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero()));
            environment.is_ok_and(|all| all.split(|byte| *byte == 0).any(|one| one == mark))
        };
        if pid == getpid() || !carries_mark() {
            return None;
        }
        let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        carries_mark().then_some(process)
    }
}
