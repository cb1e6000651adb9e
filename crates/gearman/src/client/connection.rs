//! A client's connection to one server, shared by all its jobs there.
//!
//! A server answers requests in order, so a response belongs to the oldest pending request; job events carry their
//! handle and are interleaved. No response to OPTION_REQ is awaited, because gear's server never sends one.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use tokio::io::{ReadHalf, WriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio_util::codec::{FramedRead, FramedWrite};
use tokio_util::sync::CancellationToken;

use super::{ClientError, ErrorResponse, JobClientOptions, JobEvent, StatusResponse};
use crate::codec::{Codec, GearmanFrame, Magic, Packet, strip_trailing_nul};
use crate::net::{GearmanEndpoint, ServerStream};

/// Capacity of a job's event queue. When it is full, the whole connection waits.
const EVENT_QUEUE_LEN: usize = 256;

#[derive(Debug)]
pub(super) struct ClientConnection {
    server: Arc<str>,
    writer: Arc<PacketWriter>,
    in_flight: Arc<Mutex<InFlight>>,
    closed: CancellationToken,
}

/// `None` once the connection is closed.
type PacketWriter = tokio::sync::Mutex<Option<FramedWrite<WriteHalf<ServerStream>, Codec>>>;

#[derive(Debug, Default)]
struct InFlight {
    requests: VecDeque<PendingRequest>,
    /// Several receivers per handle, because a server that coalesces jobs returns one handle for several submits.
    jobs: HashMap<Bytes, Vec<mpsc::Sender<JobEvent>>>,
    closed: bool,
}

#[derive(Debug)]
struct PendingRequest {
    /// Receives the events of the job that this request submits.
    events: Option<mpsc::Sender<JobEvent>>,
    response: oneshot::Sender<ServerResponse>,
}

#[derive(Debug)]
pub(super) enum ServerResponse {
    Created(Bytes),
    Status(StatusResponse),
    Echo(Bytes),
    Refused(ErrorResponse),
}

impl ClientConnection {
    pub(super) async fn open(
        endpoint: &GearmanEndpoint,
        options: &JobClientOptions,
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
            writer: Arc::new(PacketWriter::new(Some(writer))),
            in_flight: Arc::default(),
            closed: CancellationToken::new(),
        });
        let reading = ConnectionReader {
            server: connection.server.clone(),
            frames: FramedRead::new(reader, codec),
            in_flight: connection.in_flight.clone(),
        };
        let closed = connection.closed.clone();
        let writer = connection.writer.clone();
        tokio::spawn(async move {
            let in_flight = reading.in_flight.clone();
            tokio::select! {
                () = reading.run() => {}
                () = closed.cancelled() => {}
            }
            // Dropping the senders wakes all waiting receivers.
            *lock(&in_flight) = InFlight {
                closed: true,
                ..InFlight::default()
            };
            writer.lock().await.take();
        });
        Ok(connection)
    }

    pub(super) fn is_closed(&self) -> bool {
        lock(&self.in_flight).closed
    }

    /// Sends a request and waits for its response.
    pub(super) async fn request(
        &self,
        packet: &Packet,
        events: Option<mpsc::Sender<JobEvent>>,
        options: &JobClientOptions,
    ) -> Result<ServerResponse, ClientError> {
        let unknown = || ClientError::OutcomeUnknown {
            server: self.server.to_string(),
        };
        let not_sent = |source| ClientError::NotSent {
            server: self.server.to_string(),
            source,
        };
        let exchange = async {
            let (response, response_receiver) = oneshot::channel();
            {
                let mut writer = self.writer.lock().await;
                let Some(writer) = writer.as_mut() else {
                    return Err(not_sent(
                        io::Error::from(io::ErrorKind::NotConnected).into(),
                    ));
                };
                writer.feed(packet).await.map_err(not_sent)?;
                {
                    let mut in_flight = lock(&self.in_flight);
                    if in_flight.closed {
                        return Err(not_sent(
                            io::Error::from(io::ErrorKind::NotConnected).into(),
                        ));
                    }
                    in_flight
                        .requests
                        .push_back(PendingRequest { events, response });
                }
                writer.flush().await.map_err(|_| unknown())?;
            }
            response_receiver.await.map_err(|_| unknown())
        };
        match tokio::time::timeout(options.response_timeout, exchange).await {
            Ok(result) => result,
            Err(_) => {
                // A late response would be taken for that of the next request.
                self.closed.cancel();
                Err(unknown())
            }
        }
    }
}

