//! `nodeyard config` and `nodepool config-validate`: check and show the configuration.

use std::io::{self, Write as _};

use anstream::eprint;
use clap::{Args, Subcommand};
use nodeyard_config::{Loaded, Mode};

use crate::context::CommandContext;
use crate::exit::CommandOutcome;
use crate::output::{self, OutputFormat};

#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Report everything that is wrong with the configuration; nothing is contacted
    ///
    /// Unknown and repeated keys are errors here, while the daemons only warn about them.
    Check,
    /// Print the configuration as the daemons understand it: inherited, with defaults, secrets masked
    Show,
    /// Print the JSON schema of the file, for editors
    Schema,
}

pub(crate) fn run(args: &ConfigArgs, context: &CommandContext) -> anyhow::Result<CommandOutcome> {
    match args.command {
        ConfigCommand::Check => validate(context),
        ConfigCommand::Show => show(context),
        ConfigCommand::Schema => {
            output::document(&nodeyard_config::schema(), context.format.or_json())?;
            Ok(CommandOutcome::Success)
        }
    }
}

pub(crate) fn validate(context: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let source = context.required_source()?;
    let loaded = nodeyard_config::load(&source, Mode::Check);
    let good = loaded.config.is_some();
    match context.format {
        OutputFormat::Json | OutputFormat::Yaml => {
            output::document(&loaded.diagnostics, context.format)?;
        }
        OutputFormat::Table => {
            print_diagnostics(&loaded);
            if good {
                writeln!(io::stdout(), "{}: no errors", source.main.display())?;
            }
        }
    }
    Ok(if good {
        CommandOutcome::Success
    } else {
        CommandOutcome::Failure
    })
}

fn show(context: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let loaded = nodeyard_config::load(&context.required_source()?, Mode::Show);
    print_diagnostics(&loaded);
    let Some(config) = loaded.config else {
        return Ok(CommandOutcome::Failure);
    };
    // As a table this would be unreadable.
    output::document(&config, context.format.or_json())?;
    Ok(CommandOutcome::Success)
}

/// Prints diagnostics to standard error, which keeps or removes their colours.
pub(crate) fn print_diagnostics(loaded: &Loaded) {
    if !loaded.diagnostics.is_empty() {
        eprint!("{}", nodeyard_config::render(&loaded.diagnostics, true));
    }
}
