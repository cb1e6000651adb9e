//! Nodepool's own tests, with other programs in the place of its launcher and builder.
//!
//! `testbeds/nodepool-suite` has the stand-ins and the list of tests that can be run so: those that do not reach into
//! the objects of Python's programs.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command};
use std::sync::{Mutex, PoisonError};
use std::{fs, thread};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::checkout::testbeds;
use crate::process::{Process, tail, temporary_directory, tied};
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
    let directory = temporary_directory()?;
    let report = Mutex::new(Report::default());
    thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE)
            .map(|number| {
                let log = directory.path().join(format!("{number}.log"));
                let (waiting, report, python) = (&waiting, &report, &python);
                scope.spawn(move || -> Result<()> {
                    let mut runner = Runner::start(command(zookeeper, programs, python), &log)?;
                    while let Some(test) = next(waiting) {
                        let failures = failures(|| runner.run(test))
                            .with_context(|| format!("{test}: {}", tail(&log)))?;
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

/// A Python that has imported Nodepool and runs each test in a child process of its own: half of what a test costs is to
/// import.
struct Runner {
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    _process: Process,
}

#[derive(Deserialize)]
struct Ended {
    code: i32,
    output: String,
}

impl Runner {
    fn start(command: Command, log: &Path) -> Result<Self> {
        let (process, stdin, stdout) = Process::start_conversation(command, log)?;
        Ok(Self {
            stdin,
            stdout: BufReader::new(stdout),
            _process: process,
        })
    }

    /// Returns the output of the test if it failed.
    fn run(&mut self, test: &str) -> Result<Option<String>> {
        writeln!(self.stdin, "{test}")?;
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        ensure!(!line.is_empty(), "the program that runs tests has ended");
        let ended: Ended = serde_json::from_str(&line)?;
        Ok((ended.code != 0).then_some(ended.output))
    }
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
        .env("NODEPOOL_ZK_KEY", &certificates.client.key);
    command
}
