//! `make bench`: the figures of docs/benchmarks.md.
//!
//! Every figure stands beside its yardstick from the same run, because two machines, or one machine on two
//! days, do not compare.

#![expect(clippy::print_stdout, reason = "the figures are the output")]

mod api;
mod embedded;
mod image;
mod import;
mod kubernetes;
mod launcher;
mod openstack;
mod raw;
mod report;
mod view;
mod zookeeper;

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// As in the program.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[derive(Parser)]
struct Args {
    /// What to measure; everything if nothing is named
    #[arg(value_enum)]
    what: Vec<What>,
    /// The nodeyard to measure, instead of the one that cargo makes
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    #[arg(long, hide = true, value_name = "STORE")]
    load_view: Option<PathBuf>,
    #[arg(long, hide = true, requires_all = ["fetch_digest", "fetch_to"])]
    fetch: Option<String>,
    #[arg(long, hide = true)]
    fetch_digest: Option<String>,
    #[arg(long, hide = true)]
    fetch_to: Option<PathBuf>,
    #[command(flatten)]
    sizes: launcher::Sizes,
    #[command(flatten)]
    load: api::Load,
    #[command(flatten)]
    servers: openstack::Servers,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    /// Pipelined writes and locks on a real ZooKeeper server
    Zookeeper,
    /// Durable writes and locks on the embedded store
    Embedded,
    /// Loading and memory of a cached view with 100,000 nodes
    View,
    /// Digests and conversion of an image beside those of diskimage-builder and Nodepool
    Image,
    /// A packed artifact of 1 GiB, unpacked 2 GiB, from a server to a checked file, beside curl, zstd and sha256sum
    Import,
    /// The launcher beside that of Python Nodepool, on the same ZooKeeper
    Launcher,
    /// Servers of a real OpenStack, beside the driver of Python Nodepool
    Openstack,
    /// A hundred pods at once in a cluster, beside Python Nodepool
    Kubernetes,
    /// The HTTP API under load, on the embedded store and on ZooKeeper
    Api,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    if let Some(store) = args.load_view {
        return runtime.block_on(view::load(store));
    }
    if let (Some(url), Some(digest), Some(to)) = (&args.fetch, &args.fetch_digest, &args.fetch_to) {
        return runtime.block_on(import::fetch(url, digest, to));
    }
    let program = args.program.as_deref();
    for what in What::value_variants() {
        if !args.what.is_empty() && !args.what.contains(what) {
            continue;
        }
        let (title, figures) = match what {
            What::Zookeeper => ("ZooKeeper backend", runtime.block_on(zookeeper::measure())?),
            What::Embedded => ("Embedded backend", runtime.block_on(embedded::measure())?),
            What::Image => (
                "An image of 4 GiB, 720 MiB of it used: CPU seconds",
                runtime.block_on(image::measure())?,
            ),
            What::Import => (
                "A packed artifact of 1 GiB, unpacked 2 GiB, over loopback",
                runtime.block_on(import::measure())?,
            ),
            What::Launcher => {
                runtime.block_on(launcher::measure(program, &args.sizes))?;
                continue;
            }
            What::Openstack => {
                runtime.block_on(openstack::measure(program, &args.servers))?;
                continue;
            }
            What::Kubernetes => {
                runtime.block_on(kubernetes::measure(program, &args.sizes))?;
                continue;
            }
            What::Api => {
                runtime.block_on(api::measure(program, &args.load))?;
                continue;
            }
            What::View => (
                "Cached view, 100,000 node records",
                runtime.block_on(view::measure())?,
            ),
        };
        report::print(title, &figures);
    }
    Ok(())
}
