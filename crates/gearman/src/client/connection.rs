//! One connection of a client, shared by all its jobs on that server.
//!
//! A server answers requests in order, so the oldest unanswered request owns the next answer; events of jobs carry
//! their handle and come in between. OPTION_REQ is not among the requests that await an answer, because gear's
//! server never gives one.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use tokio::io::{ReadHalf, WriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio_util::codec::{FramedRead, FramedWrite};
use tokio_util::sync::CancellationToken;

use super::{ClientError, ClientOptions, JobEvent, JobStatus, Refusal};
use crate::codec::{Codec, Frame, Magic, Packet, without_trailing_nul};
use crate::net::{Endpoint, Stream};

/// Events of one job that may wait for their reader before the whole connection does.
const EVENTS_AHEAD: usize = 256;

#[derive(Debug)]
pub(super) struct Connection {
    server: Arc<str>,
    writer: Arc<Writer>,
    waiting: Arc<Mutex<Waiting>>,
    closed: CancellationToken,
}

/// Emptied when the connection ends, which hangs up.
type Writer = tokio::sync::Mutex<Option<FramedWrite<WriteHalf<Stream>, Codec>>>;

#[derive(Debug, Default)]
struct Waiting {
    requests: VecDeque<Request>,
    /// A server that merges equal jobs gives several submits the same handle.
    jobs: HashMap<Bytes, Vec<mpsc::Sender<JobEvent>>>,
    gone: bool,
}

#[derive(Debug)]
struct Request {
    /// Where the events of the job go that this request submits.
    events: Option<mpsc::Sender<JobEvent>>,
    answer: oneshot::Sender<Answer>,
}

#[derive(Debug)]
pub(super) enum Answer {
    Created(Bytes),
    Status(JobStatus),
    Echo(Bytes),
    Refused(Refusal),
}

impl Connection {
    pub(super) async fn open(
        endpoint: &Endpoint,
        options: &ClientOptions,
    ) -> Result<Arc<Self>, ClientError> {
        let stream = endpoint
            .connect(options.connect_timeout, options.keepalive)
            .await?;
        let (reader, writer) = tokio::io::split(stream);
        let codec = Codec::new(Magic::Request, options.limits);
        let mut writer = FramedWrite::new(writer, codec.clone());
        if options.exceptions {
            let option = Packet::OptionReq {
                option: Bytes::from_static(b"exceptions"),
            };
            let sent = writer.send(&option).await;
            sent.map_err(|source| ClientError::NotSent {
                server: endpoint.to_string(),
                source,
            })?;
        }
        let connection = Arc::new(Self {
            server: endpoint.to_string().into(),
            writer: Arc::new(Writer::new(Some(writer))),
            waiting: Arc::default(),
            closed: CancellationToken::new(),
        });
        let reading = Reading {
            server: connection.server.clone(),
            frames: FramedRead::new(reader, codec),
            waiting: connection.waiting.clone(),
        };
        let closed = connection.closed.clone();
        let writer = connection.writer.clone();
        tokio::spawn(async move {
            let waiting = reading.waiting.clone();
            tokio::select! {
                () = reading.run() => {}
                () = closed.cancelled() => {}
            }
            // Dropping the senders is what tells everybody who waits.
            *lock(&waiting) = Waiting {
                gone: true,
                ..Waiting::default()
            };
            writer.lock().await.take();
        });
        Ok(connection)
    }

    pub(super) fn is_gone(&self) -> bool {
        lock(&self.waiting).gone
    }