impl Drop for ClientConnection {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}

pub(super) fn event_channel() -> (mpsc::Sender<JobEvent>, mpsc::Receiver<JobEvent>) {
    mpsc::channel(EVENT_QUEUE_LEN)
}

struct ConnectionReader {
    server: Arc<str>,
    frames: FramedRead<ReadHalf<ServerStream>, Codec>,
    in_flight: Arc<Mutex<InFlight>>,
}

impl ConnectionReader {
    async fn run(mut self) {
        while let Some(frame) = self.frames.next().await {
            let packet = match frame {
                Ok(GearmanFrame::Packet(packet)) => packet,
                Ok(GearmanFrame::Line(line)) => {
                    tracing::warn!(server = %self.server, line, "gearman server sent unexpected text");
                    return;
                }
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(server = %self.server, error, "gearman connection lost");
                    return;
                }
            };
            match packet {
                Packet::WorkData { handle, data } => {
                    self.dispatch_event(&handle, JobEvent::Data(data)).await;
                }
                Packet::WorkWarning { handle, data } => {
                    self.dispatch_event(&handle, JobEvent::Warning(data)).await;
                }
                Packet::WorkStatus {
                    handle,
                    numerator,
                    denominator,
                } => {
                    let status = JobEvent::Status {
                        numerator: parse_number(&numerator),
                        denominator: parse_number(&denominator),
                    };
                    self.dispatch_event(&handle, status).await;
                }
                Packet::WorkComplete { handle, data } => {
                    self.dispatch_event(&handle, JobEvent::Complete(data)).await;
                }
                Packet::WorkException { handle, data } => {
                    self.dispatch_event(&handle, JobEvent::Exception(data))
                        .await;
                }
                Packet::WorkFail { handle } => {
                    // gearmand appends a NUL to the handle when it converts an exception to a failure.
                    self.dispatch_event(&strip_trailing_nul(handle), JobEvent::Fail)
                        .await;
                }
                Packet::JobCreated { handle } => self.handle_job_created(handle),
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
                    self.response(ServerResponse::Status(StatusResponse {
                        known: parse_number(&known) != 0,
                        running: parse_number(&running) != 0,
                        numerator: parse_number(&numerator),
                        denominator: parse_number(&denominator),
                    }));
                }
                Packet::EchoRes { data } => self.response(ServerResponse::Echo(data)),
                Packet::Error { code, text } => {
                    let text = strip_trailing_nul(text);
                    self.response(ServerResponse::Refused(ErrorResponse {
                        code: String::from_utf8_lossy(&code).into_owned(),
                        text: String::from_utf8_lossy(&text).into_owned(),
                    }));
                }
                _ => {}
            }
        }
    }

    /// Sends an event to the job's receivers. Waits while their queues are full.
    async fn dispatch_event(&self, handle: &Bytes, event: JobEvent) {
        let readers = {
            let mut in_flight = lock(&self.in_flight);
            if event.is_final() {
                in_flight.jobs.remove(handle)
            } else {
                in_flight.jobs.get(handle).cloned()
            }
        };
        for reader in readers.into_iter().flatten() {
            let _ = reader.send(event.clone()).await;
        }
    }

    fn handle_job_created(&self, handle: Bytes) {
        let mut in_flight = lock(&self.in_flight);
        let Some(request) = in_flight.requests.pop_front() else {
            return;
        };
        if let Some(events) = request.events {
            in_flight
                .jobs
                .entry(handle.clone())
                .or_default()
                .push(events);
        }
        let _ = request.response.send(ServerResponse::Created(handle));
    }

    fn response(&self, response: ServerResponse) {
        match lock(&self.in_flight).requests.pop_front() {
            Some(request) => {
                let _ = request.response.send(response);
            }
            None => {
                tracing::warn!(server = %self.server, ?response, "gearman server sent an unsolicited response");
            }
        }
    }
}

fn lock(in_flight: &Mutex<InFlight>) -> MutexGuard<'_, InFlight> {
    in_flight.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Parses a decimal number. Returns 0 on error, because gear's server leaves unknown numbers empty.
fn parse_number(digits: &[u8]) -> u64 {
    std::str::from_utf8(digits)
        .ok()
        .and_then(|text| text.trim_end_matches('\0').parse().ok())
        .unwrap_or(0)
}
