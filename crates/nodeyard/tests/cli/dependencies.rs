//! What deny.toml allows, as far as it can be told without cargo-deny: licences, sources, banned crates.

use std::collections::BTreeSet;
use std::fs;
use std::iter::Peekable;
use std::process::Command;

use nodeyard_testbeds::checkout;

/// The texts in quotes that follow `start`, up to `end`.
fn quoted<'a>(text: &'a str, start: &str, end: &str) -> Vec<&'a str> {
    let (_, rest) = text.split_once(start).unwrap();
    let (list, _) = rest.split_once(end).unwrap();
    list.split('"').skip(1).step_by(2).collect()
}

/// Whether an expression of licences can be met. `AND` binds more tightly than `OR`.
fn permitted(licence: &str, allowed: &[&str]) -> bool {
    fn either<'t>(tokens: &mut Peekable<impl Iterator<Item = &'t str>>, allowed: &[&str]) -> bool {
        let mut met = both(tokens, allowed);
        while tokens.next_if_eq(&"OR").is_some() {
            met |= both(tokens, allowed);
        }
        met
    }

    fn both<'t>(tokens: &mut Peekable<impl Iterator<Item = &'t str>>, allowed: &[&str]) -> bool {
        let mut met = one(tokens, allowed);
        while tokens.next_if_eq(&"AND").is_some() {
            met &= one(tokens, allowed);
        }
        met
    }

    fn one<'t>(tokens: &mut Peekable<impl Iterator<Item = &'t str>>, allowed: &[&str]) -> bool {
        match tokens.next() {
            Some("(") => {
                let met = either(tokens, allowed);
                assert_eq!(tokens.next(), Some(")"));
                met
            }
            Some(name) if tokens.next_if_eq(&"WITH").is_some() => {
                let name = format!("{name} WITH {}", tokens.next().unwrap());
                allowed.contains(&name.as_str())
            }
            Some(name) => allowed.contains(&name),
            None => false,
        }
    }

    let text = licence.replace('/', " OR ");
    let text = text.replace('(', " ( ").replace(')', " ) ");
    either(&mut text.split_whitespace().peekable(), allowed)
}

#[test]
fn dependencies_are_on_the_allow_list() {
    let rules = fs::read_to_string(checkout().join("deny.toml")).unwrap();
    let allowed = quoted(&rules, "allow = [", "]");
    let banned: Vec<&str> = rules
        .lines()
        .filter(|line| line.contains("{ crate = "))
        .map(|line| quoted(line, "{ crate = ", ",")[0])
        // Of some, only old versions are; cargo-deny knows which.
        .filter(|name| !name.contains('@'))
        .collect();
    assert!(allowed.contains(&"MIT") && banned.contains(&"openssl"));

    let mut tree = Command::new(env!("CARGO"));
    tree.current_dir(checkout())
        .args([
            "tree",
            "--offline",
            "--locked",
            "--workspace",
            "--all-features",
        ])
        .args(["--prefix", "none"])
        .args(["--format", "{p}|{l}|"]);
    let listed = tree.output().unwrap();
    assert!(listed.status.success(), "{listed:?}");
    let listed = String::from_utf8(listed.stdout).unwrap();
    let own = format!("({}", checkout().display());
    let foreign: BTreeSet<(&str, &str)> = listed
        .lines()
        .filter_map(|line| {
            let mut parts = line.split('|');
            Some((parts.next()?, parts.next()?))
        })
        .filter(|(package, _)| !package.contains(&own))
        .collect();
    assert!(foreign.len() > 100, "{listed}");
    for (package, licence) in foreign {
        let mut words = package.split(' ');
        let (name, _version) = (words.next().unwrap(), words.next());
        assert!(!banned.contains(&name), "{package} is banned");
        let source = words.next().filter(|word| *word != "(proc-macro)");
        assert_eq!(source, None, "{package} does not come from crates.io");
        assert!(
            permitted(licence, &allowed),
            "{package} has the licence {licence}"
        );
    }
}

#[test]
fn licences_are_evaluated_as_expressions() {
    let allowed = ["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"];
    for good in [
        "MIT",
        "GPL-3.0/MIT",
        "GPL-3.0 OR ISC AND MIT",
        "(GPL-3.0 OR ISC) AND MIT",
        "Apache-2.0 WITH LLVM-exception OR GPL-3.0",
    ] {
        assert!(permitted(good, &allowed), "{good}");
    }
    for bad in [
        "",
        "GPL-3.0",
        "MIT AND GPL-3.0",
        "(MIT OR ISC) AND GPL-3.0",
        "Apache-2.0",
        "MIT AND (GPL-3.0 OR Apache-2.0)",
    ] {
        assert!(!permitted(bad, &allowed), "{bad}");
    }
}
