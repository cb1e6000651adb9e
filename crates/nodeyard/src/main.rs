//! The `nodeyard` binary: parses command lines and wires all crates together.

mod api_client;
#[cfg(test)]
mod architecture;
mod background;
mod cli;
mod commands;
mod context;
#[cfg(test)]
mod documented;
mod dump;
mod duration;
mod error_codes;
mod exit;
mod export_file;
mod global_options;
mod help;
mod host;
mod logging;
mod output;
mod program;
mod progress_line;
mod store_access;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser};

use crate::cli::{
    Nodepool, NodepoolBuilder, NodepoolCommand, NodepoolLauncher, Nodeyard, NodeyardCommand,
};
use crate::commands::builder::WorkerCounts;
use crate::commands::daemon::DaemonRole;
use crate::commands::launcher::WebPages;
use crate::commands::records::{RecordArgs, RecordKind};
use crate::context::CommandContext;
use crate::exit::CommandOutcome;
use crate::program::ProgramName;

/// Watches copy many records on many threads; docs/decisions/allocator.md has the measurements.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    let program = ProgramName::from_argv0(args.first().map(OsString::as_os_str));
    let result = match program {
        ProgramName::Nodeyard => parse_nodeyard(args).map(nodeyard),
        ProgramName::Nodepool => parse::<Nodepool>(args).map(nodepool),
        ProgramName::NodepoolLauncher => parse::<NodepoolLauncher>(args).map(|args| {
            let pages = if args.no_webapp {
                WebPages::Disabled
            } else {
                WebPages::Required
            };
            commands::daemon::run(program, args.daemon, DaemonRole::Launch(pages))
        }),
        ProgramName::NodepoolBuilder => parse::<NodepoolBuilder>(args).map(|args| {
            let workers = WorkerCounts {
                builds: args.build_workers,
                uploads: args.upload_workers,
            };
            commands::daemon::run(program, args.daemon, DaemonRole::Build(workers))
        }),
    };
    match result {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(error)) => exit::report(&error),
        Err(outcome) => outcome,
    }
    .into()
}

/// Parses a command line. clap prints help and version to standard output, which is not an error.
fn parse<P: Parser>(args: Vec<OsString>) -> Result<P, CommandOutcome> {
    P::try_parse_from(args).map_err(|error| print_usage(&error))
}

/// Like [`parse`], and rejects options that the command would ignore.
fn parse_nodeyard(args: Vec<OsString>) -> Result<Nodeyard, CommandOutcome> {
    let mut command = help::grouped(Nodeyard::command());
    let parsed = command.try_get_matches_from_mut(args).and_then(|matches| {
        global_options::check(&mut command, &matches)?;
        Nodeyard::from_arg_matches(&matches)
    });
    parsed.map_err(|error| print_usage(&error))
}

fn print_usage(error: &clap::Error) -> CommandOutcome {
    // There is nowhere to report an error while printing.
    let _ = error.print();
    if error.use_stderr() {
        CommandOutcome::Usage
    } else {
        CommandOutcome::Success
    }
}

fn nodeyard(args: Nodeyard) -> anyhow::Result<CommandOutcome> {
    args.global.color.apply();
    let context = CommandContext::from(&args.global);
    let works_on = matches!(
        args.command,
        NodeyardCommand::Up(_) | NodeyardCommand::Simulate(_)
    );
    logging::start(match works_on {
        true => logging::Level::daemons(context.verbose),
        false => logging::Level::commands(context.verbose),
    })?;
    match args.command {
        NodeyardCommand::Completions(args) => commands::completions::run(&args)?,
        NodeyardCommand::Man(args) => commands::man::run(&args)?,
        NodeyardCommand::Errors(args) => commands::errors::run(&args, &context)?,
        NodeyardCommand::InstallLinks(args) => commands::install_links::run(&args)?,
        NodeyardCommand::Init(args) => block_on(commands::init::run(args))?,
        NodeyardCommand::Config(args) => return commands::config::run(&args, &context),
        NodeyardCommand::Store(args) => block_on(commands::store::run(args, &context))?,
        NodeyardCommand::Image(args) => return block_on(commands::image::run(args, &context)),
        NodeyardCommand::Request(args) => return block_on(commands::request::run(args, &context)),
        NodeyardCommand::Lease(args) => block_on(commands::lease::run(args, &context))?,
        NodeyardCommand::Scope(args) => block_on(commands::scope::run(args, &context))?,
        NodeyardCommand::Status(args) => block_on(commands::records::status(args, &context))?,
        NodeyardCommand::Node(args) => block_on(commands::node::run(args, &context))?,
        NodeyardCommand::Label(args) => records(RecordKind::Label, args, &context)?,
        NodeyardCommand::Pool(args) => records(RecordKind::Pool, args, &context)?,
        NodeyardCommand::Provider(args) => records(RecordKind::Provider, args, &context)?,
        NodeyardCommand::Build(args) => block_on(commands::build::run(args, &context))?,
        NodeyardCommand::Upload(args) => block_on(commands::build::uploads(args, &context))?,
        NodeyardCommand::Worker(args) => records(RecordKind::Worker, args, &context)?,
        NodeyardCommand::Explain(args) => block_on(commands::explain::run(args, &context))?,
        NodeyardCommand::Drain(args) => return block_on(commands::drain::run(args, &context)),
        NodeyardCommand::Undrain(args) => block_on(commands::drain::undrain(args, &context))?,
        #[cfg(feature = "kubernetes")]
        NodeyardCommand::Exec(args) => return leave_with(commands::pod::exec(args, &context)),
        #[cfg(feature = "kubernetes")]
        NodeyardCommand::Logs(args) => block_on(commands::pod::logs(args, &context))?,
        #[cfg(feature = "kubernetes")]
        NodeyardCommand::GitExec(args) => return leave_with(commands::pod::git_exec(args)),
        NodeyardCommand::Simulate(args) => block_on(commands::simulate::run(args, &context))?,
        NodeyardCommand::Up(args) => block_on(commands::up::run(args, &context))?,
    }
    Ok(CommandOutcome::Success)
}

fn records(kind: RecordKind, args: RecordArgs, context: &CommandContext) -> anyhow::Result<()> {
    block_on(commands::records::run(kind, args, context))
}

fn nodepool(args: Nodepool) -> anyhow::Result<CommandOutcome> {
    if args.version {
        return program::print_nodepool_version();
    }
    let context = CommandContext::from(&args);
    let level = logging::Level::commands(context.verbose);
    match &args.log_config {
        Some(path) => logging::start_daemon(level, logging::Destination::Configured(path))?,
        None => logging::start(level)?,
    }
    match args.command {
        Some(NodepoolCommand::ConfigValidate) => commands::config::validate(&context),
        Some(NodepoolCommand::Store(command)) => {
            exit::print_refusal(block_on(commands::nodepool::run(command, &context)))
        }
        None => {
            Nodepool::command().print_help()?;
            Ok(CommandOutcome::Failure)
        }
    }
}

/// Like [`block_on`], without waiting for a thread that is blocked on standard input.
#[cfg(feature = "kubernetes")]
fn leave_with<T>(role: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let result = runtime.block_on(role);
    runtime.shutdown_background();
    result
}

fn block_on<T>(role: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(role)
}
