//! Digests and conversion of an image beside what diskimage-builder and Nodepool do for the same.
//!
//! The image is sparse, as raw images are, and its data are files of this host, since what compresses well or not at
//! all would flatter one or the other. What counts is computing: two programs that run at once are not cheaper for it.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use nodeyard_image::{
    ConversionTarget, Converter, DiskCompression, DiskLimits, DraftRequest, Format, Options,
    Repository,
};
use tokio::process::Command;

use crate::report::Figure;

const DISK: u64 = 4 << 30;
const USED: u64 = 720 << 20;
/// Data come in runs of this length, with holes between them.
const RUN: usize = 4 << 20;

pub(crate) async fn measure() -> anyhow::Result<Vec<Figure>> {
    let dir = tempfile::tempdir()?;
    let repository = Repository::open(Options {
        dir: dir.path().join("images"),
        builder: "bench".into(),
        limits: DiskLimits {
            keep_free: 0,
            max_used: None,
            first_build: 2 * USED,
        },
    })?;
    let [raw, qcow2]: [Format; 2] = ["raw".parse()?, "qcow2".parse()?];
    let draft = repository.create_draft(DraftRequest {
        image: "disk".parse()?,
        id: "1".parse()?,
        managed: None,
        need: None,
    })?;
    let id = draft.id().clone();
    let disk = draft.path(&raw);
    make_disk(&disk)?;

    let tools = Cost::of(checksums(&disk)).await?;
    let (committed, ours) = {
        let formats = [raw.clone()];
        let commit = tokio::task::spawn_blocking(move || draft.commit(&formats));
        Cost::with(async { Ok(commit.await??) }).await?
    };
    let found = committed.files.get(&raw).map(|file| &file.digests);
    let md5 = found.and_then(|digests| digests.md5.as_deref());
    let theirs = fs::read_to_string(disk.with_extension("md5sum"))?;
    ensure!(
        md5.is_some_and(|md5| theirs.starts_with(md5)),
        "the digests differ"
    );
    let mut figures = vec![compare("MD5 and SHA-256", &ours, &tools, 0.6)];

    let output = dir.path().join("theirs.qcow2");
    let zlib = Cost::of(async {
        let mut convert = Command::new("qemu-img");
        convert
            .args([
                "convert",
                "-c",
                "-f",
                "raw",
                "-O",
                "qcow2",
                "-o",
                "compat=0.10",
            ])
            .args([&disk, &output]);
        run(convert).await?;
        checksums(&output).await
    })
    .await?;
    let target = ConversionTarget {
        format: qcow2,
        compression: DiskCompression::Zstd,
    };
    let (converted, zstd) = Cost::with(async {
        let converter = Converter::default();
        Ok(repository.convert(&id, &target, &converter, |_| {}).await?)
    })
    .await?;
    figures.push(compare(
        "compressed qcow2 with its digests, zstd beside zlib",
        &zstd,
        &zlib,
        0.25,
    ));
    let mebibytes = |bytes: u64| format!("{} MiB", bytes >> 20);
    let size = fs::metadata(&output)?.len();
    figures
        .push(Figure::new("size of that file", mebibytes(converted.size)).against(mebibytes(size)));
    Ok(figures)
}

/// As diskimage-builder does it: both at once, each reading the file.
async fn checksums(path: &Path) -> anyhow::Result<()> {
    let sum = |tool: &'static str| {
        let into = path.with_extension(tool);
        async move {
            let mut command = Command::new(tool);
            command.arg(path).stdout(File::create(into)?);
            run(command).await
        }
    };
    tokio::try_join!(sum("md5sum"), sum("sha256sum"))?;
    Ok(())
}

async fn run(mut command: Command) -> anyhow::Result<()> {
    let status = command
        .stdin(Stdio::null())
        .status()
        .await
        .with_context(|| format!("cannot run {command:?}"))?;
    ensure!(status.success(), "{command:?} failed: {status}");
    Ok(())
}

fn compare(what: &str, ours: &Cost, theirs: &Cost, aim: f64) -> Figure {
    let ratio = ours.computing / theirs.computing;
    Figure::new(what, format!("{:.1} s", ours.computing))
        .against(format!(
            "{ratio:.2} of {:.1} s by the tools; {:.1} s of {:.1} s passed",
            theirs.computing,
            ours.passed.as_secs_f64(),
            theirs.passed.as_secs_f64()
        ))
        .aim(format!("at most {aim}"), ratio <= aim)
}

/// What something cost.
struct Cost {
    /// Seconds of this process and of those it waited for.
    computing: f64,
    passed: Duration,
}

impl Cost {
    async fn of(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<Self> {
        Ok(Self::with(work).await?.1)
    }

    async fn with<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<(T, Self)> {
        let (computed, started) = (computing()?, Instant::now());
        let result = work.await?;
        let cost = Self {
            computing: computing()? - computed,
            passed: started.elapsed(),
        };
        Ok((result, cost))
    }
}

/// Seconds that this process and its children have computed, from the four times in the kernel's line about it.
fn computing() -> anyhow::Result<f64> {
    const TICKS: f64 = 100.0;
    let line = fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = line.rsplit_once(')').context("an odd /proc/self/stat")?;
    let ticks = fields
        .split_whitespace()
        .skip(11)
        .take(4)
        .map(str::parse::<f64>)
        .sum::<Result<f64, _>>()?;
    Ok(ticks / TICKS)
}

fn make_disk(path: &Path) -> anyhow::Result<()> {
    let disk = File::create(path)?;
    disk.set_len(DISK)?;
    let runs = USED / RUN as u64;
    let mut data = HostFiles::new("/usr");
    let mut run = vec![0; RUN];
    for number in 0..runs {
        data.fill(&mut run)?;
        disk.write_all_at(&run, number * (DISK / runs / 4096) * 4096)?;
    }
    disk.sync_all()?;
    Ok(())
}

/// The files below a directory, one after the other and again from the start.
struct HostFiles {
    root: PathBuf,
    waiting: Vec<PathBuf>,
    open: Option<File>,
}

impl HostFiles {
    fn new(root: &str) -> Self {
        Self {
            root: root.into(),
            waiting: Vec::new(),
            open: None,
        }
    }

    fn fill(&mut self, buffer: &mut [u8]) -> anyhow::Result<()> {
        let mut rest = buffer;
        while !rest.is_empty() {
            let Some(file) = &mut self.open else {
                self.next()?;
                continue;
            };
            match file.read(rest).unwrap_or(0) {
                0 => self.open = None,
                got => rest = rest.get_mut(got..).unwrap_or_default(),
            }
        }
        Ok(())
    }

    fn next(&mut self) -> anyhow::Result<()> {
        let path = self.waiting.pop().unwrap_or_else(|| self.root.clone());
        let meta = fs::symlink_metadata(&path)?;
        if meta.is_file() {
            self.open = File::open(&path).ok();
        } else if meta.is_dir() {
            let mut entries = fs::read_dir(&path)?
                .map(|entry| Ok(entry?.path()))
                .collect::<anyhow::Result<Vec<_>>>()?;
            entries.sort();
            self.waiting.extend(entries);
        }
        Ok(())
    }
}
