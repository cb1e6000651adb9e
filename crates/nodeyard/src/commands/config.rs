//! `nodeyard config` and `nodepool config-validate`: what is in the configuration, and what is wrong.

use std::io::{self, Write as _};

use anstream::eprint;
use clap::{Args, Subcommand};
use nodeyard_config::{Loaded, Mode};

use crate::context::Context;
use crate::exit::Outcome;
use crate::output::{self, Format};

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

pub(crate) fn run(args: &ConfigArgs, context: &Context) -> anyhow::Result<Outcome> {
    match args.command {
        ConfigCommand::Check => validate(context),
        ConfigCommand::Show => show(context),
        ConfigCommand::Schema => {
            output::document(&nodeyard_config::schema(), context.format.or_json())?;
            Ok(Outcome::Success)
        }
    }
}

pub(crate) fn validate(context: &Context) -> anyhow::Result<Outcome> {
    let source = context.required_source()?;
    let loaded = nodeyard_config::load(&source, Mode::Check);
    let good = loaded.config.is_some();
    match context.format {
        Format::Json | Format::Yaml => output::document(&loaded.diagnostics, context.format)?,
        Format::Table => {
            print_diagnostics(&loaded);
            if good {
                writeln!(io::stdout(), "{}: no errors", source.main.display())?;
            }
        }
    }
    Ok(if good {
        Outcome::Success
    } else {
        Outcome::Failure
    })
}

fn show(context: &Context) -> anyhow::Result<Outcome> {
    let loaded = nodeyard_config::load(&context.required_source()?, Mode::Show);
    print_diagnostics(&loaded);
    let Some(config) = loaded.config else {
        return Ok(Outcome::Failure);
    };
    // There is one form for both formats: nobody would read this as a table.
    output::document(&config, context.format.or_json())?;
    Ok(Outcome::Success)
}

/// For people, on standard error: colours are kept or removed there.
pub(crate) fn print_diagnostics(loaded: &Loaded) {
    if !loaded.diagnostics.is_empty() {
        eprint!("{}", nodeyard_config::render(&loaded.diagnostics, true));
    }
}
