//! The first minutes of a newcomer, typed in a terminal. `docs/first-minutes.md` is both what is typed and what is
//! expected; `UPDATE_GOLDEN=1` writes the page anew.

mod mask;

use std::fs;

use nodeyard_testbeds::{checkout, executable};
use serde_json::Value;

use self::mask::Mask;
use crate::bed::{Bed, wait_until};
use crate::terminal::{Terminal, Written, screen};

const PAGE: &str = "docs/first-minutes.md";

/// Stands in for the program that builds a Debian, which takes a minute and wants a network.
const BUILD: &str = "#!/bin/sh
echo \"nodeyard: progress 1/3\"
while [ ! -e \"$HOME/go-on\" ]; do sleep 0.05; done
for format in $(echo \"$NODEYARD_FORMATS\" | tr , ' '); do echo x > \"$NODEYARD_OUTPUT.$format\"; done
";

/// What is said about this machine differs from one to the next.
const ABOUT_THIS_HOST: [&str; 3] = [
    "  for real ones:",
    "The image cannot be built yet",
    "  apt-get",
];

struct Newcomer {
    bed: Bed,
    /// Where commands are typed, below the home directory.
    directory: &'static str,
    mask: Mask,
    up: Option<Terminal>,
}

impl Newcomer {
    fn new() -> Self {
        let mut bed = Bed::new();
        bed.set("PATH", "/usr/bin:/bin");
        bed.set("TERM", "xterm");
        let mask = Mask::new(bed.path("").to_str().unwrap().trim_end_matches('/'));
        Self {
            bed,
            directory: ".",
            mask,
            up: None,
        }
    }

    fn terminal(&self, line: &str) -> Terminal {
        let words = shlex::split(line).unwrap();
        assert_eq!(words[0], "nodeyard", "{line}");
        let mut command = self.bed.equipped("/usr/bin/setsid");
        command
            .current_dir(self.bed.path(self.directory))
            .arg("--ctty")
            .arg(self.bed.program("nodeyard"))
            .args(&words[1..]);
        Terminal::start(command, 80)
    }

    fn run(&self, line: &str) -> Written {
        self.terminal(line).wait()
    }

    /// Types a line of the page, and returns what the page is to say of it.
    fn types(&mut self, line: &str) -> Vec<String> {
        let line = self.mask.undo(line);
        match &*line {
            "cd yard" => {
                self.directory = "yard";
                return Vec::new();
            }
            "nodeyard up" => return self.start(),
            _ => {}
        }
        self.wait_before(&line);
        let written = if line.starts_with("nodeyard image wait") {
            self.wait_for_image(&line)
        } else {
            self.run(&line)
        };
        let shown = screen(&written.raw);
        if line.starts_with("nodeyard init") {
            self.prepare();
        }
        self.look_at_colours(&written);
        let mut lines = Vec::new();
        for line in shown {
            let about_this_host = ABOUT_THIS_HOST.iter().any(|part| line.starts_with(part));
            let twice_empty = line.is_empty() && lines.last().is_some_and(String::is_empty);
            if !about_this_host && !twice_empty {
                lines.push(self.mask.apply(&line));
            }
        }
        lines
    }

    /// Replaces what takes long, ports that others on this machine may have, and machines that nobody asks for: they
    /// would come before or after those that somebody does.
    fn prepare(&mut self) {
        executable(&self.bed.path("yard/build-debian"), BUILD).unwrap();
        let file = self.bed.path("yard/nodepool.yaml");
        let mut text = fs::read_to_string(&file).unwrap();
        text = text.replace("min-ready: 1", "min-ready: 0");
        for usual in ["8005", "8006"] {
            let port = self.bed.free_port().to_string();
            text = text.replace(&format!("port: {usual}"), &format!("port: {port}"));
            self.mask.add(&port, usual);
        }
        let pages = self.bed.free_port();
        text += &format!("builder-webapp: {{port: {pages}}}\nimages-dir-reserve: 0\n");
        fs::write(file, text).unwrap();
    }

    /// What comes after the store has no certain order, but there is little of it.
    fn start(&mut self) -> Vec<String> {
        let up = self.terminal("nodeyard up");
        up.wait_for("store ready");
        self.up = Some(up);
        wait_until("the image is being built", || {
            self.run("nodeyard build ls").raw.contains("building")
        });
        let said = screen(&self.up.as_ref().unwrap().raw());
        assert!(said.len() <= 16, "{said:#?}");
        assert!(said.iter().all(|line| line.contains(" INFO ")), "{said:#?}");
        let raw = self.up.as_ref().unwrap().raw();
        assert!(raw.contains("\x1b[32m INFO\x1b[0m"), "{raw:?}");
        let store = said
            .iter()
            .position(|line| line.contains("store ready"))
            .unwrap();
        let mut lines: Vec<String> = said[..=store]
            .iter()
            .map(|line| self.mask.log(line))
            .collect();
        lines.push("...".to_owned());
        lines
    }

    /// The line with the progress is written again and again in its place.
    fn wait_for_image(&self, line: &str) -> Written {
        let waiting = self.terminal(line);
        waiting.wait_for("building");
        assert!(!waiting.raw().contains('\n'), "{:?}", waiting.raw());
        self.bed.write("go-on", "");
        let written = waiting.wait();
        assert!(written.raw.starts_with("\r\x1b[K"), "{written:?}");
        assert_eq!(screen(&written.raw).len(), 1, "{written:?}");
        written
    }

    /// Whatever the programs do meanwhile is done.
    fn wait_before(&self, line: &str) {
        if line.starts_with("nodeyard explain") {
            wait_until("it is known how far the build is", || {
                self.run(line).raw.contains("33 % done")
            });
        }
        if line != "nodeyard status" {
            return;
        }
        let phase = match self.bed.path("go-on").exists() {
            true => "active",
            false => "waiting",
        };
        wait_until(&format!("the lease is {phase}"), || {
            let leases = self.json("nodeyard lease ls --format json");
            let label = self.json("nodeyard label show debian-simulated --format json");
            let waiting = i32::from(phase == "waiting");
            leases[0]["phase"] == phase && label["waiting"] == waiting
        });
    }

    fn json(&self, line: &str) -> Value {
        let mut command = self.bed.command();
        command.current_dir(self.bed.path(self.directory));
        let words = shlex::split(line).unwrap();
        let output = command.args(&words[1..]).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn look_at_colours(&self, written: &Written) {
        if written.code == Some(1) {
            let red = "\x1b[1m\x1b[31merror:\x1b[0m ";
            assert!(written.raw.starts_with(red), "{written:?}");
        }
    }
}

#[test]
fn look_as_the_page_shows_them() {
    let path = checkout().join(PAGE);
    let page = fs::read_to_string(&path).unwrap();
    let mut newcomer = Newcomer::new();
    let mut written = Vec::new();
    let mut in_console = false;
    for line in page.lines() {
        if line.starts_with("```") {
            in_console = !in_console;
        } else if let Some(command) = line.strip_prefix("$ ") {
            written.push(line.to_owned());
            written.extend(newcomer.types(command));
            continue;
        } else if in_console {
            continue;
        }
        written.push(line.to_owned());
    }
    let written = written.join("\n") + "\n";
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, written).unwrap();
        return;
    }
    assert!(
        written == page,
        "{PAGE} shows something else than the program; `UPDATE_GOLDEN=1` writes it anew:\n{written}"
    );
}

#[test]
fn ctrl_c_releases_the_machines() {
    let mut newcomer = Newcomer::new();
    newcomer.run("nodeyard init yard --driver fake");
    newcomer.prepare();
    newcomer.types("cd yard");
    newcomer.types("nodeyard up");
    newcomer.bed.write("go-on", "");
    newcomer.run("nodeyard image wait debian");
    let mut request = newcomer.terminal("nodeyard request debian-simulated");
    request.wait_for("press Ctrl-C");
    request.press("\x03");
    assert_eq!(request.wait().code, Some(130));
    wait_until("the lease has ended", || {
        newcomer
            .run("nodeyard lease ls")
            .raw
            .starts_with("no leases")
    });
    let mut up = newcomer.up.take().unwrap();
    up.press("\x03");
    let up = up.wait();
    assert_eq!(up.code, Some(0));
    assert!(up.raw.contains("stopped"), "{up:?}");
}
