//! `nodeyard man`: a manual page for each command, made from its definition.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, Command};

use super::completions::definition;
use crate::program::Program;

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Directory for the pages, `share/man/man1` of a prefix for example; made if it is missing
    directory: PathBuf,
}

pub(crate) fn run(args: &ManArgs) -> anyhow::Result<()> {
    let directory = &args.directory;
    std::fs::create_dir_all(directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    for program in std::iter::once(Program::Nodeyard).chain(Program::LINKS) {
        let mut command = definition(program).disable_help_subcommand(true);
        command.build();
        write(&command, directory)?;
    }
    Ok(())
}

/// A page for the command and one for each command below it, named `nodeyard-store-ls.1` and so on.
fn write(command: &Command, directory: &Path) -> anyhow::Result<()> {
    let page = clap_mangen::Man::new(command.clone());
    let file = directory.join(page.get_filename());
    let mut text = Vec::new();
    page.render(&mut text)?;
    std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        write(sub, directory)?;
    }
    Ok(())
}
