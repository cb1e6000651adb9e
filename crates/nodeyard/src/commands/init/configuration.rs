//! The text of the configuration, combined from template files beside this one.

use super::{KEY, LocalDriver, SCRIPT};

const HEAD: &str = include_str!("head.yaml");
const CONTAINER: &str = include_str!("container.yaml");
const QEMU: &str = include_str!("qemu.yaml");
const FAKE: &str = include_str!("fake.yaml");
const TAIL: &str = include_str!("tail.yaml");

/// The values that are filled into the templates.
#[derive(Debug)]
pub(super) struct ConfigTemplate<'a> {
    /// Absolute, in one line, without single quotes.
    pub(super) directory: &'a str,
    pub(super) drivers: &'a [LocalDriver],
    /// The socket of the container runtime, if it is not at a standard path.
    pub(super) socket: Option<&'a str>,
    pub(super) public_key: &'a str,
}

impl ConfigTemplate<'_> {
    pub(super) fn text(&self) -> String {
        let inside = |name: &str| format!("{}/{name}", self.directory.trim_end_matches('/'));
        let labels: String = self
            .drivers
            .iter()
            .map(|driver| format!("  - name: {}\n    min-ready: 1\n", label(*driver)))
            .collect();
        let providers: String = self
            .drivers
            .iter()
            .map(|driver| provider(*driver))
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

pub(super) fn label(driver: LocalDriver) -> &'static str {
    match driver {
        LocalDriver::Container => "debian-container",
        LocalDriver::Qemu => "debian-vm",
        LocalDriver::Fake => "debian-simulated",
    }
}

/// Returns the template of the provider with the label.
fn provider(driver: LocalDriver) -> &'static str {
    match driver {
        LocalDriver::Container => CONTAINER,
        LocalDriver::Qemu => QEMU,
        LocalDriver::Fake => FAKE,
    }
}

/// Returns whether a text needs no quoting in YAML and in a shell.
fn is_plain(text: &str) -> bool {
    let plain = |char: char| char.is_ascii_alphanumeric() || "/._-+@".contains(char);
    text.starts_with(|char: char| char == '/' || char.is_ascii_alphabetic())
        && text.chars().all(plain)
}

/// Quotes a YAML value. JSON's strings are valid YAML.
fn scalar(text: &str) -> String {
    if is_plain(text) {
        text.to_owned()
    } else {
        serde_json::Value::from(text).to_string()
    }
}

/// Quotes a word of a command line.
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
        drivers: &[LocalDriver],
        socket: Option<&str>,
    ) -> nodeyard_config::Config {
        let parts = ConfigTemplate {
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
    fn every_combination_is_a_valid_configuration() {
        let all = [LocalDriver::Container, LocalDriver::Qemu, LocalDriver::Fake];
        for bits in 1..8_usize {
            let chosen: Vec<LocalDriver> = all
                .into_iter()
                .enumerate()
                .filter(|(at, _)| bits & (1 << at) != 0)
                .map(|(_, driver)| driver)
                .collect();
            for socket in [None, Some("/run/my own.sock")] {
                let config = check("/srv/yard", &chosen, socket);
                assert_eq!(config.providers.len(), chosen.len());
                assert_eq!(config.labels.len(), chosen.len());
            }
        }
    }

    #[test]
    fn special_characters_in_directories_are_quoted() {
        for directory in [
            "/srv/my yard",
            "/srv/#yard: {a}",
            "/srv/y\"ard\\",
            "/srv/jård",
            "/",
        ] {
            let config = check(directory, &[LocalDriver::Fake], None);
            let expected = format!("{}/state", directory.trim_end_matches('/'));
            assert_eq!(config.state_dir.as_deref(), Some(expected.as_str()));
        }
    }
}
