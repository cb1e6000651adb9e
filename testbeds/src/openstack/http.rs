//! As much of HTTP/1.1 as is needed to ask the services, and to stand between them and their clients.

use std::io::{self, BufRead, Read, Write};

use anyhow::{Context as _, Result, bail};

/// The first line of a message, and its headers.
#[derive(Debug, Clone)]
pub(super) struct Head {
    pub(super) first: String,
    pub(super) headers: Vec<(String, String)>,
}

/// How long a body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Length {
    Bytes(u64),
    Chunked,
    UntilEnd,
}

impl Head {
    /// None if there is no more message.
    pub(super) fn read(reader: &mut impl BufRead) -> io::Result<Option<Self>> {
        let mut first = String::new();
        if reader.read_line(&mut first)? == 0 {
            return Ok(None);
        }
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let Some((name, value)) = line.split_once(':') else {
                break;
            };
            headers.push((name.to_owned(), value.trim().to_owned()));
        }
        let first = first.trim_end().to_owned();
        Ok(Some(Self { first, headers }))
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        let (_, value) = headers.find(|(known, _)| known.eq_ignore_ascii_case(name))?;
        Some(value)
    }

    /// A word of the first line.
    pub(super) fn word(&self, index: usize) -> &str {
        self.first.split_whitespace().nth(index).unwrap_or_default()
    }

    /// Zero if it is the status of nothing.
    pub(super) fn status(&self) -> u16 {
        self.word(1).parse().unwrap_or(0)
    }

    /// What is said of the length; `silence` is meant where nothing is.
    pub(super) fn length(&self, silence: Length) -> Length {
        let chunked = |value: &str| value.eq_ignore_ascii_case("chunked");
        if self.header("transfer-encoding").is_some_and(chunked) {
            return Length::Chunked;
        }
        let length = self.header("content-length");
        length
            .and_then(|length| length.parse().ok())
            .map_or(silence, Length::Bytes)
    }

    pub(super) fn wants_close(&self) -> bool {
        let close = |value: &str| value.eq_ignore_ascii_case("close");
        self.header("connection").is_some_and(close)
    }

    /// With the headers that `keep` lets through and these others.
    pub(super) fn write(
        &self,
        to: &mut impl Write,
        keep: impl Fn(&str) -> bool,
        others: &[(&str, String)],
    ) -> io::Result<()> {
        let mut text = format!("{}\r\n", self.first);
        for (name, value) in self.headers.iter().filter(|(name, _)| keep(name)) {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        for (name, value) in others {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str("\r\n");
        to.write_all(text.as_bytes())
    }
}

/// Passes a body on as it is, chunks included. Fails where it ends too soon.
pub(super) fn copy_body(
    from: &mut impl BufRead,
    to: &mut impl Write,
    length: Length,
) -> io::Result<()> {
    match length {
        Length::Bytes(bytes) => copy_exactly(from, to, bytes),
        Length::UntilEnd => io::copy(from, to).map(drop),
        Length::Chunked => loop {
            let mut line = String::new();
            from.read_line(&mut line)?;
            to.write_all(line.as_bytes())?;
            let size = chunk_size(&line)?;
            copy_exactly(from, to, size + 2)?;
            if size == 0 {
                return Ok(());
            }
        },
    }
}

/// The content of a body.
pub(super) fn read_body(from: &mut impl BufRead, length: Length) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    if length != Length::Chunked {
        copy_body(from, &mut content, length)?;
        return Ok(content);
    }
    loop {
        let mut line = String::new();
        from.read_line(&mut line)?;
        let size = chunk_size(&line)?;
        copy_exactly(from, &mut content, size)?;
        copy_exactly(from, &mut io::sink(), 2)?;
        if size == 0 {
            return Ok(content);
        }
    }
}

fn chunk_size(line: &str) -> io::Result<u64> {
    let digits = line.split(';').next().unwrap_or_default().trim();
    u64::from_str_radix(digits, 16).map_err(|_| io::ErrorKind::InvalidData.into())
}

fn copy_exactly(from: &mut impl BufRead, to: &mut impl Write, bytes: u64) -> io::Result<()> {
    let copied = io::copy(&mut from.take(bytes), to)?;
    if copied < bytes {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}

/// The host with its port, and what follows.
pub(super) fn split_url(url: &str) -> Result<(&str, &str)> {
    let rest = url
        .strip_prefix("http://")
        .with_context(|| format!("{url} is no address of a service"))?;
    let end = rest.find('/').unwrap_or(rest.len());
    let (host, path) = rest.split_at(end);
    if host.is_empty() {
        bail!("{url} names no host");
    }
    Ok((host, path))
}
