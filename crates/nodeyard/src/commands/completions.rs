//! `nodeyard completions`, and the command line definitions that completions and manual pages are generated from.

use std::io::{self, Write as _};

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use crate::cli;
use crate::help;
use crate::program::ProgramName;

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// Which shell
    #[arg(value_enum)]
    shell: Shell,
    /// Complete this program instead of `nodeyard`
    #[arg(long, value_parser = program)]
    program: Option<ProgramName>,
}

fn program(name: &str) -> Result<ProgramName, String> {
    std::iter::once(ProgramName::Nodeyard)
        .chain(ProgramName::LINKS)
        .find(|program| program.name() == name)
        .ok_or_else(|| format!("unknown program {name}"))
}

/// Returns the definition of a program's command line.
pub(crate) fn definition(program: ProgramName) -> clap::Command {
    match program {
        ProgramName::Nodeyard => help::grouped(cli::Nodeyard::command()),
        ProgramName::Nodepool => cli::Nodepool::command(),
        ProgramName::NodepoolLauncher => cli::NodepoolLauncher::command(),
        ProgramName::NodepoolBuilder => cli::NodepoolBuilder::command(),
    }
}

pub(crate) fn run(args: &CompletionsArgs) -> anyhow::Result<()> {
    let program = args.program.unwrap_or(ProgramName::Nodeyard);
    // The generator panics when its output is closed, so it writes into a buffer.
    let mut script = Vec::new();
    clap_complete::generate(
        args.shell,
        &mut definition(program),
        program.name(),
        &mut script,
    );
    io::stdout().write_all(&script)?;
    Ok(())
}
