//! `nodeyard man`: a manual page for each command, generated from its definition.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, Command};

use super::completions::definition;
use crate::program::ProgramName;

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Directory for the pages, such as `share/man/man1` of a prefix; created if it is missing
    directory: PathBuf,
}

pub(crate) fn run(args: &ManArgs) -> anyhow::Result<()> {
    let directory = &args.directory;
    std::fs::create_dir_all(directory)
        .with_context(|| format!("failed to create {}", directory.display()))?;
    for program in std::iter::once(ProgramName::Nodeyard).chain(ProgramName::LINKS) {
        let mut command = definition(program).disable_help_subcommand(true);
        command.build();
        write(&command, directory)?;
    }
    Ok(())
}

/// Writes a page for the command and each of its subcommands, such as `nodeyard-store-ls.1`.
fn write(command: &Command, directory: &Path) -> anyhow::Result<()> {
    let page = clap_mangen::Man::new(command.clone());
    let file = directory.join(page.get_filename());
    let mut text = Vec::new();
    page.render(&mut text)?;
    std::fs::write(&file, text).with_context(|| format!("failed to write {}", file.display()))?;
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        write(sub, directory)?;
    }
    Ok(())
}
