//! A large packed artifact, from a server on this host to a file that was checked: ours in one go, beside the programs
//! one would use in a script.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use nodeyard_fetch::{HttpClient, Options};
use nodeyard_image::{ChecksumPolicy, Digests, Download, ProgressFn, download};
use nodeyard_testbeds::WebServer;
use nodeyard_testbeds::web_server::Reply;
use serde_json::{Value, json};

use crate::report::Figure;

/// Of the packed file, about; the unpacked one has twice as much.
const SIZE: usize = 1 << 30;
/// Every second block does not pack, the others almost vanish.
const BLOCK: usize = 64 << 10;

pub(crate) async fn measure() -> anyhow::Result<Vec<Figure>> {
    let directory = tempfile::tempdir()?;
    let place = |name: &str| directory.path().join(name);
    let plain = place("plain.raw");
    make(&plain)?;
    shell(&format!("zstd -q -1 -T0 --rm {}", plain.display()))?;
    let packed = place("plain.raw.zst");
    let size = std::fs::metadata(&packed)?.len();
    let served = packed.clone();
    let server = WebServer::start(move |asked| Reply::of_file(asked, &served, "\"1\""))?;
    let url = server.url("/plain.raw.zst");
    let out = place("out.raw").display().to_string();

    let fetch = shell(&format!(
        "curl -sf {url} -o {out}.zst && sync {out}.zst && rm {out}.zst"
    ))?;
    let unpack = shell(&format!(
        "zstd -q -d {} -o {out} && sync {out}",
        packed.display()
    ))?;
    let hash = shell(&format!("sha256sum {out} > {out}.sum"))?;
    std::fs::remove_file(&out)?;
    let slowest = fetch.max(unpack).max(hash);
    let script = shell(&format!(
        "curl -sf {url} | zstd -q -d > {out} && sync {out} && sha256sum {out} > {out}.sum"
    ))?;
    let sum = std::fs::read_to_string(format!("{out}.sum"))?;
    let sum = sum.get(..64).context("sha256sum says nothing")?;
    std::fs::remove_file(&out)?;

    let output = Command::new(std::env::current_exe()?)
        .args(["--fetch", &url, "--fetch-digest", sum, "--fetch-to"])
        .arg(directory.path())
        .output()?;
    ensure!(
        output.status.success(),
        "fetching failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let fetched: Value = serde_json::from_slice(&output.stdout)?;
    let number = |key: &str| {
        fetched
            .get(key)
            .and_then(Value::as_f64)
            .context("no figure")
    };
    let (seconds, megabytes) = (number("seconds")?, number("megabytes")?);
    let whole = script.max(f64::EPSILON);
    Ok(vec![
        Figure::new(
            format!(
                "fetched, unpacked, hashed twice, on disk ({} MiB packed)",
                size >> 20
            ),
            format!("{seconds:.2} s"),
        )
        .against(format!(
            "curl {fetch:.2} s, zstd -d {unpack:.2} s, sha256sum {hash:.2} s, each alone"
        ))
        .aim(
            "at most 1.1 times the slowest stage",
            seconds <= 1.1 * slowest,
        ),
        Figure::new(
            "of `curl | zstd -d` and then `sha256sum`",
            format!("{:.0} %", 100.0 * seconds / whole),
        )
        .against(format!("{script:.2} s"))
        .aim("at most 60 %", seconds <= 0.6 * whole),
        Figure::new("most memory of the process", format!("{megabytes:.0} MB"))
            .aim("under 150 MB", megabytes < 150.0),
    ])
}

/// The child: fetches, and says on standard output what it took.
pub(crate) async fn fetch(url: &str, digest: &str, directory: &Path) -> anyhow::Result<()> {
    let client = HttpClient::new(Options {
        allow_insecure: true,
        allow_private: true,
        ..Options::default()
    })?;
    let mut order = Download::new(url.parse()?);
    order.checksum = ChecksumPolicy::Required;
    order.promised = Digests {
        md5: None,
        sha256: Some(digest.into()),
    };
    let meter: ProgressFn = Arc::new(|_, _| {});
    let (place, target): (PathBuf, PathBuf) = (directory.join("ours"), directory.join("ours.raw"));
    let started = Instant::now();
    download(&client, &order, &place, &target, None, &meter).await?;
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{}",
        json!({"seconds": seconds, "megabytes": most_resident()? / 1e6})
    );
    Ok(())
}

fn make(path: &Path) -> anyhow::Result<()> {
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut block = Vec::with_capacity(BLOCK);
    for _ in 0..SIZE / BLOCK {
        block.clear();
        while block.len() < BLOCK {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            block.extend_from_slice(&state.to_le_bytes());
        }
        file.write_all(&block)?;
        let line = format!("this is line {state} of a log that repeats itself\n");
        let text = line.repeat(BLOCK / line.len() + 1);
        file.write_all(text.as_bytes().get(..BLOCK).unwrap_or_default())?;
    }
    file.flush()?;
    Ok(())
}

fn shell(command: &str) -> anyhow::Result<f64> {
    let started = Instant::now();
    let status = Command::new("sh").args(["-c", command]).status()?;
    ensure!(status.success(), "{command}: {status}");
    Ok(started.elapsed().as_secs_f64())
}

fn most_resident() -> anyhow::Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes: f64 = line
        .and_then(|line| line.split_whitespace().next())
        .context("no VmHWM")?
        .parse()?;
    Ok(kilobytes * 1024.0)
}
