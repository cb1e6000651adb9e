//! A directory of its own for every test, and the binary in it.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nodeyard_testbeds::executable;
use serde_json::Value;
use tempfile::TempDir;

/// A provider whose nodes come at once. `PORT` is that of the web pages.
pub(crate) const QUICK_CLOUD: &str = "
state-dir: state
webapp: {port: PORT, listen_address: 127.0.0.1}
labels: [{name: small}]
providers:
  - name: cloud
    driver: fake
    simulate: {boot-time: 0}
    cloud-images: [{name: image, image-name: Fake Precise}]
    pools: [{name: main, labels: [{name: small, cloud-image: image, min-ram: 1}]}]
";

/// Nothing here takes nearly as long; it only keeps a broken test from hanging.
const DEADLINE: Duration = Duration::from_secs(300);

pub(crate) struct Bed {
    directory: TempDir,
    environment: Vec<(&'static str, String)>,
}

impl Bed {
    pub(crate) fn new() -> Self {
        Self {
            directory: TempDir::new().unwrap(),
            environment: Vec::new(),
        }
    }

    /// Sets a variable for everything that runs here from now on.
    pub(crate) fn set(&mut self, name: &'static str, value: impl Into<String>) {
        self.environment.push((name, value.into()));
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// At once: whoever reads the file meanwhile sees all of what it was, or all of what it is.
    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let (path, next) = (self.path(name), self.path(&format!("{name}.next")));
        fs::write(&next, text).unwrap();
        fs::rename(next, &path).unwrap();
        path
    }

    /// A port that nobody listens on.
    pub(crate) fn free_port(&self) -> u16 {
        nodeyard_testbeds::free_port().unwrap()
    }

    /// `nodeyard`, with an environment that knows nothing of the machine.
    pub(crate) fn command(&self) -> Command {
        self.called("nodeyard")
    }

    /// The binary under another name.
    pub(crate) fn called(&self, name: &str) -> Command {
        self.equipped(self.program(name))
    }

    pub(crate) fn program(&self, name: &str) -> PathBuf {
        let binary = Path::new(env!("CARGO_BIN_EXE_nodeyard"));
        if name == "nodeyard" {
            return binary.to_owned();
        }
        let link = self.path(name);
        if !link.exists() {
            std::os::unix::fs::symlink(binary, &link).unwrap();
        }
        link
    }

    pub(crate) fn equipped(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(self.directory.path())
            .env_clear()
            .env("HOME", self.directory.path())
            .env("XDG_STATE_HOME", self.directory.path())
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Ran {
        Ran::from(self.command().args(args).output().unwrap())
    }

    /// `nodeyard up` on the store `state`, ready for commands.
    pub(crate) fn up(&self, args: &[&str]) -> Daemon {
        let args = args.iter().copied();
        let daemon = self.start("log", args.chain(["up", "--state-dir", "state"]));
        daemon.wait_for_log("store ready");
        daemon
    }

    /// Something that works until it is told to stop, with its log in a file.
    pub(crate) fn start<'a>(&self, log: &str, args: impl IntoIterator<Item = &'a str>) -> Daemon {
        let mut command = self.command();
        command.args(["--color", "never"]).args(args);
        self.spawn(log, command)
    }

    /// `nodepool-builder` with a configuration file, and its log beside that.
    pub(crate) fn builder(&self, config: &str) -> Daemon {
        let mut command = self.called("nodepool-builder");
        command.args(["-f", "-c", config]);
        self.spawn(&format!("{config}.log"), command)
    }

