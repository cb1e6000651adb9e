//! One connection of the server: TLS handshake, reading frames into the [scheduler](super::scheduler), closing.
//!
//! Connections that send HTTP are rejected at the first line. A web page can make a browser send a request to a local
//! port; since lines and packets may alternate here, the body would be executed if the HTTP head were only answered as
//! unknown admin commands.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, WriteHalf};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_util::codec::Decoder;

use super::listener::{Peer, Socket};
use super::scheduler::{ConnectionId, OutgoingMessage};
use super::send_buffer::SendBuffer;
use super::{ServerShared, ServerState};
use crate::codec::{Codec, FrameError, GearmanFrame, Magic, Packet, StreamError};
use crate::tls::{ServerTls, common_name};

/// Timeout of the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Capacity reserved for each read.
const READ_AHEAD: usize = 8 << 10;

/// Frames of one connection that are processed before yielding. Small, so that the first of many submitted jobs are
/// assigned while the rest are being read.
const BATCH: usize = 8;

/// Timeout for delivering the error packet to a peer that sent a malformed frame.
const ERROR_DELIVERY_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) async fn serve(shared: Arc<ServerShared>, socket: Socket, peer: Peer) {
    let send_limit = shared.options.send_buffer_limit;
    let socket = match socket {
        Socket::Tcp(socket) => socket,
        Socket::Unix(socket) => {
            let (reader, writer) = tokio::io::split(socket);
            let send_buffer = SendBuffer::new(send_limit, None);
            return run(&shared, peer, None, reader, send_buffer, Some(writer)).await;
        }
    };
    if let Err(error) = shared.options.keepalive.apply(&socket) {
        tracing::debug!(%peer, %error, "failed to configure socket");
        return;
    }
    match &shared.options.tls {
        None => {
            let (reader, writer) = socket.into_split();
            let send_buffer = SendBuffer::new(send_limit, Some(writer));
            let no_stream: Option<WriteHalf<TcpStream>> = None;
            run(&shared, peer, None, reader, send_buffer, no_stream).await;
        }
        Some(ServerTls(config)) => {
            let accept = TlsAcceptor::from(config.clone()).accept(socket);
            let stream = match tokio::time::timeout(HANDSHAKE_TIMEOUT, accept).await {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => return shared.reject_connection(peer, &error.to_string()),
                Err(_) => return shared.reject_connection(peer, "TLS handshake took too long"),
            };
            let certificate = stream
                .get_ref()
                .1
                .peer_certificates()
                .and_then(|chain| chain.first());
            let subject = certificate.and_then(common_name);
            let (reader, writer) = tokio::io::split(stream);
            let send_buffer = SendBuffer::new(send_limit, None);
            run(
                &shared,
                peer,
                subject.as_deref(),
                reader,
                send_buffer,
                Some(writer),
            )
            .await;
        }
    }
}

async fn run(
    shared: &Arc<ServerShared>,
    peer: Peer,
    subject: Option<&str>,
    mut reader: impl AsyncRead + Unpin,
    send_buffer: SendBuffer,
    stream: Option<impl AsyncWrite + Send + Unpin + 'static>,
) {
    let rights = shared
        .options
        .access
        .as_ref()
        .map(|access| access.rights_of(subject));
    let send_buffer = Arc::new(send_buffer);
    let id = {
        let mut state = shared.lock();
        state.last_connection += 1;
        let id = ConnectionId(state.last_connection);
        state.scheduler.counters.connections += 1;
        state.scheduler.connect(id, peer.ip(), rights);
        state.send_buffers.insert(id, send_buffer.clone());
        id
    };
    tracing::debug!(%peer, subject, connection = id.0, "connected");
    // A separate task, so that a peer that does not read does not block reading from it.
    let writing = tokio::spawn({
        let send_buffer = send_buffer.clone();
        async move { send_buffer.write(stream).await }
    });
    let ended = tokio::select! {
        () = send_buffer.closed.cancelled() => Ok(()),
        ended = read(shared, id, &mut reader) => ended,
    };
    let deliveries = {
        let mut state = shared.lock();
        state.scheduler.disconnect(id, Instant::now());
        if let Err(error) = &ended {
            state.queue_stream_error(id, error);
        }
        let deliveries = state.deliver();
        state.send_buffers.remove(&id);
        deliveries
    };
    deliveries.flush();
    shared.wake_timer_before(deliveries.next_deadline);
    match ended {
        Ok(()) => send_buffer.closed.cancel(),
        Err(error) => {
            tracing::info!(%peer, error = &error as &dyn std::error::Error, "connection closed");
            send_buffer.close_after_write();
            // Closing a socket with unread data resets the connection before the peer has read the error.
            let discard = async { tokio::io::copy(&mut reader, &mut tokio::io::sink()).await };
            let _ = tokio::time::timeout(ERROR_DELIVERY_TIMEOUT, discard).await;
            send_buffer.closed.cancel();
        }
    }
    let _ = writing.await;
}

