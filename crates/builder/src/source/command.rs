//! `builder: command`: any program.
//!
//! It learns from its environment what to make, writes `<NODEYARD_OUTPUT>.<format>` for every format, and says with
//! its exit code whether it did. docs/image-sources.md has the whole contract.

use async_trait::async_trait;
use nodeyard_config as config;
use tokio_util::sync::CancellationToken;

use super::process::{self, Program};
use super::progress::{Announced, Meter};
use super::{BuildOrder, Console, Source, SourceError};

#[derive(Debug)]
pub struct Command {
    build: config::BuildConfig,
}

impl Command {
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
impl Source for Command {
    async fn make(
        &self,
        order: &BuildOrder,
        console: &mut Console,
        stop: &CancellationToken,
    ) -> Result<(), SourceError> {
        let program = self.program(order)?.marked(order);
        process::run(program, console, Meter::new(Announced), stop).await
    }
}
