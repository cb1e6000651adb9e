//! `nodeyard completions`, and the definitions of all command lines that it and the manual pages are made from.

use std::io::{self, Write as _};

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use crate::cli;
use crate::help;
use crate::program::Program;

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// Which shell
    #[arg(value_enum)]
    shell: Shell,
    /// Complete this program instead of `nodeyard`
    #[arg(long, value_parser = program)]
    program: Option<Program>,
}

fn program(name: &str) -> Result<Program, String> {
    std::iter::once(Program::Nodeyard)
        .chain(Program::LINKS)
        .find(|program| program.name() == name)
        .ok_or_else(|| format!("there is no program called {name}"))
}

/// The definition of a program's command line, for whatever is generated from it.
pub(crate) fn definition(program: Program) -> clap::Command {
    match program {
        Program::Nodeyard => help::grouped(cli::Nodeyard::command()),
        Program::Nodepool => cli::Nodepool::command(),
        Program::NodepoolLauncher => cli::NodepoolLauncher::command(),
        Program::NodepoolBuilder => cli::NodepoolBuilder::command(),
    }
}

pub(crate) fn run(args: &CompletionsArgs) -> anyhow::Result<()> {
    let program = args.program.unwrap_or(Program::Nodeyard);
    // The generator panics when its output is closed, so it gets a buffer.
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
