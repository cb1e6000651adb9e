//! `nodeyard store`: inspect a store, and move its state to another backend.

mod inspect;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use nodeyard_model::ErrorCode;
use nodeyard_store::TreePath;

use crate::context::CommandContext;
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
        /// All descendants, not only the children
        #[arg(short, long)]
        recursive: bool,
    },
    /// Print the data of a record as it is stored
    Get {
        path: TreePath,
        /// Print the metadata of the record instead of its data
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
    /// Ephemeral records are left out, because sessions are not moved; locks are among them. Sequence counters are
    /// kept, so that ids continue. Stop the daemons first: changes during an export may be exported partially. The file
    /// is readable by its owner only, and gets its name when it is complete.
    Export {
        /// `-` for standard output
        file: PathBuf,
        #[arg(long, default_value = "/")]
        path: TreePath,
    },
    /// Read what `export` wrote
    ///
    /// Nothing is overwritten: a record that exists with other data stops the import before anything is changed, unless
    /// `--overwrite` is given. A truncated file is refused.
    Import {
        /// `-` for standard input
        file: PathBuf,
        /// Replace the data of records that exist
        #[arg(long)]
        overwrite: bool,
        /// Only print what would be done
        #[arg(long)]
        dry_run: bool,
    },
}

pub(crate) async fn run(args: StoreArgs, context: &CommandContext) -> anyhow::Result<()> {
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
    // The server may be gone; the result should not wait for it.
    let _ = tokio::time::timeout(Duration::from_secs(5), access.close()).await;
    result
}
