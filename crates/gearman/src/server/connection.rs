//! One connection of the server: allowed or not, TLS, then frames in and an outbox out.
//!
//! A browser can be made to send anything to a port of its own host, but not without HTTP's head before it. Lines and
//! packets may alternate here, so a head that were merely answered as unknown commands would be followed by a body that
//! is carried out. Whoever speaks HTTP is turned away at the first line.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, WriteHalf};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::codec::Decoder;

use super::core::{ConnectionId, Outgoing};
use super::outbox::Outbox;
use super::{Shared, State};
use crate::codec::{Codec, Frame, FrameError, Magic, Packet, WireError};
use crate::tls::{ServerTls, common_name};

/// A peer that has not finished its TLS handshake by then is turned away.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// Room kept for reading.
const READ_AHEAD: usize = 8 << 10;

/// Frames of one connection that are acted on before others get their turn. Few, so that of many jobs that are submitted
/// at once the first are assigned while the others are still being read.
const BATCH: usize = 8;

/// How long the last words to a malformed peer may take.
const FAREWELL_LIMIT: Duration = Duration::from_secs(5);

pub(super) async fn serve(shared: Arc<Shared>, socket: TcpStream, peer: SocketAddr) {
    if let Err(error) = shared.options.keepalive.apply(&socket) {
        tracing::debug!(%peer, %error, "connection broke before it began");
        return;
    }
    match &shared.options.tls {
        None => {
            let (reader, writer) = socket.into_split();
            let outbox = Outbox::new(shared.options.outbox_mark, Some(writer));
            run(&shared, peer, None, reader, outbox, None).await;
        }
        Some(ServerTls(config)) => {
            let accept = TlsAcceptor::from(config.clone()).accept(socket);
            let stream = match tokio::time::timeout(HANDSHAKE_LIMIT, accept).await {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => return shared.turned_away(peer, &error.to_string()),
                Err(_) => return shared.turned_away(peer, "TLS handshake took too long"),
            };
            let certificate = stream
                .get_ref()
                .1
                .peer_certificates()
                .and_then(|chain| chain.first());
            let subject = certificate.and_then(common_name);
            let (reader, writer) = tokio::io::split(stream);
            let outbox = Outbox::new(shared.options.outbox_mark, None);
            run(
                &shared,
                peer,
                subject.as_deref(),
                reader,
                outbox,
                Some(writer),
            )
            .await;
        }
    }
}

async fn run(
    shared: &Arc<Shared>,
    peer: SocketAddr,
    subject: Option<&str>,
    mut reader: impl AsyncRead + Unpin,
    outbox: Outbox,
    tls_writer: Option<WriteHalf<TlsStream<TcpStream>>>,
) {
    let rights = shared
        .options
        .access
        .as_ref()
        .map(|access| access.rights_of(subject));
    let outbox = Arc::new(outbox);
    let id = {
        let mut state = shared.lock();
        state.last_connection += 1;
        let id = ConnectionId(state.last_connection);
        state.core.counters.connections += 1;
        state.core.connect(id, peer.ip(), rights);
        state.outboxes.insert(id, outbox.clone());
        id
    };
    tracing::debug!(%peer, subject, connection = id.0, "connected");
    // A task of its own: a peer that does not read must not keep us from hearing what it says.
    let writing = tokio::spawn({
        let outbox = outbox.clone();
        async move { outbox.write(tls_writer).await }
    });
    let ended = tokio::select! {
        () = outbox.closed.cancelled() => Ok(()),
        ended = read(shared, id, &mut reader) => ended,
    };
    let delivered = {
        let mut state = shared.lock();
        state.core.disconnect(id, Instant::now());
        if let Err(error) = &ended {
            state.farewell(id, error);
        }
        let delivered = state.deliver();
        state.outboxes.remove(&id);
        delivered
    };
    delivered.flush();
    shared.deadline_is(delivered.next_deadline);
    match ended {
        Ok(()) => outbox.closed.cancel(),
        Err(error) => {
            tracing::info!(%peer, error = &error as &dyn std::error::Error, "connection closed");
            outbox.finish();
            // A socket closed with unread data resets the connection, and the peer never reads the reason.
            let discard = async { tokio::io::copy(&mut reader, &mut tokio::io::sink()).await };
            let _ = tokio::time::timeout(FAREWELL_LIMIT, discard).await;
            outbox.closed.cancel();
        }
    }
    let _ = writing.await;
}

