//! Commands in a pseudo-terminal, and what a person sees of them.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::bed::wait_until;

pub(crate) struct Terminal {
    child: Child,
    keyboard: File,
    written: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

/// What a command has written to its terminal until it ended.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) code: Option<i32>,
    /// With all control sequences.
    pub(crate) raw: String,
}

impl Terminal {
    /// Starts `setsid --ctty` with what it is to run, so that the terminal controls it and Ctrl-C arrives.
    pub(crate) fn start(mut setsid: Command, columns: u16) -> Self {
        let (master, terminal) = open(columns);
        let child = setsid
            .stdin(terminal.try_clone().unwrap())
            .stdout(terminal.try_clone().unwrap())
            .stderr(terminal)
            .spawn()
            .unwrap();
        // It has copies of the terminal, without whose end reading would never end.
        drop(setsid);
        let written = Arc::new(Mutex::new(Vec::new()));
        let mut screen = File::from(master.try_clone().unwrap());
        let sink = Arc::clone(&written);
        let reader = thread::spawn(move || {
            let mut part = [0; 4096];
            // Reading fails when no process has the terminal any more.
            while let Ok(length @ 1..) = screen.read(&mut part) {
                sink.lock().unwrap().extend_from_slice(&part[..length]);
            }
        });
        Self {
            child,
            keyboard: master.into(),
            written,
            reader: Some(reader),
        }
    }

    pub(crate) fn raw(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().unwrap()).into_owned()
    }

    pub(crate) fn wait_for(&self, text: &str) {
        wait_until(&format!("{text:?} is on the terminal"), || {
            self.raw().contains(text)
        });
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    pub(crate) fn wait(mut self) -> Written {
        let code = self.child.wait().unwrap().code();
        self.reader.take().unwrap().join().unwrap();
        Written {
            code,
            raw: self.raw(),
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn open(columns: u16) -> (OwnedFd, OwnedFd) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let size = Winsize {
        ws_row: 24,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(&master, size).unwrap();
    let terminal = ioctl_tiocgptpeer(&master, flags).unwrap();
    (master, terminal)
}

/// Returns the lines that stand on the screen in the end: without colours, and without what was written over.
pub(crate) fn screen(raw: &str) -> Vec<String> {
    let mut lines = vec![Vec::new()];
    let mut column = 0;
    let mut rest = raw.chars();
    while let Some(char) = rest.next() {
        let line = lines.last_mut().unwrap();
        match char {
            '\n' => lines.push(Vec::new()),
            '\r' => column = 0,
            '\x1b' => {
                assert_eq!(rest.next(), Some('['), "{raw:?}");
                match rest.find(char::is_ascii_alphabetic) {
                    Some('K') => line.truncate(column),
                    Some('m') => {}
                    other => panic!("{other:?} is not understood in {raw:?}"),
                }
            }
            char => {
                line.truncate(column);
                line.push(char);
                column += 1;
            }
        }
    }
    let text = |line: &Vec<char>| line.iter().collect::<String>().trim_end().to_owned();
    let mut lines: Vec<String> = lines.iter().map(text).collect();
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    lines
}
