//! `nodeyard install-links`: links with the names of Nodepool's programs. Other files are not replaced.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anstream::println;
use anyhow::{Context as _, bail};
use clap::Args;

use crate::program::ProgramName;

#[derive(Debug, Args)]
pub(crate) struct InstallLinksArgs {
    /// Directory for the links, usually one in PATH; created if it is missing
    directory: PathBuf,
    /// Replace files of those names that are not links to this program
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(args: &InstallLinksArgs) -> anyhow::Result<()> {
    let binary = std::env::current_exe().context("failed to find the path of this program")?;
    std::fs::create_dir_all(&args.directory)
        .with_context(|| format!("failed to create {}", args.directory.display()))?;
    for program in ProgramName::LINKS {
        let link = args.directory.join(program.name());
        place(&binary, &link, args.force)?;
        println!("{} -> {}", link.display(), binary.display());
    }
    Ok(())
}

fn place(binary: &Path, link: &Path, force: bool) -> anyhow::Result<()> {
    match std::fs::symlink_metadata(link) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => {
            return Err(error).with_context(|| format!("failed to read {}", link.display()));
        }
        Ok(_) if std::fs::canonicalize(link).is_ok_and(|target| target == binary) => return Ok(()),
        Ok(_) if force => {
            std::fs::remove_file(link)
                .with_context(|| format!("failed to remove {}", link.display()))?;
        }
        Ok(_) => bail!(
            "{} exists and is not a link to this program; move it away or give --force",
            link.display()
        ),
    }
    std::os::unix::fs::symlink(binary, link)
        .with_context(|| format!("failed to create the link {}", link.display()))
}
