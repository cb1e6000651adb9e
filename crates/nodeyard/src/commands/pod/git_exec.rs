//! `nodeyard git-exec`: called by git instead of `ssh` to push into a pod.

use anyhow::Context as _;
use clap::Args;
use nodeyard_driver_kubernetes::exec::{Container, git};
use nodeyard_driver_kubernetes::{Connect as _, Kubeconfig};
use tokio::io::{stderr, stdin, stdout};

use crate::exit::{self, CommandOutcome};

/// The exit code with which ssh reports a failed connection, as opposed to a failed command.
const TRANSPORT: u8 = 255;

#[derive(Debug, Args)]
#[command(
    disable_help_flag = true,
    after_help = "Set GIT_SSH_COMMAND to `nodeyard git-exec` and use POD.NAMESPACE:PATH as the address of a repository.\n\
        Variables: NODEPOOL_GIT_POD, NODEPOOL_GIT_NAMESPACE and NODEPOOL_GIT_CONTAINER override the host; \
         NODEPOOL_GIT_CONTEXT is the context of KUBECONFIG; NODEPOOL_GIT_PATH is the only directory that may be accessed."
)]
pub(crate) struct GitExecArgs {
    /// The arguments that git passes to ssh: options, [CONTAINER.]POD[.NAMESPACE], a command
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENT"
    )]
    arguments: Vec<String>,
}

pub(crate) async fn run(args: GitExecArgs) -> anyhow::Result<CommandOutcome> {
    let code = carry(args).await.unwrap_or_else(|error| {
        exit::report(&error);
        TRANSPORT
    });
    Ok(CommandOutcome::Code(code))
}

async fn carry(args: GitExecArgs) -> anyhow::Result<u8> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let asked = git::request(&args.arguments, variable("NODEPOOL_GIT_PATH").as_deref());
    if asked == Err(git::RequestError::Probe) {
        return Ok(TRANSPORT);
    }
    let asked = asked?;
    let (container, pod, namespace) = git::place(&asked.host);
    let connection = Kubeconfig {
        file: None,
        context: variable("NODEPOOL_GIT_CONTEXT"),
    };
    let client = connection.connect().await?.client;
    let owned = |text: Option<&str>| text.map(ToOwned::to_owned);
    let container = Container {
        namespace: variable("NODEPOOL_GIT_NAMESPACE")
            .or(owned(namespace))
            .unwrap_or_else(|| client.default_namespace().to_owned()),
        pod: variable("NODEPOOL_GIT_POD").unwrap_or_else(|| pod.to_owned()),
        container: variable("NODEPOOL_GIT_CONTAINER").or(owned(container)),
        client,
    };
    container
        .run(&asked.command, Some(stdin()), stdout(), stderr())
        .await
        .with_context(|| format!("failed to run git in pod {}", container.pod))
}