/// Reads and processes frames until the peer disconnects or sends a malformed frame.
async fn read(
    shared: &ServerShared,
    id: ConnectionId,
    reader: &mut (impl AsyncRead + Unpin),
) -> Result<(), StreamError> {
    let mut codec = Codec::new(Magic::Response, shared.options.limits);
    let mut buffer = BytesMut::with_capacity(READ_AHEAD);
    loop {
        if buffer.capacity() - buffer.len() < READ_AHEAD / 2 {
            buffer.reserve(READ_AHEAD);
        }
        match reader.read_buf(&mut buffer).await {
            Ok(0) if buffer.is_empty() => return Ok(()),
            Ok(0) => return Err(FrameError::Truncated { got: buffer.len() }.into()),
            Ok(_) => {
                while process_batch(shared, id, &mut codec, &mut buffer).await? {
                    tokio::task::yield_now().await;
                }
            }
            Err(_) => return Ok(()),
        }
    }
}

/// Processes up to [`BATCH`] received frames under one lock with one flush. Returns false when none are left.
async fn process_batch(
    shared: &ServerShared,
    id: ConnectionId,
    codec: &mut Codec,
    buffer: &mut BytesMut,
) -> Result<bool, StreamError> {
    let (deliveries, more) = {
        let mut state = shared.lock();
        let now = Instant::now();
        let mut more = Ok(true);
        for _ in 0..BATCH {
            match codec.decode(buffer) {
                Ok(Some(GearmanFrame::Packet(packet))) => {
                    state.scheduler.handle_packet(id, packet, now);
                }
                Ok(Some(GearmanFrame::Line(line))) if is_http(&line) => {
                    more = Err(FrameError::Http.into());
                    break;
                }
                Ok(Some(GearmanFrame::Line(line))) => {
                    state
                        .scheduler
                        .handle_admin_command(id, &line, shared.options.access.as_ref());
                }
                Ok(None) => {
                    more = Ok(false);
                    break;
                }
                Err(error) => {
                    more = Err(error);
                    break;
                }
            }
        }
        (state.deliver(), more)
    };
    deliveries.flush();
    shared.wake_timer_before(deliveries.next_deadline);
    for send_buffer in deliveries.over_limit() {
        if !send_buffer
            .wait_until_below_limit(shared.options.slow_reader_timeout)
            .await
        {
            shared.lock().scheduler.counters.slow_readers += 1;
            send_buffer.closed.cancel();
        }
    }
    more
}

/// Returns whether the line is an HTTP request line or a `Host` header.
fn is_http(line: &str) -> bool {
    let version = line.rsplit(' ').next().unwrap_or_default();
    let host = line.get(..5).unwrap_or_default();
    version.starts_with("HTTP/") || host.eq_ignore_ascii_case("host:")
}

/// Send buffers to flush once the server state is unlocked.
#[derive(Debug)]
pub(super) struct Deliveries {
    /// The buffers that were pushed to, and whether each is above its limit.
    send_buffers: Vec<(Arc<SendBuffer>, bool)>,
    pub(super) next_deadline: Option<Instant>,
}

impl Deliveries {
    pub(super) fn flush(&self) {
        for (send_buffer, _) in &self.send_buffers {
            send_buffer.flush();
        }
    }

    /// Returns the buffers above their limit.
    fn over_limit(self) -> impl Iterator<Item = Arc<SendBuffer>> {
        self.send_buffers
            .into_iter()
            .filter(|(_, over_limit)| *over_limit)
            .map(|(send_buffer, _)| send_buffer)
    }
}

impl ServerState {
    /// Moves the scheduler's outgoing messages to their send buffers.
    pub(super) fn deliver(&mut self) -> Deliveries {
        let mut send_buffers = Vec::new();
        for (to, outgoing) in self.scheduler.drain_deliveries() {
            if let Some(send_buffer) = self.send_buffers.get(&to) {
                let over_limit = send_buffer.push(&outgoing);
                send_buffers.push((send_buffer.clone(), over_limit));
            }
        }
        Deliveries {
            send_buffers,
            next_deadline: self.scheduler.next_deadline(),
        }
    }

    /// Queues an ERROR packet with the reason why the connection is closed.
    fn queue_stream_error(&mut self, id: ConnectionId, error: &StreamError) {
        let StreamError::Frame(reason) = error else {
            return;
        };
        self.scheduler.counters.malformed += 1;
        let packet = Packet::Error {
            code: "MALFORMED".into(),
            text: reason.to_string().into(),
        };
        if let Some(send_buffer) = self.send_buffers.get(&id) {
            send_buffer.push(&OutgoingMessage::Packet(packet));
        }
    }
}
