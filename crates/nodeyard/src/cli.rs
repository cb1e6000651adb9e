//! The command lines of all programs. The commands are implemented in `commands`.

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand};

use crate::commands;
use crate::exit::EXIT_CODES_HELP;
use crate::output::{Color, OutputFormat};

/// Builds the images that CI machines boot from, and hands out those machines
///
/// Nodeyard reads Nodepool's configuration, keeps its records in ZooKeeper, and also runs on one machine
/// with nothing else installed. Called as `nodepool`, `nodepool-launcher` or
/// `nodepool-builder` it takes the command lines of those programs; `nodeyard install-links` makes the
/// links.
#[derive(Debug, Parser)]
#[command(name = "nodeyard", version, after_help = EXIT_CODES_HELP)]
pub(crate) struct Nodeyard {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: NodeyardCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NodeyardCommand {
    /// Write a configuration for machines on this host
    Init(commands::init::InitArgs),
    /// Run everything in one process: store, launcher, builder, API
    ///
    /// The store is the embedded one unless ZooKeeper is configured.
    Up(commands::up::UpArgs),
    /// Get machines, run a command on them, release them
    Request(commands::request::RequestArgs),
    /// List, show, wait for, renew and end leases
    Lease(commands::lease::LeaseArgs),
    /// Open, list, show and end scopes, and print Ansible inventories
    Scope(commands::scope::ScopeArgs),
    /// Check, show or describe the configuration
    Config(commands::config::ConfigArgs),
    /// List, build, wait for, pause and delete images
    Image(commands::image::ImageArgs),
    /// Look into the store, or move its state to another backend
    Store(commands::store::StoreArgs),
    /// Show labels, providers and images on one screen
    Status(commands::records::StatusArgs),
    /// List, show, wait for and delete nodes
    Node(commands::node::NodeArgs),
    /// List and show labels
    Label(commands::records::RecordArgs),
    /// List and show the pools that launchers run
    Pool(commands::records::RecordArgs),
    /// List and show providers
    Provider(commands::records::RecordArgs),
    /// List, show and delete builds of images, and print their logs
    Build(commands::build::BuildArgs),
    /// List, show and delete uploads of images
    Upload(commands::build::UploadArgs),
    /// List and show the running builders and launchers
    Worker(commands::records::RecordArgs),
    /// Say why a request, lease, node or image is in its state
    Explain(commands::explain::ExplainArgs),
    /// Say what an error code means and what to do about it
    Errors(commands::errors::ErrorsArgs),
    /// Stop a launcher, provider, pool or label accepting requests
    Drain(commands::drain::DrainArgs),
    /// End a drain
    Undrain(commands::drain::UndrainArgs),
    /// Run a command in the pod of a node
    #[cfg(feature = "kubernetes")]
    Exec(commands::pod::ExecArgs),
    /// Show what the pod of a node prints
    #[cfg(feature = "kubernetes")]
    Logs(commands::pod::LogsArgs),
    /// Carry git into a pod; for GIT_SSH_COMMAND
    #[cfg(feature = "kubernetes")]
    GitExec(commands::pod::GitExecArgs),
    /// Run a simulated cloud for providers with `driver: fake`
    Simulate(commands::simulate::SimulateArgs),
    /// Make links to this program by the names of Nodepool's programs
    InstallLinks(commands::install_links::InstallLinksArgs),
    /// Print a completion script for a shell
    Completions(commands::completions::CompletionsArgs),
    /// Write the manual pages into a directory
    Man(commands::man::ManArgs),
}

/// Options of every `nodeyard` command.
#[derive(Debug, Args)]
pub(crate) struct GlobalArgs {
    #[command(flatten)]
    pub(crate) files: ConfigFiles,
    /// How results are printed
    #[arg(long, global = true, value_enum, default_value_t)]
    pub(crate) format: OutputFormat,
    /// When to use colours
    #[arg(long, global = true, value_enum, default_value_t)]
    pub(crate) color: Color,
    /// Log more to standard error; twice for everything
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ConfigFiles {
    /// Configuration file; without it /etc/nodepool/nodepool.yaml, and for `nodeyard` before that $NODEYARD_CONFIG or
    /// ./nodepool.yaml
    #[arg(short, long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Second file with the parts of the configuration that others must not read
    #[arg(short, long, global = true, value_name = "FILE")]
    pub(crate) secure: Option<PathBuf>,
}

/// The Nodepool command line tool
#[derive(Debug, Parser)]
#[command(name = "nodepool", args_override_self = true, disable_version_flag = true, after_help = EXIT_CODES_HELP)]
pub(crate) struct Nodepool {
    #[command(flatten)]
    pub(crate) files: ConfigFiles,
    /// Print the version
    #[arg(long)]
    pub(crate) version: bool,
    /// Log everything to standard error
    #[arg(long)]
    pub(crate) debug: bool,
    /// Log as a Python logging configuration says: YAML, JSON or INI
    #[arg(short, value_name = "FILE")]
    pub(crate) log_config: Option<PathBuf>,
    /// How results are printed
    #[arg(long, global = true, value_enum, default_value_t)]
    pub(crate) format: OutputFormat,
    #[command(subcommand)]
    pub(crate) command: Option<NodepoolCommand>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NodepoolCommand {
    /// Check the configuration file; nothing is contacted
    ConfigValidate,
    #[command(flatten)]
    Store(commands::nodepool::NodepoolStoreCommand),
}

/// Options that `nodepool-launcher` and `nodepool-builder` share.
#[derive(Debug, Args)]
pub(crate) struct DaemonFlags {
    #[command(flatten)]
    pub(crate) files: ConfigFiles,
    /// Print the version
    #[arg(long)]
    pub(crate) version: bool,
    /// Stay in the foreground
    #[arg(short)]
    pub(crate) foreground: bool,
    /// Stay in the foreground and log everything
    #[arg(short)]
    pub(crate) debug: bool,
    /// Log as a Python logging configuration says: YAML, JSON or INI
    #[arg(short, value_name = "FILE")]
    pub(crate) log_config: Option<PathBuf>,
    /// Where to keep the process id while in the background
    #[arg(short, value_name = "FILE")]
    pub(crate) pid_file: Option<PathBuf>,
    /// Known to Nodepool, without effect here
    #[arg(long, hide = true)]
    pub(crate) repl: bool,
}

impl DaemonFlags {
    pub(crate) fn paths(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        [
            &mut self.files.config,
            &mut self.files.secure,
            &mut self.log_config,
            &mut self.pid_file,
        ]
        .into_iter()
        .flatten()
    }
}

/// Takes node requests and hands out nodes
#[derive(Debug, Parser)]
#[command(name = "nodepool-launcher", args_override_self = true, disable_version_flag = true, after_help = EXIT_CODES_HELP)]
pub(crate) struct NodepoolLauncher {
    #[command(flatten)]
    pub(crate) daemon: DaemonFlags,
    /// Do not start the web server
    #[arg(long)]
    pub(crate) no_webapp: bool,
}

/// Builds and uploads images
#[derive(Debug, Parser)]
#[command(name = "nodepool-builder", args_override_self = true, disable_version_flag = true, after_help = EXIT_CODES_HELP)]
pub(crate) struct NodepoolBuilder {
    #[command(flatten)]
    pub(crate) daemon: DaemonFlags,
    /// How many images are built at once
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) build_workers: usize,
    /// How many uploads and deletions run at once
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) upload_workers: usize,
}
