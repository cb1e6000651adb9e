//! Shows where builds of an image come from, and which nodes boot from them, including builds without a record.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write as _};

use anyhow::bail;
use nodeyard_builder::jobs::Provenance;
use nodeyard_builder::steward::notes::ImageNotes;
use nodeyard_model::layout::RecordPath;
use nodeyard_model::{BuildId, ImageName, NodeId, NodeState};
use nodeyard_store::registry::Registry;
use serde::Serialize;

use crate::commands::nodepool::images::build_key;
use crate::context::CommandContext;
use crate::output::{self, OutputFormat};

/// The state of a build whose record was deleted.
const GONE: &str = "gone";

#[derive(Debug, Serialize)]
struct BuildOrigin {
    image: String,
    build: String,
    state: String,
    builder: Option<String>,
    formats: Vec<String>,
    /// None for an image that was built here.
    zuul: Option<Provenance>,
    /// The nodes that boot from it.
    nodes: Vec<RunningNode>,
}

#[derive(Debug, Serialize)]
struct RunningNode {
    id: NodeId,
    state: NodeState,
    provider: Option<String>,
}

pub(super) async fn show(
    registry: &Registry,
    context: &CommandContext,
    what: &str,
) -> anyhow::Result<()> {
    let (image, wanted) = match build_key(what) {
        Ok(key) => (key.image.clone(), Some(key)),
        Err(_) => (what.parse::<ImageName>()?, None),
    };
    let mut builds = registry.images().builds(&image).await?;
    builds.sort_by(|(_, a), (_, b)| {
        let (a, b) = (a.value.state_time.as_secs(), b.value.state_time.as_secs());
        b.total_cmp(&a)
    });
    let mut nodes = nodes(registry, &image).await?;
    let mut notes = ImageNotes::read(&**registry.tree(), &image).await?;
    let mut take_provenance = |build: &BuildId| {
        notes
            .builds
            .remove(build)
            .and_then(|take_provenance| take_provenance.provenance)
    };
    let mut origins = Vec::with_capacity(builds.len());
    for (key, build) in builds {
        origins.push(BuildOrigin {
            image: key.image.to_string(),
            build: key.build.to_string(),
            state: build.value.state.to_string(),
            builder: build.value.builder.as_deref().map(ToOwned::to_owned),
            formats: build.value.formats.iter().map(ToOwned::to_owned).collect(),
            zuul: take_provenance(&key.build),
            nodes: nodes.remove(&key.build).unwrap_or_default(),
        });
    }
    // The remaining nodes boot from builds without a record.
    for (build, nodes) in nodes {
        let zuul = take_provenance(&build);
        let formats = zuul.iter().flat_map(|zuul| zuul.artifacts.keys());
        origins.push(BuildOrigin {
            image: image.to_string(),
            build: build.to_string(),
            state: GONE.to_owned(),
            builder: None,
            formats: formats.map(ToString::to_string).collect(),
            zuul,
            nodes,
        });
    }
    if let Some(wanted) = wanted {
        let wanted = wanted.build.to_string();
        origins.retain(|origin| origin.build == wanted);
    }
    if origins.is_empty() {
        bail!("no build {what}; `nodeyard build ls` lists them");
    }
    match context.format {
        OutputFormat::Json | OutputFormat::Yaml => output::document(&origins, context.format),
        OutputFormat::Table => {
            let text: Vec<String> = origins.iter().map(describe).collect();
            writeln!(io::stdout().lock(), "{}", text.join("\n"))?;
            Ok(())
        }
    }
}

/// Returns the nodes of an image by the builds in their records.
async fn nodes(
    registry: &Registry,
    image: &ImageName,
) -> anyhow::Result<BTreeMap<BuildId, Vec<RunningNode>>> {
    let mut by_build: BTreeMap<BuildId, Vec<RunningNode>> = BTreeMap::new();
    for (id, node) in registry.nodes().list().await? {
        let upload = node.value.image_id.as_deref().and_then(RecordPath::parse);
        if let Some(RecordPath::Upload(key)) = upload
            && key.build.image == *image
        {
            by_build
                .entry(key.build.build)
                .or_default()
                .push(RunningNode {
                    id,
                    state: node.value.state,
                    provider: node.value.provider.as_ref().map(ToString::to_string),
                });
        }
    }
    Ok(by_build)
}

fn describe(origin: &BuildOrigin) -> String {
    let mut text = format!("{}-{}, {}", origin.image, origin.build, origin.state);
    let mut line = |words: String| {
        let _infallible = write!(text, "\n  {words}");
    };
    match &origin.zuul {
        None if origin.state == GONE => line("unknown origin".to_owned()),
        None => line(format!(
            "built by {}",
            origin.builder.as_deref().unwrap_or("an unknown builder")
        )),
        Some(provenance) => {
            let build = &provenance.build;
            line(format!(
                "build {} of Zuul at {}",
                build.uuid, provenance.api_url
            ));
            for (what, value) in [
                ("tenant", &provenance.tenant),
                ("project", &build.project),
                ("pipeline", &build.pipeline),
                ("job", &build.job),
                ("branch", &build.branch),
                ("change", &build.change),
                ("revision", &build.revision),
                ("log", &build.log_url),
            ] {
                if let Some(value) = value {
                    line(format!("{what} {value}"));
                }
            }
            for (format, file) in &provenance.artifacts {
                line(format!("{format}: {} from {}", file.name, file.url));
                let sha256 = file.plain.digests.sha256.as_deref().unwrap_or("unknown");
                line(format!("  sha256 {sha256}, {} bytes", file.plain.size));
                line(format!("  {}", checked(file)));
            }
        }
    }
    if origin.nodes.is_empty() {
        line("no node boots from it".to_owned());
    }
    for node in &origin.nodes {
        let provider = node.provider.as_deref().unwrap_or("no provider");
        line(format!("node {} in {provider}, {}", node.id, node.state));
    }
    text
}

fn checked(file: &nodeyard_builder::jobs::ArtifactProvenance) -> String {
    let digest = file.verdict();
    match &file.signed_by {
        Some(key) => format!("{digest}, signed by key {key}"),
        None => format!("{digest}, not signed"),
    }
}
