//! `nodeyard --help`: the commands in groups by purpose.

use std::fmt::Write as _;

use clap::Command;

/// Commands for the same purpose, in the order in which they are shown.
struct CommandGroup {
    purpose: &'static str,
    commands: &'static [&'static str],
    example: &'static str,
}

const GROUPS: &[CommandGroup] = &[
    CommandGroup {
        purpose: "Run",
        commands: &["init", "up", "simulate"],
        example: "nodeyard init yard",
    },
    CommandGroup {
        purpose: "Request machines",
        commands: &["request", "lease", "scope", "exec", "logs", "git-exec"],
        example: "nodeyard request debian -- make check",
    },
    CommandGroup {
        purpose: "Inspect",
        commands: &[
            "status", "explain", "errors", "node", "label", "pool", "provider", "worker",
        ],
        example: "nodeyard status --watch",
    },
    CommandGroup {
        purpose: "Images",
        commands: &["image", "build", "upload"],
        example: "nodeyard image wait debian",
    },
    CommandGroup {
        purpose: "Operate",
        commands: &[
            "config",
            "drain",
            "undrain",
            "store",
            "install-links",
            "completions",
            "man",
        ],
        example: "nodeyard drain provider cloud",
    },
];

/// Replaces clap's list of subcommands by groups.
pub(crate) fn grouped(command: Command) -> Command {
    let groups = groups(&command);
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}Options:\n{{options}}{{after-help}}"
    ))
}

fn groups(command: &Command) -> String {
    let width = GROUPS.iter().flat_map(|group| group.commands);
    let width = width.map(|name| name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for group in GROUPS {
        let _ = writeln!(text, "{}, such as `{}`:", group.purpose, group.example);
        for name in group.commands {
            // Some do not exist in a program without cluster drivers.
            if let Some(command) = command.find_subcommand(name) {
                let about = command.get_about().map(ToString::to_string);
                let _ = writeln!(text, "  {name:<width$}  {}", about.unwrap_or_default());
            }
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::*;
    use crate::cli::Nodeyard;

    #[test]
    fn every_command_is_in_one_group() {
        let command = Nodeyard::command();
        for command in command.get_subcommands() {
            let name = command.get_name();
            let groups = GROUPS.iter().flat_map(|group| group.commands);
            let found = groups.filter(|grouped| **grouped == name).count();
            assert_eq!(found, 1, "{name}");
        }
        let optional = ["exec", "logs", "git-exec"];
        for name in GROUPS.iter().flat_map(|group| group.commands) {
            let known = command.find_subcommand(name).is_some();
            assert!(
                known || optional.contains(name),
                "there is no command {name}"
            );
        }
    }

    #[test]
    fn examples_belong_to_their_group_and_are_valid() {
        for group in GROUPS {
            let words = shlex::split(group.example).unwrap();
            assert!(
                group.commands.contains(&words[1].as_str()),
                "{}",
                group.example
            );
            Nodeyard::try_parse_from(words).unwrap();
        }
    }

    #[test]
    fn help_has_the_groups_and_no_other_list() {
        let help = grouped(Nodeyard::command()).render_help().to_string();
        assert!(
            help.contains("\nRun, such as `nodeyard init yard`:\n  init "),
            "{help}"
        );
        assert_eq!(help.matches("  status ").count(), 1, "{help}");
        assert!(!help.contains("Commands:"), "{help}");
        for line in groups(&Nodeyard::command()).lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
}
