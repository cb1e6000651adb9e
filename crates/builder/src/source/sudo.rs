//! Processes of a build that belong to another user.
//!
//! Programs that make images do part of their work by sudo, and what that starts is root's: a worker that is somebody
//! else may not signal it, nor read in its environment whose it is. It is seen in the process group of the build, on
//! Linux; and whoever may start it by sudo can often end it so.

use std::io;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal};

/// Whom a signal is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SignalTarget {
    Process(Pid),
    Group(Pid),
}

/// Has sudo signal somebody, and says whether that was possible. Blocks.
pub(super) fn signal(to: SignalTarget, signal: Signal) -> bool {
    let to = match to {
        SignalTarget::Process(id) => id.as_raw_nonzero().to_string(),
        SignalTarget::Group(id) => format!("-{}", id.as_raw_nonzero()),
    };
    let sent = Command::new("sudo")
        .args(["-n", "kill", &format!("-{}", signal.as_raw()), "--", &to])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let sent = sent.and_then(|status| match status.success() {
        true => Ok(()),
        false => Err(io::Error::other(status.to_string())),
    });
    if let Err(error) = &sent {
        let error = error as &dyn std::error::Error;
        tracing::debug!(error, to, "failed to signal build processes with sudo");
    }
    sent.is_ok()
}

/// The processes of a group that we may not signal: their numbers and names.
pub(super) fn foreign_processes(group: Pid) -> Vec<String> {
    #[cfg(target_os = "linux")]
    let foreign_processes = linux::foreign_processes(group);
    #[cfg(not(target_os = "linux"))]
    let foreign_processes = {
        let _ = group;
        Vec::new()
    };
    foreign_processes
}

#[cfg(target_os = "linux")]
mod linux {
    use rustix::io::Errno;
    use rustix::process::{Pid, geteuid, test_kill_process};

    pub(super) fn foreign_processes(group: Pid) -> Vec<String> {
        if geteuid().is_root() {
            return Vec::new();
        }
        let Ok(processes) = std::fs::read_dir("/proc") else {
            return Vec::new();
        };
        let pids = processes
            .flatten()
            .filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
        let members = pids.filter_map(|pid| Some((pid, member(pid, group)?)));
        members
            .filter(|(pid, _)| test_kill_process(*pid) == Err(Errno::PERM))
            .map(|(pid, name)| format!("{} ({name})", pid.as_raw_nonzero()))
            .collect()
    }

    /// The name of a process, if it is in the group and alive.
    fn member(pid: Pid, group: Pid) -> Option<String> {
        let stat = std::fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
        let stat = String::from_utf8_lossy(&stat);
        // The name may have anything in it; behind it are the state, the parent and the group.
        let (head, rest) = stat.rsplit_once(')')?;
        let (_, name) = head.split_once('(')?;
        let mut rest = rest.split_ascii_whitespace();
        let state = rest.next()?;
        let its_group: i32 = rest.nth(1)?.parse().ok()?;
        let alive = !matches!(state, "Z" | "X");
        (alive && its_group == group.as_raw_nonzero().get()).then(|| name.to_owned())
    }
}
