//! `store export` and `store import`: a state as a file of JSON lines, the same for every backend.
//!
//! The first line is a [`Header`], the last one the [`End`], without which an export is cut short, and every other one
//! a [`Line`], parents before their children. A line holds what makes a record the same record elsewhere: path, data,
//! and how many children it has ever had, because the next sequence number below it is made from that.

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

/// As [`FORMAT`], but without an [`End`].
const ENDLESS: u32 = 1;

/// Operations of one multi while a counter is advanced, well below what a server takes at once.
const BATCH: usize = 1000;

/// Requests on their way at the same time.
const WINDOW: usize = 256;

/// ZooKeeper keeps its own settings here; they are never part of a state.
const RESERVED: &str = "/zookeeper";

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Header {
    nodeyard_export: u32,
}

#[derive(Serialize, Deserialize, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
struct Line {
    path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    data: Option<String>,
    /// Data that is not UTF-8, as hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hex: Option<String>,
    /// Children ever created below this record.
    #[serde(default)]
    creates: u32,
}

/// How many records there are.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct End {
    records: usize,
}

impl Line {
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

/// `cversion` counts additions and removals together; what is there now was added and not removed.
fn creates(stat: &Stat) -> u32 {
    let sum = i64::from(stat.cversion) + i64::from(stat.num_children);
    u32::try_from(sum / 2).unwrap_or(0)
}

pub(crate) async fn export(tree: &dyn Tree, root: &TreePath, file: &Path) -> anyhow::Result<()> {
    let mut out = BufWriter::new(ExportFile::open(file)?);
    let header = Header {
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
        write_line(&mut out, &Line::new(&path, &record.data, &record.stat))?;
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
    write_line(&mut out, &End { records })?;
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

/// What an import will do, made and checked completely before anything is written.
#[derive(Default)]
struct Plan {
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
    let lines = read(file).with_context(|| format!("cannot import {}", file.display()))?;
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
    carry_out(tree, plan).await?;
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
    let header: Header = serde_json::from_str(&first?).context(
        "line 1 is not the header of an export; was it written by `nodeyard store export`?",
    )?;
    let format = header.nodeyard_export;
    ensure!(
        (ENDLESS..=FORMAT).contains(&format),
        "the export has format {format}, this program reads {ENDLESS} and {FORMAT}"
    );
    let mut records = Vec::new();
    let mut end = None;
    for (number, line) in lines {
        let line = line?;
        let number = number + 1;
        ensure!(end.is_none(), "line {number} is after the end");
        match serde_json::from_str(&line) {
            Ok(found) if format == FORMAT => end = Some(found),
            _ => records.push(parse(&line).with_context(|| format!("line {number} is no record"))?),
        }
    }
    match end {
        Some(End { records: all }) => ensure!(
            all == records.len(),
            "{} were exported, and {} are there",
            count(all, "record"),
            records.len()
        ),
        None if format == FORMAT => bail!(
            "it is cut short: the last line, which says how many records there are, is missing; export again"
        ),
        None => eprintln!(
            "this export is of a kind that does not say how many records there are; if it was cut short, that cannot be seen"
        ),
    }
    Ok(records)
}

fn parse(line: &str) -> anyhow::Result<(TreePath, Bytes, u32)> {
    let line: Line = serde_json::from_str(line)?;
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
) -> anyhow::Result<Plan> {
    let mut plan = Plan::default();
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
                "{path} exists already with other data; nothing was changed. Import into an empty \
                 store, or give --overwrite"
            ),
        }
        if creates > 0 {
            plan.counters.push((path, creates));
        }
    }
}

async fn carry_out(tree: &dyn Tree, plan: Plan) -> anyhow::Result<()> {
    let mut writes = FuturesOrdered::new();
    // Operations take effect in the order they are begun, so a parent is there before its children
    // although nobody waits for it.
    for (path, data) in plan.create {
        writes.push_back(boxed(create(tree, path, data)));
        drain(&mut writes, WINDOW).await?;
    }
    for (path, data) in plan.replace {
        writes.push_back(boxed(async move {
            tree.set(&path, data, Version::Any).await?;
            Ok(())
        }));
        drain(&mut writes, WINDOW).await?;
    }
    drain(&mut writes, 1).await?;
    for (path, creates) in plan.counters {
        advance_counter(tree, &path, creates).await?;
    }
    Ok(())
}

/// Somebody who works on the store may have made the record since the plan; the same one is as good.
async fn create(tree: &dyn Tree, path: TreePath, data: Bytes) -> anyhow::Result<()> {
    match tree
        .create(&path, data.clone(), CreateMode::Persistent)
        .await
    {
        Err(error) if error.is_node_exists() => {
            let found = tree.get(&path).await?;
            ensure!(
                found.data == data,
                "{path} was made with other data while the import ran; stop what works on the \
                 store and import again"
            );
            Ok(())
        }
        created => Ok(created.map(drop)?),
    }
}

type Pending<'a> = futures_util::future::BoxFuture<'a, anyhow::Result<()>>;

fn boxed<'a>(write: impl Future<Output = anyhow::Result<()>> + Send + 'a) -> Pending<'a> {
    Box::pin(write)
}

async fn drain(writes: &mut FuturesOrdered<Pending<'_>>, below: usize) -> anyhow::Result<()> {
    while writes.len() >= below
        && let Some(result) = writes.next().await
    {
        result?;
    }
    Ok(())
}

/// Counters go up only by creating children, so children are created and removed again.
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
