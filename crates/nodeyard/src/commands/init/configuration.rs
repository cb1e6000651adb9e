//! The text of the configuration, put together from parts that are files of their own beside this one.

use super::{KEY, Machines, SCRIPT};

const HEAD: &str = include_str!("head.yaml");
const CONTAINER: &str = include_str!("container.yaml");
const QEMU: &str = include_str!("qemu.yaml");
const FAKE: &str = include_str!("fake.yaml");
const TAIL: &str = include_str!("tail.yaml");

/// What differs from one place to the next.
#[derive(Debug)]
pub(super) struct Parts<'a> {
    /// Absolute, in one line, without single quotes.
    pub(super) directory: &'a str,
    pub(super) drivers: &'a [Machines],
    /// Where the container runtime listens, if that is not found without being told.
    pub(super) socket: Option<&'a str>,
    pub(super) public_key: &'a str,
}

impl Parts<'_> {
    pub(super) fn text(&self) -> String {
        let inside = |name: &str| format!("{}/{name}", self.directory.trim_end_matches('/'));
        let labels: String = self
            .drivers
            .iter()
            .map(|machines| format!("  - name: {}\n    min-ready: 1\n", label(*machines)))
            .collect();
        let providers: String = self
            .drivers
            .iter()
            .map(|machines| provider(*machines))
            .collect();
        let socket = self.socket.map_or_else(String::new, |path| {
            format!(
                "    # Where the runtime listens.\n    socket: {}\n",
                scalar(path)
            )
        });
        let file = shell_word(&inside(super::CONFIGURATION));
        let mut text = [HEAD, &providers, TAIL].concat();
        for (mark, value) in [
            ("@FILE@", file),
            ("@DIR@/state", scalar(&inside("state"))),
            ("@DIR@/images", scalar(&inside("images"))),
            ("@DIR@/logs", scalar(&inside("logs"))),
            ("@SCRIPT@", scalar(&shell_word(&inside(SCRIPT)))),
            ("@LABELS@", labels),
            ("@SOCKET@", socket),
            ("@KEY@", inside(KEY)),
            ("@PUBLIC@", self.public_key.to_owned()),
        ] {
            text = text.replace(mark, &value);
        }
        text
    }
}

pub(super) fn label(machines: Machines) -> &'static str {
    match machines {
        Machines::Container => "debian-container",
        Machines::Qemu => "debian-vm",
        Machines::Fake => "debian-simulated",
    }
}

/// The one that has the label.
fn provider(machines: Machines) -> &'static str {
    match machines {
        Machines::Container => CONTAINER,
        Machines::Qemu => QEMU,
        Machines::Fake => FAKE,
    }
}

/// Texts that mean themselves, in YAML as well as in a shell.
fn is_plain(text: &str) -> bool {
    let plain = |char: char| char.is_ascii_alphanumeric() || "/._-+@".contains(char);
    text.starts_with(|char: char| char == '/' || char.is_ascii_alphabetic())
        && text.chars().all(plain)
}

/// As a value in YAML. JSON's strings are YAML's, too.
fn scalar(text: &str) -> String {
    if is_plain(text) {
        text.to_owned()
    } else {
        serde_json::Value::from(text).to_string()
    }
}

/// As one word of a command line.
pub(super) fn shell_word(text: &str) -> String {
    if is_plain(text) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use nodeyard_config::{Environment, Mode, load_bytes};

    use super::*;

    fn check(
        directory: &str,
        drivers: &[Machines],
        socket: Option<&str>,
    ) -> nodeyard_config::Config {
        let parts = Parts {
            directory,
            drivers,
            socket,
            public_key: "ssh-ed25519 AAAA nodeyard",
        };
        let text = parts.text();
        assert!(!text.contains('@') || text.contains("/@"), "{text}");
        let main = (Path::new("nodepool.yaml"), text.as_bytes());
        let (config, problems) = load_bytes(main, None, &Environment::default(), Mode::Check);
        assert!(problems.is_empty(), "{problems:#?}\n{text}");
        config.unwrap()
    }

    #[test]
    fn every_combination_is_a_configuration_without_a_mistake() {
        let all = [Machines::Container, Machines::Qemu, Machines::Fake];
        for bits in 1..8_usize {
            let chosen: Vec<Machines> = all
                .into_iter()
                .enumerate()
                .filter(|(at, _)| bits & (1 << at) != 0)
                .map(|(_, machines)| machines)
                .collect();
            for socket in [None, Some("/run/my own.sock")] {
                let config = check("/srv/yard", &chosen, socket);
                assert_eq!(config.providers.len(), chosen.len());
                assert_eq!(config.labels.len(), chosen.len());
            }
        }
    }

    #[test]
    fn odd_directories_stay_what_they_are() {
        for directory in [
            "/srv/my yard",
            "/srv/#yard: {a}",
            "/srv/y\"ard\\",
            "/srv/jård",
            "/",
        ] {
            let config = check(directory, &[Machines::Fake], None);
            let expected = format!("{}/state", directory.trim_end_matches('/'));
            assert_eq!(config.state_dir.as_deref(), Some(expected.as_str()));
        }
    }
}
