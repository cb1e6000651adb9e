//! `nodeyard errors`: the codes of errors, with cause and remedy.

use std::io::{self, Write as _};

use clap::Args;
use nodeyard_model::ErrorCode;
use serde_json::{Value, json};

use crate::context::CommandContext;
use crate::output::{self, OutputFormat};

#[derive(Debug, Args)]
pub(crate) struct ErrorsArgs {
    /// A code such as NY0301, or its name; all of them when absent
    code: Option<ErrorCode>,
}

pub(crate) fn run(args: &ErrorsArgs, context: &CommandContext) -> anyhow::Result<()> {
    match (args.code, context.format) {
        (Some(code), OutputFormat::Table) => {
            let mut out = io::stdout().lock();
            writeln!(out, "{code} {} ({})", code.name(), code.area())?;
            writeln!(out, "\nCause:  {}", code.cause())?;
            writeln!(out, "Remedy: {}", code.remedy())?;
            Ok(())
        }
        (None, OutputFormat::Table) => output::table(
            ["CODE", "NAME", "CAUSE"],
            ErrorCode::ALL
                .iter()
                .map(|code| [code.id(), code.name(), code.cause()].map(str::to_owned)),
        ),
        (Some(code), format) => output::document(&described(code), format),
        (None, format) => {
            let all: Vec<Value> = ErrorCode::ALL.iter().copied().map(described).collect();
            output::document(&all, format)
        }
    }
}

fn described(code: ErrorCode) -> Value {
    json!({
        "code": code.id(),
        "name": code.name(),
        "area": code.area(),
        "cause": code.cause(),
        "remedy": code.remedy(),
    })
}
