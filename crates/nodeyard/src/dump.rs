//! `store export` and `store import`: a store's state as a file of JSON lines, the same for every backend.
//!
//! The first line is an [`ExportHeader`] and the last an [`ExportTrailer`], without which the file is truncated. Every
//! other line is an [`ExportedRecord`], parents before their children: path, data, and the number of children ever
//! created, which determines the next sequence number.

use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::Path;

use anstream::eprintln;
use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use futures_util::stream::{FuturesOrdered, StreamExt as _};
use nodeyard_store::{CreateMode, Op, Stat, Tree, TreePath, Version};
use serde::{Deserialize, Serialize};

use crate::export_file::ExportFile;
use crate::output::count;

const FORMAT: u32 = 2;

/// The previous format, without a trailer.
const FORMAT_WITHOUT_TRAILER: u32 = 1;

/// The number of operations in one multi while a counter is advanced, well below a server's limit.
const BATCH: usize = 1000;

/// The number of concurrent requests.
const WINDOW: usize = 256;

/// ZooKeeper's own records, which are never exported.
const RESERVED: &str = "/zookeeper";

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct ExportHeader {
    nodeyard_export: u32,
}

#[derive(Serialize, Deserialize, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
struct ExportedRecord {
    path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    data: Option<String>,
    /// Data that is not UTF-8, as hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hex: Option<String>,
    /// The number of children ever created below this record.
    #[serde(default)]
    creates: u32,
}

/// The last line: the number of records.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportTrailer {
    records: usize,
}

impl ExportedRecord {
    fn new(path: &TreePath, data: &[u8], stat: &Stat) -> Self {
        let (text, hex) = match std::str::from_utf8(data) {
            Ok("") => (None, None),
            Ok(text) => (Some(text.to_owned()), None),
            Err(_) => (
                None,
                Some(data.iter().map(|b| format!("{b:02x}")).collect()),
            ),
        };
        Self {
            path: path.to_string(),
            data: text,
            hex,
            creates: creates(stat),
        }
    }

    fn bytes(&self) -> anyhow::Result<Bytes> {
        match (&self.data, &self.hex) {
            (Some(_), Some(_)) => bail!("has both `data` and `hex`"),
            (Some(text), None) => Ok(Bytes::copy_from_slice(text.as_bytes())),
            (None, Some(hex)) => unhex(hex).context("`hex` is not pairs of hexadecimal digits"),
            (None, None) => Ok(Bytes::new()),
        }
    }
}

fn unhex(text: &str) -> Option<Bytes> {
    let digits: Vec<u32> = text
        .chars()
        .map(|c| c.to_digit(16))
        .collect::<Option<_>>()?;
    let (pairs, rest) = digits.as_chunks::<2>();
    rest.is_empty().then(|| {
        pairs
            .iter()
            .filter_map(|[high, low]| u8::try_from(high * 16 + low).ok())
            .collect()
    })
}

/// Returns the number of children ever created. `cversion` counts additions and removals; existing children were only
/// added.
fn creates(stat: &Stat) -> u32 {
    let sum = i64::from(stat.cversion) + i64::from(stat.num_children);
    u32::try_from(sum / 2).unwrap_or(0)
}

pub(crate) async fn export(tree: &dyn Tree, root: &TreePath, file: &Path) -> anyhow::Result<()> {
    let mut out = BufWriter::new(ExportFile::open(file)?);
    let header = ExportHeader {
        nodeyard_export: FORMAT,
    };
    write_line(&mut out, &header)?;
    let (mut records, mut ephemeral) = (0, 0);
    let top = tree.get(root).await?;
    let mut todo = vec![(root.clone(), top)];
    while let Some((path, record)) = todo.pop() {
        if path.as_str() == RESERVED {
            continue;
        }
        if record.stat.is_ephemeral() {
            ephemeral += 1;
            continue;
        }
        write_line(
            &mut out,
            &ExportedRecord::new(&path, &record.data, &record.stat),
        )?;
        records += 1;
        if record.stat.num_children > 0 {
            let mut children = match tree.list(&path).await {
                Err(error) if error.is_no_node() => continue,
                children => children?,
            };
            children.reverse();
            for (name, child) in children {
                todo.push((path.join(&name)?, child));
            }
        }
    }
    write_line(&mut out, &ExportTrailer { records })?;
    let out = out.into_inner().map_err(io::Error::from)?;
    out.finish()?;
    eprintln!(
        "exported {}; left out {ephemeral} ephemeral",
        count(records, "record")
    );
    Ok(())
}

fn write_line(out: &mut impl Write, line: &impl Serialize) -> anyhow::Result<()> {
    serde_json::to_writer(&mut *out, line).map_err(io::Error::from)?;
    out.write_all(b"\n")?;
    Ok(())
}

/// What an import will do, computed and checked before anything is written.
#[derive(Default)]
struct ImportPlan {
    create: Vec<(TreePath, Bytes)>,
    replace: Vec<(TreePath, Bytes)>,
    unchanged: usize,
    counters: Vec<(TreePath, u32)>,
}

pub(crate) async fn import(
    tree: &dyn Tree,
    file: &Path,
    overwrite: bool,
    dry_run: bool,
) -> anyhow::Result<()> {
    let lines = read(file).with_context(|| format!("failed to import {}", file.display()))?;
    let plan = plan(tree, lines, overwrite).await?;
    let summary = format!(
        "{} created, {} replaced, {} the same already",
        count(plan.create.len(), "record"),
        plan.replace.len(),
        plan.unchanged
    );
    if dry_run {
        eprintln!("would be: {summary}");
        return Ok(());
    }
    apply(tree, plan).await?;
    eprintln!("{summary}");
    Ok(())
}

