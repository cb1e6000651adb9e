//! `builder: dib`: runs diskimage-builder with the arguments and the environment that Nodepool uses.

use std::path::Path;

use async_trait::async_trait;
use nodeyard_config as config;
use tokio_util::sync::CancellationToken;

use super::process::{self, Program};
use super::progress::{DibPhases, ProgressReader};
use super::{BuildConsole, BuildOrder, Source, SourceError};

/// The placeholder for the directory of this program in `dib-cmd`.
const OWN_DIRECTORY: &str = "%p";

#[derive(Debug)]
pub struct DibSource {
    build: config::BuildConfig,
}

impl DibSource {
    pub fn new(build: &config::BuildConfig) -> Self {
        Self {
            build: build.clone(),
        }
    }

    fn program(&self, order: &BuildOrder) -> Result<Program, SourceError> {
        let mut line = self.build.command.clone();
        if line.contains(OWN_DIRECTORY) {
            let program = std::env::current_exe().unwrap_or_default();
            let directory = program.parent().unwrap_or(Path::new("."));
            line = line.replace(OWN_DIRECTORY, &directory.to_string_lossy());
        }
        let mut program = Program::new(&line)?;
        program.arg("-x").arg("-t").arg(order.formats.join(","));
        program.arg("--checksum").arg("--no-tmpfs");
        if order.formats.iter().any(|format| &**format == "qcow2") {
            program.arg("--qemu-img-options").arg("compat=0.10");
        }
        program.arg("-o").arg(&order.base);
        // Nodepool joins them into one line and splits that.
        for element in self
            .build
            .elements
            .iter()
            .flat_map(|e| e.split_whitespace())
        {
            program.arg(element);
        }
        program.env("DIB_RELEASE", &self.build.release);
        program.env("DIB_IMAGE_NAME", order.image.as_str());
        program.env("DIB_IMAGE_FILENAME", &order.base);
        program.configure(order, &self.build);
        Ok(program)
    }
}

#[async_trait]
impl Source for DibSource {
    async fn make(
        &self,
        order: &BuildOrder,
        console: &mut BuildConsole,
        stop: &CancellationToken,
    ) -> Result<(), SourceError> {
        let program = self.program(order)?.marked(order);
        process::run(program, console, ProgressReader::new(DibPhases), stop).await
    }
}

#[cfg(test)]
mod tests {
    use nodeyard_config::{BuilderKind, EnvValue, Seconds};

    use super::*;

    fn dib(command: &str) -> DibSource {
        let mut env_vars = config::Table::new();
        for (name, value) in [("A", "1"), ("DIB_RELEASE", "over")] {
            let value = EnvValue {
                value: value.to_owned(),
                secret: false,
            };
            env_vars.insert(name.to_owned(), value);
        }
        DibSource {
            build: config::BuildConfig {
                builder: BuilderKind::Dib,
                command: command.to_owned(),
                elements: vec!["debian-minimal vm".to_owned(), "simple".to_owned()],
                env_vars,
                release: "bookworm".to_owned(),
                rebuild_age: Seconds::new(1),
                build_timeout: Seconds::new(1),
            },
        }
    }

    fn order(formats: &[&str]) -> BuildOrder {
        BuildOrder {
            image: "debian".parse().unwrap(),
            id: "0123".parse().unwrap(),
            base: "/images/of mine/debian-0123".into(),
            formats: formats.iter().map(|format| (*format).into()).collect(),
            elements_path: Some("/elements".into()),
        }
    }

    #[test]
    fn arguments_and_environment_match_nodepool() {
        let program = dib("sudo -E 'disk image create'")
            .program(&order(&["qcow2", "raw"]))
            .unwrap();
        let words: Vec<_> = program.words().collect();
        assert_eq!(
            words,
            [
                "sudo",
                "-E",
                "disk image create",
                "-x",
                "-t",
                "qcow2,raw",
                "--checksum",
                "--no-tmpfs",
                "--qemu-img-options",
                "compat=0.10",
                "-o",
                "/images/of mine/debian-0123",
                "debian-minimal",
                "vm",
                "simple",
            ]
        );
        let environment: Vec<_> = program.environment().collect();
        assert_eq!(
            environment,
            [
                ("DIB_RELEASE", "bookworm"),
                ("DIB_IMAGE_NAME", "debian"),
                ("DIB_IMAGE_FILENAME", "/images/of mine/debian-0123"),
                ("ELEMENTS_PATH", "/elements"),
                ("A", "1"),
                ("DIB_RELEASE", "over"),
            ]
        );
    }

    #[test]
    fn the_options_for_qcow2_come_with_qcow2() {
        let program = dib("disk-image-create").program(&order(&["raw"])).unwrap();
        assert!(!program.words().any(|word| word == "--qemu-img-options"));
    }

    #[test]
    fn a_program_beside_this_one_can_be_named() {
        let program = dib("%p/dib -q").program(&order(&["raw"])).unwrap();
        let first = program.words().next().unwrap();
        assert!(first.starts_with('/') && first.ends_with("/dib"), "{first}");
    }

    #[test]
    fn a_broken_command_line_is_an_error() {
        for line in ["", "  ", "a 'b"] {
            assert!(dib(line).program(&order(&["raw"])).is_err(), "{line:?}");
        }
    }
}
