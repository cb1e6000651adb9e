//! `nodeyard install-links`: the names by which the binary is also called. What is not a link to it stays.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anstream::println;
use anyhow::{Context as _, bail};
use clap::Args;

use crate::program::Program;

#[derive(Debug, Args)]
pub(crate) struct InstallLinksArgs {
    /// Directory for the links, usually one in PATH; made if it is missing
    directory: PathBuf,
    /// Replace files of those names that are not links to this program
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(args: &InstallLinksArgs) -> anyhow::Result<()> {
    let binary = std::env::current_exe().context("cannot find out where this program is")?;
    std::fs::create_dir_all(&args.directory)
        .with_context(|| format!("cannot make {}", args.directory.display()))?;
    for program in Program::LINKS {
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
            return Err(error).with_context(|| format!("cannot look at {}", link.display()));
        }
        Ok(_) if std::fs::canonicalize(link).is_ok_and(|target| target == binary) => return Ok(()),
        Ok(_) if force => {
            std::fs::remove_file(link)
                .with_context(|| format!("cannot remove {}", link.display()))?;
        }
        Ok(_) => bail!(
            "{} exists and is not a link to this program; move it away or give --force",
            link.display()
        ),
    }
    std::os::unix::fs::symlink(binary, link)
        .with_context(|| format!("cannot make the link {}", link.display()))
}
