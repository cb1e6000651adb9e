//! The calls of one client, one after the other on its connection; each gets a connection to the service.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustls::{ServerConnection, StreamOwned};

use super::fault::{Answer, Fault, Passage};
use super::{Call, Door, Shared};
use crate::openstack::api::Service;
use crate::openstack::http::{Head, Length, copy_body, read_body};

/// What concerns one connection and not the message.
const HOP: [&str; 4] = [
    "connection",
    "keep-alive",
    "content-length",
    "transfer-encoding",
];

pub(super) fn serve(shared: &Shared, door: Door, client: TcpStream) -> io::Result<()> {
    client.set_nodelay(true)?;
    match &shared.tls {
        None => converse(shared, door, client),
        Some(tls) => {
            let connection = ServerConnection::new(Arc::clone(tls)).map_err(io::Error::other)?;
            converse(shared, door, StreamOwned::new(connection, client))
        }
    }
}

/// Returns when the client hangs up, or is to be hung up on.
fn converse(shared: &Shared, door: Door, client: impl Read + Write) -> io::Result<()> {
    let mut client = BufReader::new(client);
    while let Some(head) = Head::read(&mut client)? {
        let close = head.wants_close();
        let Some(answer) = relay(shared, door, &head, &mut client)? else {
            break;
        };
        send(client.get_mut(), &answer, head.word(0) == "HEAD")?;
        if close {
            break;
        }
    }
    Ok(())
}

/// None where the connection is to break.
fn relay(
    shared: &Shared,
    door: Door,
    head: &Head,
    body: &mut impl BufRead,
) -> io::Result<Option<Answer>> {
    let call = describe(door.service, head);
    let (number, fault, toll) = shared.begin(call.clone(), head.header("x-auth-token"));
    let length = head.length(Length::Bytes(0));
    let answer = match fault {
        None => match toll {
            None => Some(forward(shared, door, head, body)?),
            Some(toll) => {
                let mut result = None;
                let passage = toll.pass(&call, &mut || {
                    if result.is_none() {
                        result = Some(forward(shared, door, head, body));
                    }
                });
                match (passage, result) {
                    (Passage::Through, Some(result)) => Some(result?),
                    (Passage::Through, None) => Some(forward(shared, door, head, body)?),
                    (Passage::Cut, _) => None,
                    (Passage::Answer(answer), Some(_)) => Some(answer),
                    (Passage::Answer(answer), None) => {
                        copy_body(body, &mut io::sink(), length)?;
                        Some(answer)
                    }
                }
            }
        },
        Some(Fault::Answer(answer)) => {
            copy_body(body, &mut io::sink(), length)?;
            Some(answer)
        }
        Some(Fault::CutBefore) => None,
        Some(Fault::AnswerLost) => {
            forward(shared, door, head, body)?;
            None
        }
        Some(Fault::CutUpload(bytes)) => {
            cut(door, head, body, bytes)?;
            None
        }
        Some(Fault::Delay(time)) => {
            thread::sleep(time);
            Some(forward(shared, door, head, body)?)
        }
        Some(Fault::Silence) => {
            thread::sleep(Duration::from_secs(3600));
            None
        }
        Some(Fault::Altered(change)) => {
            let mut answer = forward(shared, door, head, body)?;
            if let Ok(mut json) = serde_json::from_slice(&answer.body) {
                change(&mut json);
                answer.body = json.to_string().into_bytes();
            }
            Some(answer)
        }
    };
    if let Some(answer) = &answer {
        shared.end(number, answer);
    }
    Ok(answer)
}

fn describe(service: Service, head: &Head) -> Call {
    let (path, query) = head.word(1).split_once('?').unwrap_or((head.word(1), ""));
    let named = |part: &str| {
        let digits = part.chars().filter(char::is_ascii_hexdigit).count();
        digits == 32 && part.chars().all(|c| c.is_ascii_hexdigit() || c == '-')
    };
    let parts = path
        .split('/')
        .map(|part| if named(part) { "{id}" } else { part });
    Call {
        service,
        method: head.word(0).to_owned(),
        path: parts.collect::<Vec<_>>().join("/"),
        query: query.to_owned(),
        began: Instant::now(),
        status: None,
    }
}

fn forward(
    shared: &Shared,
    door: Door,
    head: &Head,
    body: &mut impl BufRead,
) -> io::Result<Answer> {
    let mut service = begin(door, head)?;
    // A service may answer before it has read everything, and hang up.
    let sent = copy_body(body, &mut service, head.length(Length::Bytes(0)));
    if sent.is_err() {
        // A client that hung up sends no more, and the service would wait for it for ever.
        let _ = service.shutdown(Shutdown::Write);
    }
    let mut reader = BufReader::new(&service);
    let answer = match Head::read(&mut reader) {
        Ok(Some(answer)) => answer,
        ended => {
            sent?;
            ended?;
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    };
    let nothing = head.word(0) == "HEAD" || matches!(answer.status(), 204 | 304);
    let length = match nothing {
        true => Length::Bytes(0),
        false => answer.length(Length::UntilEnd),
    };
    let mut body = read_body(&mut reader, length)?;
    if door.service == Service::Identity {
        body = with_our_ports(shared, &body);
    }
    let status = answer.status();
    let mut headers = answer.headers;
    headers.retain(|(name, _)| !is_hop(name));
    Ok(Answer {
        status,
        headers,
        body,
    })
}

/// Opens a connection to the service and says everything but the body. The name of the host is left as the client has it,
/// so that links in answers lead through here.
fn begin(door: Door, head: &Head) -> io::Result<TcpStream> {
    let mut service = TcpStream::connect(door.target)?;
    service.set_nodelay(true)?;
    let keep = |name: &str| !name.eq_ignore_ascii_case("connection");
    head.write(&mut service, keep, &[("Connection", "close".to_owned())])?;
    Ok(service)
}

fn cut(door: Door, head: &Head, body: &mut impl BufRead, bytes: u64) -> io::Result<()> {
    let service = begin(door, head)?;
    let bytes = match head.length(Length::Bytes(0)) {
        Length::Bytes(length) => bytes.min(length.saturating_sub(1)),
        Length::Chunked | Length::UntilEnd => bytes,
    };
    copy_body(body, &mut &service, Length::Bytes(bytes))?;
    service.shutdown(Shutdown::Both)
}

fn send(client: &mut impl Write, answer: &Answer, headers_only: bool) -> io::Result<()> {
    let head = Head {
        first: format!("HTTP/1.1 {} Said", answer.status),
        headers: answer.headers.clone(),
    };
    let mut others = Vec::new();
    if answer.status != 204 && answer.status != 304 {
        others.push(("Content-Length", answer.body.len().to_string()));
    }
    head.write(client, |name| !is_hop(name), &others)?;
    if !headers_only {
        client.write_all(&answer.body)?;
    }
    client.flush()
}

fn is_hop(name: &str) -> bool {
    HOP.iter().any(|hop| name.eq_ignore_ascii_case(hop))
}

/// Replaces the addresses of all services.
fn with_our_ports(shared: &Shared, body: &[u8]) -> Vec<u8> {
    let mut text = String::from_utf8_lossy(body).into_owned();
    let scheme = shared.tls.as_ref().map_or("http", |_| "https");
    for door in &shared.doors {
        let theirs = format!("http://{}", door.target);
        let ours = format!("{scheme}://127.0.0.1:{}", door.port);
        for end in ['/', '"'] {
            text = text.replace(&format!("{theirs}{end}"), &format!("{ours}{end}"));
        }
    }
    text.into_bytes()
}
