//! Why an image is (not) being built, uploaded or deleted: the stewards' own plan, made from the same picture.

use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::ensure;
use nodeyard_builder::steward::progress::{self, Progress};
use nodeyard_builder::steward::{self, Functions};
use nodeyard_model::{ImageName, now};
use nodeyard_plan::images::{Explanation, Pace, decide};
use nodeyard_store::registry::Registry;
use serde::Serialize;

use crate::commands::builder::job_server;
use crate::context::Context;
use crate::output::{self, Format};

/// For each job server to say who answers what.
const PATIENCE: Duration = Duration::from_secs(3);

#[derive(Debug, Serialize)]
struct Explained {
    #[serde(flatten)]
    explanation: Explanation,
    /// How far those are that are under way.
    jobs: Vec<Progress>,
}

pub(in crate::commands) async fn explain(
    registry: &Registry,
    context: &Context,
    image: Option<ImageName>,
) -> anyhow::Result<()> {
    let config = context.require()?;
    let known = steward::known_images(registry, &config).await?;
    let images = match image {
        Some(image) => {
            ensure!(
                known.contains(&image),
                "there is no image {image}, neither in the configuration nor in the store"
            );
            vec![image]
        }
        None => known.into_iter().collect(),
    };
    let functions = Functions::ask(&job_server::known(&config)?, PATIENCE).await;
    let mut explanations = Vec::with_capacity(images.len());
    for image in &images {
        let picture = steward::draw(registry, &config, &functions, image).await?;
        explanations.push(Explained {
            explanation: decide(&picture, &Pace::default(), now()).explanation,
            jobs: progress::list(&**registry.tree(), image).await?,
        });
    }
    match context.format {
        Format::Json | Format::Yaml => output::document(&explanations, context.format),
        Format::Table => {
            let mut out = io::stdout().lock();
            for Explained { explanation, jobs } in &explanations {
                write!(out, "{}", explanation.told_at(now()))?;
                for job in jobs {
                    writeln!(out, "  {}", told(job))?;
                }
                writeln!(out)?;
            }
            Ok(())
        }
    }
}

fn told(job: &Progress) -> String {
    let build = job.build;
    let what = match &job.provider {
        Some(provider) => format!("upload of {build} to {provider}"),
        None => format!("build {build}"),
    };
    match job.percent() {
        Some(percent) => format!("{what}: {percent} % done"),
        None => format!("{what}: under way; its worker has reported no progress yet"),
    }
}