/// Takes frames until the peer is gone or talks nonsense.
async fn read(
    shared: &Shared,
    id: ConnectionId,
    reader: &mut (impl AsyncRead + Unpin),
) -> Result<(), WireError> {
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
                while take_batch(shared, id, &mut codec, &mut buffer).await? {
                    tokio::task::yield_now().await;
                }
            }
            Err(_) => return Ok(()),
        }
    }
}

/// Acts on frames that have arrived, several under one lock and with one flush. False when there are no more.
async fn take_batch(
    shared: &Shared,
    id: ConnectionId,
    codec: &mut Codec,
    buffer: &mut BytesMut,
) -> Result<bool, WireError> {
    let (delivered, more) = {
        let mut state = shared.lock();
        let now = Instant::now();
        let mut more = Ok(true);
        for _ in 0..BATCH {
            match codec.decode(buffer) {
                Ok(Some(Frame::Packet(packet))) => state.core.packet(id, packet, now),
                Ok(Some(Frame::Line(line))) if is_http(&line) => {
                    more = Err(FrameError::Http.into());
                    break;
                }
                Ok(Some(Frame::Line(line))) => {
                    state.core.admin(id, &line, shared.options.access.as_ref());
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
    delivered.flush();
    shared.deadline_is(delivered.next_deadline);
    for outbox in delivered.crowded() {
        if !outbox.wait_for_room(shared.options.slow_reader_limit).await {
            shared.lock().core.counters.slow_readers += 1;
            outbox.closed.cancel();
        }
    }
    more
}

/// Whether this is how a request of HTTP begins, or its one header that none is without.
fn is_http(line: &str) -> bool {
    let version = line.rsplit(' ').next().unwrap_or_default();
    let host = line.get(..5).unwrap_or_default();
    version.starts_with("HTTP/") || host.eq_ignore_ascii_case("host:")
}

/// What has to be done about deliveries once the state is unlocked.
#[derive(Debug)]
pub(super) struct Delivered {
    /// The outboxes that something was put into, and whether that brought them above their mark.
    outboxes: Vec<(Arc<Outbox>, bool)>,
    pub(super) next_deadline: Option<Instant>,
}

impl Delivered {
    pub(super) fn flush(&self) {
        for (outbox, _) in &self.outboxes {
            outbox.flush();
        }
    }

    /// The outboxes whose connections read too slowly.
    fn crowded(self) -> impl Iterator<Item = Arc<Outbox>> {
        self.outboxes
            .into_iter()
            .filter(|(_, crowded)| *crowded)
            .map(|(outbox, _)| outbox)
    }
}

impl State {
    /// Hands out what the core has decided.
    pub(super) fn deliver(&mut self) -> Delivered {
        let mut outboxes = Vec::new();
        for (to, outgoing) in self.core.drain_deliveries() {
            if let Some(outbox) = self.outboxes.get(&to) {
                let crowded = outbox.put(&outgoing);
                outboxes.push((outbox.clone(), crowded));
            }
        }
        Delivered {
            outboxes,
            next_deadline: self.core.next_deadline(),
        }
    }

    /// Says why a connection is closed.
    fn farewell(&mut self, id: ConnectionId, error: &WireError) {
        let WireError::Frame(reason) = error else {
            return;
        };
        self.core.counters.malformed += 1;
        let packet = Packet::Error {
            code: "MALFORMED".into(),
            text: reason.to_string().into(),
        };
        if let Some(outbox) = self.outboxes.get(&id) {
            outbox.put(&Outgoing::Packet(packet));
        }
    }
}
