//! Git through a pod: replaces `ssh` by exec.
//!
//! Git calls the program in `GIT_SSH_COMMAND` like `ssh`: with options, a host, and the command as one text. Here the host
//! is a pod. Only git's own three commands are run, without a shell, so that an account may be allowed to push and nothing
//! else.

use std::path::{Component, Path};

/// A request of git.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    /// `[container.]pod[.namespace]`.
    pub host: String,
    pub command: Vec<String>,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Git runs `ssh -G` to find out which options it may use; a failure means none.
    #[error("this is not OpenSSH, and takes no options of it")]
    Probe,
    #[error("git names a host and a command after the options; this is something else")]
    Incomplete,
    #[error(
        "`{0}` is not a command of git; only git-upload-pack, git-receive-pack and git-upload-archive are run"
    )]
    NotGit(String),
    #[error("the command needs one path of a repository")]
    Path,
    #[error("{path} is not in {allowed}")]
    Outside { path: String, allowed: String },
}

/// Options of ssh that have a value of their own.
const WITH_VALUE: &[&str] = &["-o", "-p", "-l", "-i", "-F"];
const WITHOUT_VALUE: &[&str] = &["-4", "-6", "-T", "-n", "-x", "-a"];

/// Reads arguments as git gives them to `ssh`. With `allowed`, only repositories below that directory are served.
pub fn request(arguments: &[String], allowed: Option<&str>) -> Result<Request, RequestError> {
    let mut rest = arguments.iter();
    let host = loop {
        let argument = rest.next().ok_or(RequestError::Incomplete)?;
        match argument.as_str() {
            "-G" => return Err(RequestError::Probe),
            option if WITH_VALUE.contains(&option) => {
                rest.next();
            }
            option if WITHOUT_VALUE.contains(&option) => {}
            option if option.starts_with('-') => return Err(RequestError::Incomplete),
            host => break host,
        }
    };
    // The user is ignored.
    let host = host.rsplit('@').next().unwrap_or(host);
    let words: Vec<&str> = rest.map(String::as_str).collect();
    let text = words.join(" ");
    let mut words = split(&text).ok_or(RequestError::Path)?.into_iter();
    let program = words.next().ok_or(RequestError::Incomplete)?;
    let subcommand = match program.as_str() {
        "git-upload-pack" => "upload-pack",
        "git-receive-pack" => "receive-pack",
        "git-upload-archive" => "upload-archive",
        other => return Err(RequestError::NotGit(other.to_owned())),
    };
    let path = words
        .next()
        .filter(|path| !path.is_empty() && !path.starts_with('-'));
    let (Some(path), None) = (path, words.next()) else {
        return Err(RequestError::Path);
    };
    if let Some(allowed) = allowed
        && !is_below(&path, allowed)
    {
        let allowed = allowed.to_owned();
        return Err(RequestError::Outside { path, allowed });
    }
    Ok(Request {
        host: host.to_owned(),
        command: vec!["git".to_owned(), subcommand.to_owned(), path],
    })
}

fn is_below(path: &str, allowed: &str) -> bool {
    let path = Path::new(path);
    let climbs = path.components().any(|part| part == Component::ParentDir);
    !climbs && path.starts_with(allowed)
}

/// Splits words that git has quoted: in single quotes, with `'\''` and `'\!'` inside.
fn split(text: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quoted = false;
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        match char {
            '\'' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            '\\' if !quoted => word.get_or_insert_default().push(chars.next()?),
            char if char.is_whitespace() && !quoted => words.extend(word.take()),
            char => word.get_or_insert_default().push(char),
        }
    }
    words.extend(word);
    (!quoted).then_some(words)
}

/// Splits a host into container, pod and namespace.
pub fn place(host: &str) -> (Option<&str>, &str, Option<&str>) {
    let parts: Vec<&str> = host.splitn(3, '.').collect();
    match parts.as_slice() {
        [container, pod, namespace] => (Some(container), pod, Some(namespace)),
        [pod, namespace] => (None, pod, Some(namespace)),
        _ => (None, host, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(arguments: &[&str]) -> Result<Request, RequestError> {
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        request(&arguments, Some("/zuul"))
    }

    #[test]
    fn git_is_understood() {
        let wanted = |path: &str| Request {
            host: "pod.space".to_owned(),
            command: ["git", "receive-pack", path]
                .map(ToOwned::to_owned)
                .to_vec(),
        };
        assert_eq!(
            ask(&["pod.space", "git-receive-pack '/zuul/a'"]),
            Ok(wanted("/zuul/a"))
        );
        assert_eq!(
            ask(&[
                "-o",
                "SendEnv=GIT_PROTOCOL",
                "-p",
                "22",
                "-4",
                "me@pod.space",
                "git-receive-pack '/zuul/a b'"
            ]),
            Ok(wanted("/zuul/a b"))
        );
        assert_eq!(
            ask(&["pod.space", r"git-receive-pack '/zuul/it'\''s'"]),
            Ok(wanted("/zuul/it's"))
        );
    }

    #[test]
    fn nothing_but_git_is_run() {
        for (arguments, error) in [
            (vec!["-G", "pod"], RequestError::Probe),
            (vec![], RequestError::Incomplete),
            (vec!["pod"], RequestError::Incomplete),
            (vec!["--help"], RequestError::Incomplete),
            (
                vec!["pod", "sh -c x"],
                RequestError::NotGit("sh".to_owned()),
            ),
            (vec!["pod", "git-receive-pack"], RequestError::Path),
            (
                vec!["pod", "git-receive-pack '/zuul/a' b"],
                RequestError::Path,
            ),
            (vec!["pod", "git-receive-pack '/zuul/a"], RequestError::Path),
            (vec!["pod", "git-receive-pack --help"], RequestError::Path),
        ] {
            assert_eq!(ask(&arguments), Err(error), "{arguments:?}");
        }
        for path in ["/etc", "/zuul/../etc", "/zuulish", "zuul"] {
            let command = format!("git-upload-pack '{path}'");
            assert!(
                matches!(ask(&["pod", &command]), Err(RequestError::Outside { .. })),
                "{path}"
            );
        }
    }

    #[test]
    fn hosts_are_pods() {
        assert_eq!(place("pod"), (None, "pod", None));
        assert_eq!(place("pod.space"), (None, "pod", Some("space")));
        assert_eq!(
            place("side.pod.space"),
            (Some("side"), "pod", Some("space"))
        );
    }
}
