//! The yardstick for our ZooKeeper client: the fewest bytes and system calls that can set records.
//!
//! One blocking thread writes requests that were encoded beforehand, another counts the answers. There
//! is no session handling, no matching of answers, no decoding: what a server gives is what it can.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

const SET_DATA: i32 = 5;
const CREATE: i32 = 1;
/// Requests per write call, as many as our client would put together under load.
const BURST: usize = 64;

pub(crate) struct RawClient {
    stream: TcpStream,
}

impl RawClient {
    pub(crate) fn connect(port: u16) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        let mut handshake = Vec::new();
        handshake.extend(0_i32.to_be_bytes()); // protocol version
        handshake.extend(0_i64.to_be_bytes()); // last transaction seen
        handshake.extend(30_000_i32.to_be_bytes()); // session time-out
        handshake.extend(0_i64.to_be_bytes()); // new session
        handshake.extend(16_i32.to_be_bytes());
        handshake.extend([0; 16]); // password
        let mut client = Self { stream };
        client.send(&framed(&handshake))?;
        client.receive()?;
        Ok(client)
    }

    pub(crate) fn create(&mut self, path: &str) -> anyhow::Result<()> {
        let mut body = header(1, CREATE);
        text(&mut body, path.as_bytes());
        text(&mut body, b"");
        body.extend(1_i32.to_be_bytes()); // one access rule:
        body.extend(31_i32.to_be_bytes()); // everything
        text(&mut body, b"world");
        text(&mut body, b"anyone");
        body.extend(0_i32.to_be_bytes()); // persistent
        self.send(&framed(&body))?;
        let answer = self.receive()?;
        ensure!(
            answer.get(12..16) == Some([0; 4].as_slice()),
            "the server refused to create {path}"
        );
        Ok(())
    }

    /// Sets `path` so many times with `window` requests on their way, and returns the rate per second.
    pub(crate) fn sets_per_second(
        mut self,
        path: &str,
        data: &[u8],
        count: usize,
        window: usize,
    ) -> anyhow::Result<f64> {
        let mut body = header(2, SET_DATA);
        text(&mut body, path.as_bytes());
        text(&mut body, data);
        body.extend((-1_i32).to_be_bytes()); // any version
        let one = framed(&body);
        let burst = one.repeat(BURST);

        let mut reader = self.stream.try_clone()?;
        let (done, finished) = mpsc::channel::<usize>();
        let counter = std::thread::spawn(move || count_answers(&mut reader, count, &done));
        let started = Instant::now();
        let (mut sent, mut answered) = (0, 0);
        while answered < count {
            if sent < count && sent - answered + BURST <= window {
                let part = BURST.min(count - sent);
                self.stream
                    .write_all(burst.get(..part * one.len()).context("burst")?)?;
                sent += part;
            } else {
                answered += finished
                    .recv()
                    .context("the server closed the connection")?;
            }
        }
        let elapsed = started.elapsed();
        counter
            .join()
            .map_err(|_| anyhow::anyhow!("the counting thread failed"))??;
        Ok(count as f64 / elapsed.as_secs_f64())
    }

    fn send(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.stream.write_all(bytes).context("cannot send")
    }

    fn receive(&mut self) -> anyhow::Result<Vec<u8>> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let mut body = vec![0; usize::try_from(i32::from_be_bytes(length))?];
        self.stream.read_exact(&mut body)?;
        Ok(body)
    }
}

fn count_answers(
    reader: &mut TcpStream,
    total: usize,
    done: &mpsc::Sender<usize>,
) -> anyhow::Result<()> {
    let mut buffer = vec![0; 256 * 1024];
    let (mut filled, mut seen) = (0, 0);
    while seen < total {
        let read = reader.read(buffer.get_mut(filled..).context("buffer")?)?;
        ensure!(read > 0, "the server closed the connection");
        filled += read;
        let (mut at, mut batch) = (0, 0);
        while let Some(length) = buffer
            .get(at..filled)
            .and_then(|rest| rest.first_chunk::<4>())
        {
            let end = at + 4 + usize::try_from(i32::from_be_bytes(*length))?;
            if end > filled {
                break;
            }
            at = end;
            batch += 1;
        }
        buffer.copy_within(at..filled, 0);
        filled -= at;
        seen += batch;
        let _ = done.send(batch);
    }
    Ok(())
}

fn header(xid: i32, operation: i32) -> Vec<u8> {
    [xid.to_be_bytes(), operation.to_be_bytes()].concat()
}

fn text(body: &mut Vec<u8>, bytes: &[u8]) {
    body.extend((bytes.len() as i32).to_be_bytes());
    body.extend(bytes);
}

fn framed(body: &[u8]) -> Vec<u8> {
    let mut frame = (body.len() as i32).to_be_bytes().to_vec();
    frame.extend(body);
    frame
}