    /// The same on a host of this name.
    pub(crate) fn builder_on(&self, host: &str, config: &str) -> Daemon {
        let mut command = self.equipped("/usr/bin/unshare");
        command
            .args(["--uts", "/bin/sh", "-c"])
            .args([r#"/bin/hostname "$0" && exec "$@""#, host])
            .arg(self.program("nodepool-builder"))
            .args(["-f", "-c", config]);
        self.spawn(&format!("{config}.log"), command)
    }

    /// The same for any command.
    pub(crate) fn spawn(&self, log: &str, mut command: Command) -> Daemon {
        let log = self.path(log);
        let file = fs::File::create(&log).unwrap();
        let child = command
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        Daemon { child, log }
    }

    /// A simulated cloud that outlives whoever uses it, for all that runs here from now on; and its address.
    pub(crate) fn simulate(&mut self) -> (Daemon, String) {
        const VARIABLE: &str = "NODEPOOL_FAKE_CLOUD_URL";
        let simulation = self.start("simulation", ["simulate", "--listen", "127.0.0.1:0"]);
        simulation.wait_for_log(VARIABLE);
        let log = simulation.log();
        let (_, url) = log.split_once(&format!("{VARIABLE}=")).unwrap();
        let url = url.lines().next().unwrap().to_owned();
        let address = url.strip_prefix("http://").unwrap().to_owned();
        self.set(VARIABLE, url);
        (simulation, address)
    }

    /// A program that makes images of a line of text, and fails while there is a file `broken`.
    pub(crate) fn image_program(&mut self) -> PathBuf {
        // It is a shell script.
        self.set("PATH", "/usr/bin:/bin");
        let program = self.path("make-image");
        executable(
            &program,
            "#!/bin/sh\n\
             echo one line of the log\n\
             [ ! -e \"$HOME/broken\" ] || exit 3\n\
             for format in $(echo \"$NODEYARD_FORMATS\" | tr , ' '); do echo x > \"$NODEYARD_OUTPUT.$format\"; done\n",
        )
        .unwrap();
        program
    }

    /// Asks for a node, by way of the store `state`.
    pub(crate) fn submit(&self, number: u32, label: &str) {
        self.submit_to(&["store", "--state-dir", "state"], number, label);
    }

    /// The same by way of the store that a beginning of a command names.
    pub(crate) fn submit_to(&self, store: &[&str], number: u32, label: &str) {
        let request = serde_json::json!({
            "state": "requested", "state_time": 1, "node_types": [label], "requestor": "test",
            "requestor_data": null, "provider": null, "event_id": "e-1",
        });
        let record = serde_json::json!({
            "path": format!("/nodepool/requests/200-{number:010}"), "data": request.to_string(),
        });
        let parents = "{\"path\":\"/nodepool\"}\n{\"path\":\"/nodepool/requests\"}";
        self.write(
            "request.jsonl",
            format!("{{\"nodeyard-export\":1}}\n{parents}\n{record}\n"),
        );
        let import = ["import", "--overwrite", "request.jsonl"];
        // A launcher that has just started may make the same directories at the same moment.
        wait_until("the request is written", || {
            self.run(store.iter().chain(&import)).code == 0
        });
    }

    /// What a person would type after `nodepool`, with the configuration that is here and JSON for an answer.
    pub(crate) fn nodepool(&self, args: &[&str]) -> Ran {
        let mut command = self.called("nodepool");
        command.args(["-c", "nodepool.yaml", "--format", "json"]);
        Ran::from(command.args(args).output().unwrap())
    }

    /// The rows of one of its lists.
    pub(crate) fn rows(&self, list: &[&str]) -> Vec<Value> {
        let list = self.nodepool(list).succeeded().json();
        list.as_array().unwrap().clone()
    }

    /// `nodeyard store` on the store `state`.
    pub(crate) fn store(&self, args: &[&str]) -> Ran {
        self.run(["store", "--state-dir", "state"].iter().chain(args))
    }
}

/// What a command left behind.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Ran {
    #[track_caller]
    pub(crate) fn succeeded(self) -> Self {
        assert_eq!(self.code, 0, "{self:#?}");
        self
    }

    #[track_caller]
    pub(crate) fn failed(self, with: &str) -> Self {
        assert_eq!(self.code, 1, "{self:#?}");
        assert!(self.err.contains(with), "{with:?} is not in {self:#?}");
        self
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap()
    }
}

/// A process that is killed when the test ends.
pub(crate) struct Daemon {
    child: Child,
    log: PathBuf,
}

impl Daemon {
    pub(crate) fn wait_for_log(&self, text: &str) {
        wait_until(&format!("{text:?} is in the log"), || {
            fs::read_to_string(&self.log).unwrap().contains(text)
        });
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to stop and returns its exit code.
    pub(crate) fn terminate(&mut self) -> i32 {
        signal(&self.child, "TERM");
        self.child.wait().unwrap().code().unwrap_or(-1)
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if thread::panicking() {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            println!("{}:\n{log}", self.log.display());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An HTTP request as it is, and the head and body of its answer.
pub(crate) fn http(address: &str, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// A call of a simulated cloud at `address`, in its own protocol.
pub(crate) fn cloud_call(address: &str, method: &str, arguments: &Value) -> Value {
    let body = arguments.to_string();
    let head = format!("POST /cloud/{method} HTTP/1.1\r\nHost: cloud\r\nConnection: close\r\n");
    let size = format!("Content-Length: {}\r\n\r\n", body.len());
    let (_, answer) = http(address, &format!("{head}{size}{body}"));
    serde_json::from_str::<Value>(&answer).unwrap()["result"].take()
}

/// A page's status and body.
pub(crate) fn get(port: u16, path: &str) -> (u16, String) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    let (head, body) = http(&format!("127.0.0.1:{port}"), &request);
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body)
}

pub(crate) fn signal(child: &Child, name: &str) {
    let status = Command::new("kill")
        .args([format!("-{name}"), child.id().to_string()])
        .status()
        .unwrap();
    assert!(status.success());
}

/// Reads lines from a child until one has this text.
pub(crate) fn read_until(child: &mut Child, text: &str) -> String {
    let out = child.stdout.as_mut().unwrap();
    let mut read = Vec::new();
    let mut byte = [0];
    while !(read.ends_with(b"\n") && String::from_utf8_lossy(&read).contains(text)) {
        assert_eq!(out.read(&mut byte).unwrap(), 1, "it ended before {text:?}");
        read.push(byte[0]);
    }
    String::from_utf8(read).unwrap()
}

#[track_caller]
pub(crate) fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < DEADLINE, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(20));
    }
}
