//! `nodeyard store ls`, `get` and `watch`: the raw records of the store.

use std::io::{self, Write};

use jiff::Timestamp;
use nodeyard_store::{Record, Stat, Tree, TreePath, WatchEvent};
use serde::Serialize;

use crate::output::{self, OutputFormat};

#[derive(Serialize)]
struct RecordRow<'a> {
    path: &'a str,
    version: i32,
    children: i32,
    bytes: i32,
    modified: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<String>,
}

impl<'a> RecordRow<'a> {
    fn new(path: &'a TreePath, stat: &Stat) -> Self {
        Self {
            path: path.as_str(),
            version: stat.version,
            children: stat.num_children,
            bytes: stat.data_length,
            modified: time(stat.mtime),
            session: stat
                .is_ephemeral()
                .then(|| format!("{:#x}", stat.ephemeral_owner)),
        }
    }
}

fn time(milliseconds: i64) -> String {
    Timestamp::from_millisecond(milliseconds)
        .map_or_else(|_| milliseconds.to_string(), |t| format!("{t:.0}"))
}

pub(super) async fn ls(
    tree: &dyn Tree,
    path: &TreePath,
    recursive: bool,
    format: OutputFormat,
) -> anyhow::Result<()> {
    let mut found = Vec::new();
    let mut todo = vec![path.clone()];
    while let Some(parent) = todo.pop() {
        let children = match tree.list(&parent).await {
            // Deleted since its parent was listed.
            Err(error) if error.is_no_node() && parent != *path => continue,
            children => children?,
        };
        for (name, record) in children {
            let child = parent.join(&name)?;
            if recursive && record.stat.num_children > 0 {
                todo.push(child.clone());
            }
            found.push((child, record.stat));
        }
    }
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    let rows = found.iter().map(|(path, stat)| RecordRow::new(path, stat));
    match format {
        OutputFormat::Json | OutputFormat::Yaml => {
            output::document(&rows.collect::<Vec<_>>(), format)
        }
        OutputFormat::Table => output::table(
            [
                "PATH", "VERSION", "CHILDREN", "BYTES", "MODIFIED", "SESSION",
            ],
            rows.map(|row| {
                [
                    row.path.to_owned(),
                    row.version.to_string(),
                    row.children.to_string(),
                    row.bytes.to_string(),
                    row.modified,
                    row.session.unwrap_or_default(),
                ]
            }),
        ),
    }
}

#[derive(Serialize)]
struct ShownRecord<'a> {
    path: &'a str,
    /// JSON data as it is, other data as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<RecordData<'a>>,
    stat: ShownStat,
}

#[derive(Serialize)]
#[serde(untagged)]
enum RecordData<'a> {
    Json(&'a serde_json::value::RawValue),
    Text(String),
}

#[derive(Serialize)]
struct ShownStat {
    created: String,
    modified: String,
    version: i32,
    czxid: i64,
    mzxid: i64,
    pzxid: i64,
    cversion: i32,
    ephemeral_owner: String,
    bytes: i32,
    children: i32,
}

impl From<&Stat> for ShownStat {
    fn from(stat: &Stat) -> Self {
        Self {
            created: time(stat.ctime),
            modified: time(stat.mtime),
            version: stat.version,
            czxid: stat.czxid,
            mzxid: stat.mzxid,
            pzxid: stat.pzxid,
            cversion: stat.cversion,
            ephemeral_owner: format!("{:#x}", stat.ephemeral_owner),
            bytes: stat.data_length,
            children: stat.num_children,
        }
    }
}

fn data(bytes: &[u8]) -> RecordData<'_> {
    serde_json::from_slice(bytes).map_or_else(
        |_| RecordData::Text(String::from_utf8_lossy(bytes).into_owned()),
        RecordData::Json,
    )
}

pub(super) async fn get(
    tree: &dyn Tree,
    path: &TreePath,
    stat_only: bool,
    format: OutputFormat,
) -> anyhow::Result<()> {
    let Record { data: bytes, stat } = tree.get(path).await?;
    if format.is_document() {
        return output::document(
            &ShownRecord {
                path: path.as_str(),
                data: (!stat_only).then(|| data(&bytes)),
                stat: ShownStat::from(&stat),
            },
            format,
        );
    }
    if stat_only {
        let shown = serde_json::to_value(ShownStat::from(&stat))?;
        let rows = shown.as_object().into_iter().flatten().map(|(key, value)| {
            let value = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            [key.clone(), value]
        });
        return output::table(["FIELD", "VALUE"], rows);
    }
    let mut out = io::stdout().lock();
    out.write_all(&bytes)?;
    if !bytes.is_empty() && !bytes.ends_with(b"\n") {
        out.write_all(b"\n")?;
    }
    Ok(())
}

#[derive(Serialize)]
struct WatchOutput<'a> {
    event: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a str>,
}

pub(super) async fn watch(
    tree: &dyn Tree,
    path: &TreePath,
    format: OutputFormat,
) -> anyhow::Result<()> {
    let mut watcher = tree.watch(path).await?;
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    // From here on no change is missed.
    print_event("watching", Some(path), format)?;
    loop {
        let next = tokio::select! {
            next = watcher.next() => next,
            _ = &mut interrupted => return Ok(()),
        };
        match next {
            Some(WatchEvent::Created(path)) => print_event("created", Some(&path), format)?,
            Some(WatchEvent::Changed(path)) => print_event("changed", Some(&path), format)?,
            Some(WatchEvent::Deleted(path)) => print_event("deleted", Some(&path), format)?,
            Some(WatchEvent::Gap) => print_event("gap", None, format)?,
            None => anyhow::bail!("the connection to the store was closed"),
        }
    }
}

fn print_event(
    event: &'static str,
    path: Option<&TreePath>,
    format: OutputFormat,
) -> anyhow::Result<()> {
    if format.is_document() {
        let path = path.map(TreePath::as_str);
        return output::stream(&WatchOutput { event, path }, format);
    }
    let what = path.map_or("events may have been missed", TreePath::as_str);
    writeln!(io::stdout(), "{event:<9} {what}")?;
    Ok(())
}
