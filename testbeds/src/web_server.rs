//! An HTTP server that says what a test wants it to say, lies included.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::Result;

/// One request.
#[derive(Debug, Clone)]
pub struct Asked {
    pub method: String,
    /// Path and query.
    pub target: String,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
}

impl Asked {
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        headers
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    /// The first and the last byte that are asked for.
    pub fn range(&self) -> Option<(usize, usize)> {
        let (first, last) = self
            .header("range")?
            .strip_prefix("bytes=")?
            .split_once('-')?;
        Some((first.parse().ok()?, last.parse().ok()?))
    }
}

/// What is answered.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Body,
}

#[derive(Debug, Clone)]
pub enum Body {
    Bytes(Vec<u8>),
    /// Says that there are so many bytes, sends these, and hangs up.
    Cut(u64, Vec<u8>),
    /// These bytes again and again.
    Endless(Vec<u8>),
    /// So many bytes of a file, from a place on.
    File(PathBuf, u64, u64),
    /// Sends nothing, not even headers, until the test is over.
    Silence,
}

impl Reply {
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: Body::Bytes(body.into()),
        }
    }

    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    /// As [`Reply::file`], of a file that is too large to be held in memory.
    pub fn of_file(asked: &Asked, path: &Path, etag: &str) -> Self {
        let size = path.metadata().map_or(0, |meta| meta.len());
        let (status, start, length) = match asked.range() {
            Some((first, last)) => {
                let (first, last) = (first as u64, (last as u64).min(size.saturating_sub(1)));
                (206, first, (last + 1).saturating_sub(first))
            }
            None => (200, 0, size),
        };
        let mut reply = Self::new(status, "").with("ETag", etag);
        if status == 206 {
            let range = format!("bytes {start}-{}/{size}", start + length - 1);
            reply = reply.with("Content-Range", range);
        }
        reply.body = Body::File(path.to_owned(), start, length);
        reply
    }

    /// As a good server sends a file: whole, in pieces, or only its headers.
    pub fn file(asked: &Asked, content: &[u8], etag: &str) -> Self {
        let marked = |status, body: &[u8]| {
            Self::new(status, body)
                .with("ETag", etag)
                .with("Accept-Ranges", "bytes")
        };
        let same = asked.header("if-range").is_none_or(|mark| mark == etag);
        let Some((first, last)) = asked.range().filter(|_| same) else {
            return marked(200, content);
        };
        let Some(rest) = content.get(first..).filter(|rest| !rest.is_empty()) else {
            return marked(416, b"");
        };
        let length = last.saturating_sub(first).saturating_add(1).min(rest.len());
        let (piece, _) = rest.split_at(length);
        let range = format!("bytes {first}-{}/{}", first + length - 1, content.len());
        marked(206, piece).with("Content-Range", range)
    }
}

/// Serves until the process ends.
#[derive(Debug, Clone)]
pub struct WebServer {
    port: u16,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl WebServer {
    pub fn start(answer: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let server = Self {
            port: listener.local_addr()?.port(),
            asked: Arc::default(),
        };
        let (answer, asked) = (Arc::new(answer), Arc::clone(&server.asked));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (answer, asked) = (Arc::clone(&answer), Arc::clone(&asked));
                thread::spawn(move || {
                    let _hung_up = serve(&stream, &*answer, &asked);
                });
            }
        });
        Ok(server)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self, target: &str) -> String {
        format!("http://127.0.0.1:{}{target}", self.port)
    }

    /// Everything that was asked so far.
    pub fn asked(&self) -> Vec<Asked> {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.clone()
    }
}

fn serve(
    stream: &TcpStream,
    answer: &(impl Fn(&Asked) -> Reply + ?Sized),
    log: &Mutex<Vec<Asked>>,
) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    while let Some(asked) = read(&mut reader)? {
        let reply = answer(&asked);
        let headers_only = asked.method == "HEAD";
        log.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(asked);
        send(stream, &reply, headers_only)?;
        if !matches!(reply.body, Body::Bytes(_) | Body::File(..)) {
            break;
        }
    }
    Ok(())
}

fn read(reader: &mut impl BufRead) -> io::Result<Option<Asked>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let mut word = || words.next().unwrap_or_default().to_owned();
    let (method, target) = (word(), word());
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':') {
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    Ok(Some(Asked {
        method,
        target,
        headers,
    }))
}

fn send(mut stream: &TcpStream, reply: &Reply, headers_only: bool) -> io::Result<()> {
    let mut head = format!("HTTP/1.1 {} Said\r\n", reply.status);
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    match &reply.body {
        Body::Bytes(bytes) => head.push_str(&format!("Content-Length: {}\r\n\r\n", bytes.len())),
        Body::Cut(length, _) => head.push_str(&format!("Content-Length: {length}\r\n\r\n")),
        Body::File(_, _, length) => head.push_str(&format!("Content-Length: {length}\r\n\r\n")),
        Body::Endless(_) => head.push_str("Connection: close\r\n\r\n"),
        Body::Silence => {
            thread::sleep(Duration::from_secs(3600));
            return Ok(());
        }
    }
    stream.write_all(head.as_bytes())?;
    if headers_only {
        return Ok(());
    }
    match &reply.body {
        Body::Bytes(bytes) | Body::Cut(_, bytes) => stream.write_all(bytes),
        Body::File(path, start, length) => {
            let mut file = File::open(path)?;
            file.seek(SeekFrom::Start(*start))?;
            io::copy(&mut file.take(*length), &mut stream).map(drop)
        }
        Body::Endless(bytes) => loop {
            stream.write_all(bytes)?;
        },
        Body::Silence => Ok(()),
    }
}
