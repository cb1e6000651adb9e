//! The name of this host.

use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

/// The timeout for the program that queries the resolver.
const PATIENCE: Duration = Duration::from_secs(2);

/// Returns the name without the domain, as in component records.
pub(crate) fn name() -> String {
    let name = node_name();
    name.split('.').next().unwrap_or_default().to_owned()
}

/// Returns the kernel's name of the host.
fn node_name() -> String {
    let system = rustix::system::uname();
    system.nodename().to_string_lossy().into_owned()
}

/// Returns the name with the domain if there is one, as Python's `getfqdn` finds it: from the hosts file, else from the
/// resolver, with a short timeout.
pub(crate) async fn full_name() -> String {
    let name = node_name();
    if name.contains('.') {
        return name;
    }
    let hosts = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
    if let Some(full) = in_hosts(&hosts, &name) {
        return full.to_owned();
    }
    match timeout(PATIENCE, ask_resolver()).await {
        Ok(Some(full)) => full,
        _ => name,
    }
}

/// Returns the name on the first line of the hosts file with our address: the first one with a dot, or else the first.
fn in_hosts<'a>(hosts: &'a str, name: &str) -> Option<&'a str> {
    let lines = hosts.lines().filter_map(|line| line.split('#').next());
    let mut lines = lines.filter_map(|line| {
        let mut words = line.split_whitespace();
        Some((words.next()?, words))
    });
    let is_ours = |names: &std::str::SplitWhitespace<'a>| names.clone().any(|other| other == name);
    let (address, _) = lines.clone().find(|(_, names)| is_ours(names))?;
    let (_, names) = lines.find(|(other, _)| *other == address)?;
    let mut dotted = names.clone().filter(|name| name.contains('.'));
    dotted.next().or_else(|| names.clone().next())
}

/// Queries the resolver with the program `hostname`, because the standard library cannot return canonical names.
async fn ask_resolver() -> Option<String> {
    let asked = Command::new("hostname")
        .arg("-f")
        .kill_on_drop(true)
        .output();
    let answer = asked.await.ok().filter(|answer| answer.status.success())?;
    let full = String::from_utf8(answer.stdout).ok()?.trim().to_owned();
    full.contains('.').then_some(full)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_domain_is_found_in_the_hosts_file() {
        let hosts =
            "127.0.0.1 localhost # np01.wrong\n10.0.0.1 np01.example.com np01\n10.0.0.2 np02\n";
        assert_eq!(in_hosts(hosts, "np01"), Some("np01.example.com"));
        assert_eq!(in_hosts(hosts, "np02"), Some("np02"));
        let shared = "127.0.0.1 localhost\n127.0.0.1 np04\n";
        assert_eq!(in_hosts(shared, "np04"), Some("localhost"));
        assert_eq!(in_hosts(hosts, "np03"), None);
    }
}
