//! Nodepool's own tests, with other programs in the place of its launcher and builder.
//!
//! `testbeds/nodepool-suite` has the stand-ins and the list of tests that can be run so: those that do not reach into
//! the objects of Python's programs.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::{fs, thread};

use anyhow::{Context, Result};

use crate::checkout::testbeds;
use crate::process::tied;
use crate::python;
use crate::zookeeper::ZooKeeperServer;

/// Tests at once. They wait most of the time.
const AT_ONCE: usize = 4;

/// Tries of a test. Some of them undo locks and records by hand, one after the other, and assume that a launcher looks
/// once in a second; one that looks at once may be in between.
const TRIES: usize = 3;

/// What came of the tests.
#[derive(Debug, Default)]
pub struct Report {
    pub passed: usize,
    /// Of these, what failed before they passed.
    pub repeated: Vec<(String, String)>,
    /// The whole output of each test that failed.
    pub failed: Vec<(String, String)>,
}

/// Runs all tests of the list. `programs` is a directory with links named `nodepool-launcher` and `nodepool-builder`.
pub fn run(zookeeper: &ZooKeeperServer, programs: &Path) -> Result<Report> {
    let list = testbeds().join("nodepool-suite/tests.txt");
    let list =
        fs::read_to_string(&list).with_context(|| format!("cannot read {}", list.display()))?;
    let tests = list.lines().map(str::trim);
    let tests = tests.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let waiting: Mutex<Vec<&str>> = Mutex::new(tests.collect());
    let python = python::environment("nodepool")?.join("bin/python3");
    let report = Mutex::new(Report::default());
    thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE)
            .map(|_| {
                scope.spawn(|| -> Result<()> {
                    while let Some(test) = next(&waiting) {
                        let attempt = || try_once(command(zookeeper, programs, &python).arg(test));
                        let failures = failures(attempt)?;
                        let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
                        let told = (test.to_owned(), failures.concat());
                        match failures.len() {
                            TRIES => report.failed.push(told),
                            0 => report.passed += 1,
                            _ => {
                                report.passed += 1;
                                report.repeated.push(told);
                            }
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| {
            let ended = worker.join();
            ended.unwrap_or_else(|_| anyhow::bail!("a thread that runs tests has panicked"))
        })
    })?;
    Ok(report.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// The outputs of the tries that failed. If there are fewer than [`TRIES`], the next one passed.
fn failures(mut attempt: impl FnMut() -> Result<Option<String>>) -> Result<Vec<String>> {
    let mut failures = Vec::new();
    while failures.len() < TRIES {
        match attempt()? {
            Some(output) => failures.push(output),
            None => break,
        }
    }
    Ok(failures)
}

/// The output of a test that failed.
fn try_once(command: &mut Command) -> Result<Option<String>> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(None);
    }
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    Ok(Some(text))
}

fn next<'t>(waiting: &Mutex<Vec<&'t str>>) -> Option<&'t str> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner).pop()
}

fn command(zookeeper: &ZooKeeperServer, programs: &Path, python: &Path) -> Command {
    let certificates = zookeeper.certificates();
    let mut command = tied(&python.to_string_lossy());
    command
        .arg(testbeds().join("nodepool-suite/run.py"))
        .arg("--launcher")
        .arg(programs.join("nodepool-launcher"))
        .arg("--builder")
        .arg(programs.join("nodepool-builder"))
        .env(
            "NODEPOOL_ZK_HOST",
            format!("localhost:{}", zookeeper.tls_port()),
        )
        .env("NODEPOOL_ZK_CA", &certificates.ca)
        .env("NODEPOOL_ZK_CERT", &certificates.client.cert)
        .env("NODEPOOL_ZK_KEY", &certificates.client.key)
        .stdin(Stdio::null());
    command
}
