//! `nodeyard store`: look into any backend, and move a state from one to another.

mod inspect;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use nodeyard_model::ErrorCode;
use nodeyard_store::TreePath;

use crate::context::Context;
use crate::dump;
use crate::error_codes::WithCode as _;
use crate::store_access;

#[derive(Debug, Args)]
pub(crate) struct StoreArgs {
    #[command(flatten)]
    target: store_access::TargetArgs,
    #[command(subcommand)]
    command: StoreCommand,
}

#[derive(Debug, Subcommand)]
enum StoreCommand {
    /// List the records below a path
    Ls {
        #[arg(default_value = "/")]
        path: TreePath,
        /// Everything below, not only the children
        #[arg(short, long)]
        recursive: bool,
    },
    /// Print the data of a record as it is stored
    Get {
        path: TreePath,
        /// Print what the store knows about the record instead of its data
        #[arg(long)]
        stat: bool,
    },
    /// Print every change below a path until interrupted
    Watch {
        #[arg(default_value = "/")]
        path: TreePath,
    },
    /// Write the persistent records below a path to a file
    ///
    /// Ephemeral records are left out, those of sessions that hold or want a lock among them: sessions do not move
    /// along. Sequence counters are kept, so that ids go on where they stopped. Stop the daemons first:
    /// what they write during an export may be half in it. The file is for its owner alone, and takes its name when
    /// it is complete.
    Export {
        /// `-` for standard output
        file: PathBuf,
        #[arg(long, default_value = "/")]
        path: TreePath,
    },
    /// Read what `export` wrote
    ///
    /// Nothing is overwritten: a record that exists already with other data stops the import before
    /// anything is changed, unless `--overwrite` says which side wins. A file that was cut short is refused.
    Import {
        /// `-` for standard input
        file: PathBuf,
        /// Replace the data of records that exist
        #[arg(long)]
        overwrite: bool,
        /// Say what would be done, and do nothing
        #[arg(long)]
        dry_run: bool,
    },
}

pub(crate) async fn run(args: StoreArgs, context: &Context) -> anyhow::Result<()> {
    let access = store_access::open(&args.target, context).await?;
    let tree = &access.tree;
    let result = match args.command {
        StoreCommand::Ls { path, recursive } => {
            inspect::ls(&**tree, &path, recursive, context.format).await
        }
        StoreCommand::Get { path, stat } => {
            inspect::get(&**tree, &path, stat, context.format).await
        }
        StoreCommand::Watch { path } => inspect::watch(&**tree, &path, context.format).await,
        StoreCommand::Export { file, path } => dump::export(&**tree, &path, &file).await,
        StoreCommand::Import {
            file,
            overwrite,
            dry_run,
        } => dump::import(&**tree, &file, overwrite, dry_run)
            .await
            .code(ErrorCode::Import),
    };
    // The server may be gone by now; whoever waits for a result should not wait for that as well.
    let _ = tokio::time::timeout(Duration::from_secs(5), access.close()).await;
    result
}
