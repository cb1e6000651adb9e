//! Explains why an image is (not) being built, uploaded or deleted, with the plan that stewards compute.

use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::ensure;
use nodeyard_builder::steward::progress::{self, ImageJobProgress};
use nodeyard_builder::steward::{self, RegisteredFunctions};
use nodeyard_model::{ImageName, now};
use nodeyard_plan::images::{ImageExplanation, Pace, decide};
use nodeyard_store::registry::Registry;
use serde::Serialize;

use crate::commands::builder::job_server;
use crate::context::CommandContext;
use crate::output::{self, OutputFormat};

/// The timeout for listing the functions of a job server.
const LIST_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Debug, Serialize)]
struct ExplainedImage {
    #[serde(flatten)]
    explanation: ImageExplanation,
    /// The progress of running jobs.
    jobs: Vec<ImageJobProgress>,
}

pub(in crate::commands) async fn explain(
    registry: &Registry,
    context: &CommandContext,
    image: Option<ImageName>,
) -> anyhow::Result<()> {
    let config = context.require()?;
    let known = steward::known_images(registry, &config).await?;
    let images = match image {
        Some(image) => {
            ensure!(
                known.contains(&image),
                "no image {image} in the configuration or in the store"
            );
            vec![image]
        }
        None => known.into_iter().collect(),
    };
    let functions = RegisteredFunctions::fetch(&job_server::find(&config)?, LIST_TIMEOUT).await;
    let mut explanations = Vec::with_capacity(images.len());
    for image in &images {
        let picture = steward::load_image_state(registry, &config, &functions, image).await?;
        explanations.push(ExplainedImage {
            explanation: decide(&picture, &Pace::default(), now()).explanation,
            jobs: progress::list(&**registry.tree(), image).await?,
        });
    }
    match context.format {
        OutputFormat::Json | OutputFormat::Yaml => output::document(&explanations, context.format),
        OutputFormat::Table => {
            let mut out = io::stdout().lock();
            for ExplainedImage { explanation, jobs } in &explanations {
                write!(out, "{}", explanation.display_at(now()))?;
                for job in jobs {
                    writeln!(out, "  {}", describe_job(job))?;
                }
                writeln!(out)?;
            }
            Ok(())
        }
    }
}

fn describe_job(job: &ImageJobProgress) -> String {
    let build = job.build;
    let what = match &job.provider {
        Some(provider) => format!("upload of {build} to {provider}"),
        None => format!("build {build}"),
    };
    match job.percent() {
        Some(percent) => format!("{what}: {percent} % done"),
        None => format!("{what}: running; no progress reported yet"),
    }
}