    /// Sends a request that awaits an answer.
    pub(super) async fn request(
        &self,
        packet: &Packet,
        events: Option<mpsc::Sender<JobEvent>>,
        options: &ClientOptions,
    ) -> Result<Answer, ClientError> {
        let unknown = || ClientError::OutcomeUnknown {
            server: self.server.to_string(),
        };
        let not_sent = |source| ClientError::NotSent {
            server: self.server.to_string(),
            source,
        };
        let exchange = async {
            let (answer, answered) = oneshot::channel();
            {
                let mut writer = self.writer.lock().await;
                let Some(writer) = writer.as_mut() else {
                    return Err(not_sent(
                        io::Error::from(io::ErrorKind::NotConnected).into(),
                    ));
                };
                writer.feed(packet).await.map_err(not_sent)?;
                {
                    let mut waiting = lock(&self.waiting);
                    if waiting.gone {
                        return Err(not_sent(
                            io::Error::from(io::ErrorKind::NotConnected).into(),
                        ));
                    }
                    waiting.requests.push_back(Request { events, answer });
                }
                writer.flush().await.map_err(|_| unknown())?;
            }
            answered.await.map_err(|_| unknown())
        };
        match tokio::time::timeout(options.answer_timeout, exchange).await {
            Ok(result) => result,
            Err(_) => {
                // Later answers could not be told apart from the missing one.
                self.closed.cancel();
                Err(unknown())
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}

pub(super) fn event_channel() -> (mpsc::Sender<JobEvent>, mpsc::Receiver<JobEvent>) {
    mpsc::channel(EVENTS_AHEAD)
}

struct Reading {
    server: Arc<str>,
    frames: FramedRead<ReadHalf<Stream>, Codec>,
    waiting: Arc<Mutex<Waiting>>,
}

impl Reading {
    async fn run(mut self) {
        while let Some(frame) = self.frames.next().await {
            let packet = match frame {
                Ok(Frame::Packet(packet)) => packet,
                Ok(Frame::Line(line)) => {
                    tracing::warn!(server = %self.server, line, "gearman server sent text");
                    return;
                }
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(server = %self.server, error, "connection to gearman server lost");
                    return;
                }
            };
            match packet {
                Packet::WorkData { handle, data } => {
                    self.event(&handle, JobEvent::Data(data)).await;
                }
                Packet::WorkWarning { handle, data } => {
                    self.event(&handle, JobEvent::Warning(data)).await;
                }
                Packet::WorkStatus {
                    handle,
                    numerator,
                    denominator,
                } => {
                    let status = JobEvent::Status {
                        numerator: number(&numerator),
                        denominator: number(&denominator),
                    };
                    self.event(&handle, status).await;
                }
                Packet::WorkComplete { handle, data } => {
                    self.event(&handle, JobEvent::Complete(data)).await;
                }
                Packet::WorkException { handle, data } => {
                    self.event(&handle, JobEvent::Exception(data)).await;
                }
                Packet::WorkFail { handle } => {
                    // gearmand puts a NUL behind the handle when it makes a failure of an exception.
                    self.event(&without_trailing_nul(handle), JobEvent::Fail)
                        .await;
                }
                Packet::JobCreated { handle } => self.created(handle),
                Packet::StatusRes {
                    known,
                    running,
                    numerator,
                    denominator,
                    ..
                }
                | Packet::StatusResUnique {
                    known,
                    running,
                    numerator,
                    denominator,
                    ..
                } => {
                    self.answer(Answer::Status(JobStatus {
                        known: number(&known) != 0,
                        running: number(&running) != 0,
                        numerator: number(&numerator),
                        denominator: number(&denominator),
                    }));
                }
                Packet::EchoRes { data } => self.answer(Answer::Echo(data)),
                Packet::Error { code, text } => {
                    let text = without_trailing_nul(text);
                    self.answer(Answer::Refused(Refusal {
                        code: String::from_utf8_lossy(&code).into_owned(),
                        text: String::from_utf8_lossy(&text).into_owned(),
                    }));
                }
                _ => {}
            }
        }
    }

    /// Tells a job's readers, and waits for them if they are slow.
    async fn event(&self, handle: &Bytes, event: JobEvent) {
        let readers = {
            let mut waiting = lock(&self.waiting);
            if event.is_end() {
                waiting.jobs.remove(handle)
            } else {
                waiting.jobs.get(handle).cloned()
            }
        };
        for reader in readers.into_iter().flatten() {
            let _ = reader.send(event.clone()).await;
        }
    }

    fn created(&self, handle: Bytes) {
        let mut waiting = lock(&self.waiting);
        let Some(request) = waiting.requests.pop_front() else {
            return;
        };
        if let Some(events) = request.events {
            waiting.jobs.entry(handle.clone()).or_default().push(events);
        }
        let _ = request.answer.send(Answer::Created(handle));
    }

    fn answer(&self, answer: Answer) {
        match lock(&self.waiting).requests.pop_front() {
            Some(request) => {
                let _ = request.answer.send(answer);
            }
            None => {
                tracing::warn!(server = %self.server, ?answer, "gearman server answered nobody");
            }
        }
    }
}

fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A decimal number; what is none counts as zero, since gear's server leaves unknown ones empty.
fn number(digits: &[u8]) -> u64 {
    std::str::from_utf8(digits)
        .ok()
        .and_then(|text| text.trim_end_matches('\0').parse().ok())
        .unwrap_or(0)
}
