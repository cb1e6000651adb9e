//! Zuul's own Nodepool client classes, steered by a test: `zuul/zuul_client.py`.
//!
//! It plays scheduler and executor at once and needs nothing of Zuul but the package, so it starts in seconds. Any
//! number can share a ZooKeeper.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::checkout::testbeds;
use crate::process::{Log, Process, tail, temporary_directory, tied};
use crate::python;
use crate::zookeeper::ZooKeeperServer;

const END_PATIENCE: Duration = Duration::from_secs(300);

/// Dropping it breaks its connection and leaves its session to the server, like an executor that died;
/// [`ZuulClient::close`] is the orderly end.
#[derive(Debug)]
pub struct ZuulClient {
    process: Process,
    pipes: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
    log: Log,
    _directory: TempDir,
}

#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// Where to connect instead, with TLS all the same: the port of a [`Proxy`](crate::Proxy) to the server.
    pub port: Option<u16>,
    pub session: Duration,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            port: None,
            session: Duration::from_secs(10),
        }
    }
}

impl ZuulClient {
    pub fn start(zookeeper: &ZooKeeperServer, options: &ClientOptions) -> Result<Self> {
        let directory = temporary_directory()?;
        let certificates = zookeeper.certificates();
        let port = options.port.unwrap_or_else(|| zookeeper.tls_port());
        let python = python::environment("zuul")?.join("bin/python");
        let mut command = tied(&python.display().to_string());
        command
            .arg(testbeds().join("zuul/zuul_client.py"))
            .arg(format!("127.0.0.1:{port}"))
            .arg(&certificates.ca)
            .arg(&certificates.client.cert)
            .arg(&certificates.client.key)
            .arg(options.session.as_secs_f64().to_string());
        let path = directory.path().join("zuul-client.log");
        let (process, stdin, stdout) = Process::start_conversation(command, &path)?;
        Ok(Self {
            process,
            pipes: Mutex::new((stdin, BufReader::new(stdout))),
            log: Log { path },
            _directory: directory,
        })
    }

    /// Does one of the things that the script lists, `arguments` being an object, and waits for the answer.
    pub fn call(&self, action: &str, mut arguments: Value) -> Result<Value> {
        if let Some(arguments) = arguments.as_object_mut() {
            arguments.insert("do".to_owned(), action.into());
        }
        let mut pipes = self.pipes.lock().unwrap_or_else(PoisonError::into_inner);
        let (stdin, stdout) = &mut *pipes;
        let ended = || format!("Zuul's client has ended:\n{}", tail(&self.log.path));
        writeln!(stdin, "{arguments}").with_context(ended)?;
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        let answer: Value = serde_json::from_str(&line).with_context(ended)?;
        if let Some(error) = answer.get("error") {
            bail!("{action}: {error}");
        }
        Ok(answer)
    }

    /// Returns the id of the request.
    pub fn submit(&self, labels: &[&str]) -> Result<String> {
        text(
            &self.call("submit", json!({ "labels": labels }))?,
            "request",
        )
    }

    /// Waits until it is fulfilled or has failed, and returns that state.
    pub fn wait(&self, request: &str) -> Result<String> {
        text(&self.call("wait", json!({ "request": request }))?, "state")
    }

    /// Locks the nodes of a fulfilled request, deletes the request, and returns the records of the nodes.
    pub fn accept(&self, request: &str) -> Result<Vec<Value>> {
        list(self.call("accept", json!({ "request": request }))?, "nodes")
    }

    pub fn use_nodes(&self, request: &str) -> Result<()> {
        self.call("use", json!({ "request": request })).map(drop)
    }

    pub fn give_back(&self, request: &str) -> Result<()> {
        self.call("give_back", json!({ "request": request }))
            .map(drop)
    }

    /// Holds nodes that were accepted and gives them back. Returns the id of the hold.
    pub fn hold(&self, request: &str) -> Result<String> {
        text(&self.call("hold", json!({ "request": request }))?, "hold")
    }

    pub fn release(&self, hold: &str) -> Result<()> {
        self.call("release", json!({ "hold": hold })).map(drop)
    }

    pub fn cancel(&self, request: &str) -> Result<()> {
        self.call("cancel", json!({ "request": request })).map(drop)
    }

    /// False if someone works on the request.
    pub fn revise(&self, request: &str, relative_priority: i64) -> Result<bool> {
        let arguments = json!({ "request": request, "relative_priority": relative_priority });
        let answer = self.call("revise", arguments)?;
        Ok(answer.get("revised") == Some(&Value::Bool(true)))
    }

    /// The records of all requests.
    pub fn requests(&self) -> Result<Vec<Value>> {
        list(self.call("requests", json!({}))?, "requests")
    }

    /// The records of all nodes.
    pub fn nodes(&self) -> Result<Vec<Value>> {
        list(self.call("nodes", json!({}))?, "nodes")
    }

    /// Breaks the connection without closing the session.
    pub fn disconnect(&self) -> Result<()> {
        self.call("disconnect", json!({})).map(drop)
    }

    /// Says whether the session is a new one.
    pub fn reconnect(&self) -> Result<bool> {
        let answer = self.call("reconnect", json!({}))?;
        Ok(answer.get("new_session") == Some(&Value::Bool(true)))
    }

    /// Ends the session in order.
    pub fn close(mut self) -> Result<()> {
        // The end of its input.
        drop(self.pipes);
        let ended = self.process.ends_within(END_PATIENCE);
        ensure!(
            ended,
            "Zuul's client does not end:\n{}",
            tail(&self.log.path)
        );
        Ok(())
    }
}

fn text(answer: &Value, member: &str) -> Result<String> {
    let text = answer.get(member).and_then(Value::as_str);
    Ok(text
        .with_context(|| format!("no {member} in {answer}"))?
        .to_owned())
}

fn list(mut answer: Value, member: &str) -> Result<Vec<Value>> {
    match answer.get_mut(member).map(Value::take) {
        Some(Value::Array(list)) => Ok(list),
        _ => bail!("no {member} in the answer"),
    }
}
