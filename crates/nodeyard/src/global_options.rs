//! Options that all commands accept, and the commands that have no use for them. These reject the options, so that no
//! option is ignored silently.

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Command};

/// Commands, or groups of them, that print text only.
const WITHOUT_FORMAT: &[&str] = &[
    "init",
    "up",
    "image build",
    "image wait",
    "image logs",
    "image pause",
    "image unpause",
    "image rm",
    "image export",
    "image import",
    "node wait",
    "node rm",
    "request rm",
    "build logs",
    "build rm",
    "upload rm",
    "store export",
    "store import",
    "exec",
    "logs",
    "git-exec",
    "simulate",
    "install-links",
    "completions",
    "man",
];

/// Commands that read no configuration.
const WITHOUT_CONFIG: &[&str] = &[
    "init",
    "config schema",
    "errors",
    "git-exec",
    "install-links",
    "completions",
    "man",
];

/// Returns an error if an option was given that the command would ignore.
pub(crate) fn check(command: &mut Command, matches: &ArgMatches) -> Result<(), clap::Error> {
    let mut path = Vec::new();
    let mut deepest = matches;
    while let Some((name, below)) = deepest.subcommand() {
        path.push(name);
        deepest = below;
    }
    let path = path.join(" ");
    let options = [
        ("format", WITHOUT_FORMAT, "it prints text only"),
        ("config", WITHOUT_CONFIG, "it reads no configuration"),
        ("secure", WITHOUT_CONFIG, "it reads no configuration"),
    ];
    for (option, refusing, reason) in options {
        // Not every level has the value of an option that was given above it.
        let given = is_given(matches, option);
        if given && refusing.iter().any(|group| is_within(&path, group)) {
            let message = format!("`nodeyard {path}` does not take --{option}: {reason}");
            return Err(command.error(ErrorKind::ArgumentConflict, message));
        }
    }
    Ok(())
}

fn is_within(path: &str, group: &str) -> bool {
    path.strip_prefix(group)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
}

fn is_given(matches: &ArgMatches, option: &str) -> bool {
    let here = matches.try_contains_id(option).is_ok()
        && matches.value_source(option) == Some(ValueSource::CommandLine);
    here || matches
        .subcommand()
        .is_some_and(|(_, below)| is_given(below, option))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Nodeyard;

    fn leaves(command: &Command, path: &str, found: &mut Vec<String>) {
        let below: Vec<&Command> = command.get_subcommands().collect();
        // `request` is a command of its own beside those below it.
        if !path.is_empty() && (below.is_empty() || !command.is_subcommand_required_set()) {
            found.push(path.to_owned());
        }
        for command in below {
            let path = format!("{path} {}", command.get_name());
            leaves(command, path.trim(), found);
        }
    }

    fn is_refused(path: &str, option: &str, value: &str) -> bool {
        let mut command = Nodeyard::command().ignore_errors(true);
        let args = ["nodeyard"].into_iter().chain(path.split(' '));
        let args = args.chain([option, value]);
        let matches = command.clone().try_get_matches_from(args).unwrap();
        check(&mut command, &matches).is_err()
    }

    /// Commands that print results. A new command has to be in one of the two lists.
    const WITH_FORMAT: &[&str] = &[
        "request", "lease", "scope", "config", "image", "store", "status", "node", "label", "pool",
        "provider", "build", "upload", "worker", "explain", "errors", "drain", "undrain",
    ];

    #[test]
    fn every_command_accepts_or_rejects_the_format() {
        let mut all = Vec::new();
        leaves(&Nodeyard::command(), "", &mut all);
        assert!(all.len() > 60, "{all:?}");
        for path in &all {
            let text_only = WITHOUT_FORMAT.iter().any(|group| is_within(path, group));
            let results = WITH_FORMAT.iter().any(|group| is_within(path, group));
            assert!(text_only || results, "{path} is in no list");
            assert_eq!(is_refused(path, "--format", "json"), text_only, "{path}");
            let no_config = WITHOUT_CONFIG.iter().any(|group| is_within(path, group));
            assert_eq!(is_refused(path, "--config", "x"), no_config, "{path}");
        }
        for group in WITHOUT_FORMAT.iter().chain(WITHOUT_CONFIG) {
            let known = all.iter().any(|path| is_within(path, group));
            let optional = ["exec", "logs", "git-exec"].contains(group);
            assert!(known || optional, "there is no command {group}");
        }
    }
}
