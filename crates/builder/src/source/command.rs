//! `builder: command`: runs any program.
//!
//! The program reads its parameters from the environment, writes `<NODEYARD_OUTPUT>.<format>` for every format, and reports
//! success with its exit code. docs/image-sources.md describes the contract.

use async_trait::async_trait;
use nodeyard_config as config;
use tokio_util::sync::CancellationToken;

use super::process::{self, Program};
use super::progress::{AnnouncedProgress, ProgressReader};
use super::{BuildConsole, BuildOrder, Source, SourceError};

#[derive(Debug)]
pub struct CommandSource {
    build: config::BuildConfig,
}

impl CommandSource {
    pub fn new(build: &config::BuildConfig) -> Self {
        Self {
            build: build.clone(),
        }
    }

    fn program(&self, order: &BuildOrder) -> Result<Program, SourceError> {
        let mut program = Program::new(&self.build.command)?;
        program.env("NODEYARD_IMAGE", order.image.as_str());
        program.env("NODEYARD_IMAGE_ID", order.id.as_str());
        program.env("NODEYARD_FORMATS", order.formats.join(","));
        program.env("NODEYARD_RELEASE", &self.build.release);
        program.env("NODEYARD_ELEMENTS", self.build.elements.join(" "));
        program.configure(order, &self.build);
        Ok(program)
    }
}

#[async_trait]
impl Source for CommandSource {
    async fn make(
        &self,
        order: &BuildOrder,
        console: &mut BuildConsole,
        stop: &CancellationToken,
    ) -> Result<(), SourceError> {
        let program = self.program(order)?.marked(order);
        process::run(
            program,
            console,
            ProgressReader::new(AnnouncedProgress),
            stop,
        )
        .await
    }
}
