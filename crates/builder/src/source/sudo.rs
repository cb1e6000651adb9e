//! Processes of a build that belong to another user.
//!
//! Builds often use sudo. A worker that does not run as root can neither signal the resulting processes nor read their
//! environment. On Linux they are found by their process group and signalled with sudo.

use std::io;
use std::process::{Command, Stdio};

use nodeyard_model::child_environment;
use rustix::process::{Pid, Signal};

/// The target of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SignalTarget {
    Process(Pid),
    Group(Pid),
}

/// Sends a signal with sudo and returns whether that succeeded. Blocks.
pub(super) fn signal(to: SignalTarget, signal: Signal) -> bool {
    let to = match to {
        SignalTarget::Process(id) => id.as_raw_nonzero().to_string(),
        SignalTarget::Group(id) => format!("-{}", id.as_raw_nonzero()),
    };
    let mut command = Command::new("sudo");
    child_environment::restrict(&mut command);
    let sent = command
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

/// Returns the ids and names of the processes of a group that this process may not signal.
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

    /// Returns the name of a process if it is in the group and alive.
    fn member(pid: Pid, group: Pid) -> Option<String> {
        let stat = std::fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
        let stat = String::from_utf8_lossy(&stat);
        // The name may contain any character; it is followed by the state, the parent and the group.
        let (head, rest) = stat.rsplit_once(')')?;
        let (_, name) = head.split_once('(')?;
        let mut rest = rest.split_ascii_whitespace();
        let state = rest.next()?;
        let its_group: i32 = rest.nth(1)?.parse().ok()?;
        let alive = !matches!(state, "Z" | "X");
        (alive && its_group == group.as_raw_nonzero().get()).then(|| name.to_owned())
    }
}