fn read(file: &Path) -> anyhow::Result<Vec<(TreePath, Bytes, u32)>> {
    let input: Box<dyn BufRead> = if file == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        Box::new(BufReader::new(std::fs::File::open(file)?))
    };
    let mut lines = input.lines().enumerate();
    let (_, first) = lines.next().context("the file is empty")?;
    let header: ExportHeader = serde_json::from_str(&first?)
        .context("line 1: expected the header of a `nodeyard store export`")?;
    let format = header.nodeyard_export;
    ensure!(
        (FORMAT_WITHOUT_TRAILER..=FORMAT).contains(&format),
        "unsupported export format {format}; supported are {FORMAT_WITHOUT_TRAILER} and {FORMAT}"
    );
    let mut records = Vec::new();
    let mut end = None;
    for (number, line) in lines {
        let line = line?;
        let number = number + 1;
        ensure!(end.is_none(), "line {number} follows the last line");
        match serde_json::from_str(&line) {
            Ok(found) if format == FORMAT => end = Some(found),
            _ => records
                .push(parse(&line).with_context(|| format!("line {number}: invalid record"))?),
        }
    }
    match end {
        Some(ExportTrailer { records: all }) => ensure!(
            all == records.len(),
            "expected {}, found {}",
            count(all, "record"),
            records.len()
        ),
        None if format == FORMAT => bail!(
            "the file is truncated: the last line with the number of records is missing; export again"
        ),
        None => eprintln!(
            "this export has an old format without the number of records; truncation cannot be detected"
        ),
    }
    Ok(records)
}

fn parse(line: &str) -> anyhow::Result<(TreePath, Bytes, u32)> {
    let line: ExportedRecord = serde_json::from_str(line)?;
    Ok((
        TreePath::new(line.path.as_str())?,
        line.bytes()?,
        line.creates,
    ))
}

async fn plan(
    tree: &dyn Tree,
    lines: Vec<(TreePath, Bytes, u32)>,
    overwrite: bool,
) -> anyhow::Result<ImportPlan> {
    let mut plan = ImportPlan::default();
    let mut present = FuturesOrdered::new();
    let mut lines = lines.into_iter();
    loop {
        while present.len() < WINDOW
            && let Some((path, data, creates)) = lines.next()
        {
            present.push_back(async move {
                let found = match tree.get(&path).await {
                    Err(error) if error.is_no_node() => Ok(None),
                    found => found.map(Some),
                };
                (path, data, creates, found)
            });
        }
        let Some((path, data, creates, found)) = present.next().await else {
            return Ok(plan);
        };
        match found? {
            None => plan.create.push((path.clone(), data)),
            Some(record) if record.data == data => plan.unchanged += 1,
            Some(_) if overwrite => plan.replace.push((path.clone(), data)),
            Some(_) => bail!(
                "{path} already exists with other data; nothing was changed. Import into an empty \
                 store, or give --overwrite"
            ),
        }
        if creates > 0 {
            plan.counters.push((path, creates));
        }
    }
}

async fn apply(tree: &dyn Tree, plan: ImportPlan) -> anyhow::Result<()> {
    let mut writes = FuturesOrdered::new();
    // Operations are executed in the order in which they are sent, so a parent exists before its children.
    for (path, data) in plan.create {
        writes.push_back(boxed(create(tree, path, data)));
        await_writes(&mut writes, WINDOW).await?;
    }
    for (path, data) in plan.replace {
        writes.push_back(boxed(async move {
            tree.set(&path, data, Version::Any).await?;
            Ok(())
        }));
        await_writes(&mut writes, WINDOW).await?;
    }
    await_writes(&mut writes, 1).await?;
    for (path, creates) in plan.counters {
        advance_counter(tree, &path, creates).await?;
    }
    Ok(())
}

/// Creates a record. One that was created with the same data since the plan is accepted.
async fn create(tree: &dyn Tree, path: TreePath, data: Bytes) -> anyhow::Result<()> {
    match tree
        .create(&path, data.clone(), CreateMode::Persistent)
        .await
    {
        Err(error) if error.is_node_exists() => {
            let found = tree.get(&path).await?;
            ensure!(
                found.data == data,
                "{path} was created with other data during the import; stop the daemons that use the \
                 store and import again"
            );
            Ok(())
        }
        created => Ok(created.map(drop)?),
    }
}

type PendingWrite<'a> = futures_util::future::BoxFuture<'a, anyhow::Result<()>>;

fn boxed<'a>(write: impl Future<Output = anyhow::Result<()>> + Send + 'a) -> PendingWrite<'a> {
    Box::pin(write)
}

async fn await_writes(
    writes: &mut FuturesOrdered<PendingWrite<'_>>,
    below: usize,
) -> anyhow::Result<()> {
    while writes.len() >= below
        && let Some(result) = writes.next().await
    {
        result?;
    }
    Ok(())
}

/// Advances a sequence counter by creating and deleting children, because there is no other way.
pub(crate) async fn advance_counter(
    tree: &dyn Tree,
    path: &TreePath,
    target: u32,
) -> anyhow::Result<()> {
    let stat = tree
        .stat(path)
        .await?
        .with_context(|| format!("{path} vanished during the import"))?;
    let mut missing = usize::try_from(target.saturating_sub(creates(&stat)))?;
    let step = path.join("nodeyard-import-counter")?;
    while missing > 0 {
        let count = missing.min(BATCH / 2);
        let pair = [
            Op::Create {
                path: step.clone(),
                data: Bytes::new(),
                mode: CreateMode::Persistent,
            },
            Op::Delete {
                path: step.clone(),
                version: Version::Any,
            },
        ];
        tree.multi(pair.iter().cycle().take(count * 2).cloned().collect())
            .await?;
        missing -= count;
    }
    Ok(())
}
