//! `nodeyard up` on the ZooKeeper of a Zuul, with pages that explain what it does.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use nodeyard_testbeds::{ZooKeeperServer, connection, free_port};
use serde_json::Value;
use tempfile::TempDir;

use crate::bed::{LONG_SESSION, wait_until};

pub(crate) struct Yard {
    directory: TempDir,
    connection: String,
    web_port: u16,
    api_port: u16,
    environment: Vec<(&'static str, PathBuf)>,
    /// The command whose output helps whoever looks for the reason of a failure.
    told_on_failure: &'static [&'static str],
    process: Option<Child>,
}

impl Yard {
    pub(crate) fn new(
        zookeeper: &ZooKeeperServer,
        told_on_failure: &'static [&'static str],
    ) -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            connection: connection(zookeeper, LONG_SESSION),
            web_port: free_port().unwrap(),
            api_port: free_port().unwrap(),
            environment: Vec::new(),
            told_on_failure,
            process: None,
        }
    }

    pub(crate) fn set(&mut self, name: &'static str, value: PathBuf) {
        self.environment.push((name, value));
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Also while it runs. As editors do it: a new file takes the name of the old one.
    pub(crate) fn configure(&self, configuration: &str) {
        let text = format!(
            "{}webapp: {{port: {}, listen_address: 127.0.0.1}}\napi: {{port: {}}}\n{configuration}",
            self.connection, self.web_port, self.api_port
        );
        fs::write(self.path("next"), text).unwrap();
        fs::rename(self.path("next"), self.path("nodepool.yaml")).unwrap();
    }

    /// Our binary is the program that it is called as.
    fn called(&self, program: &str) -> Command {
        let link = self.path(program);
        if !link.exists() {
            symlink(env!("CARGO_BIN_EXE_nodeyard"), &link).unwrap();
        }
        let mut command = Command::new(link);
        command
            .current_dir(self.directory.path())
            .env("XDG_STATE_HOME", self.directory.path())
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .args(["-c", "nodepool.yaml"])
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn up(&mut self) {
        let log = fs::File::create(self.path("up.log")).unwrap();
        let process = self
            .called("nodeyard")
            .arg("up")
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn();
        self.process = Some(process.unwrap());
        let log = self.path("up.log");
        wait_until("it serves", || {
            let ended = self
                .process
                .as_mut()
                .is_some_and(|process| process.try_wait().unwrap().is_some());
            assert!(!ended, "nodeyard up has ended");
            fs::read_to_string(&log)
                .unwrap_or_default()
                .contains("web pages")
        });
    }

    /// What a program of ours prints; nothing if it fails.
    pub(crate) fn says(&self, words: &[&str]) -> String {
        let (program, args) = words.split_first().unwrap();
        let output = self.called(program).args(args).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// The same as data.
    pub(crate) fn lists(&self, words: &[&str]) -> Value {
        let (program, args) = words.split_first().unwrap();
        let words = [&[*program, "--format", "json"], args].concat();
        serde_json::from_str(&self.says(&words)).unwrap_or_default()
    }
}

impl Drop for Yard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "{}\n{}",
                fs::read_to_string(self.path("up.log")).unwrap_or_default(),
                self.says(self.told_on_failure)
            );
        }
        if let Some(process) = &mut self.process {
            let _ended = process.kill();
            let _ended = process.wait();
        }
    }
}
