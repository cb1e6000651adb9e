//! One connection of the server: allowed or not, TLS, then frames in and an outbox out.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_util::codec::FramedRead;

use super::core::{ConnectionId, Outgoing};
use super::outbox::Outbox;
use super::{Shared, State};
use crate::codec::{Codec, Frame, Magic, Packet, WireError};
use crate::tls::{ServerTls, common_name};

/// A peer that has not finished its TLS handshake by then is turned away.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

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
            run(&shared, peer, None, reader, writer).await;
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
            run(&shared, peer, subject.as_deref(), reader, writer).await;
        }
    }
}

async fn run(
    shared: &Arc<Shared>,
    peer: SocketAddr,
    subject: Option<&str>,
    reader: impl AsyncRead + Send + Unpin + 'static,
    writer: impl AsyncWrite + Send + Unpin + 'static,
) {
    let rights = shared
        .options
        .access
        .as_ref()
        .map(|access| access.rights_of(subject));
    let outbox = Arc::new(Outbox::new(shared.options.outbox_mark));
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
    let writing = {
        let outbox = outbox.clone();
        tokio::spawn(async move {
            let written = tokio::select! {
                () = outbox.closed.cancelled() => Ok(()),
                written = outbox.write_to(writer) => written,
            };
            outbox.closed.cancel();
            written
        })
    };
    let mut frames = FramedRead::new(reader, Codec::new(Magic::Response, shared.options.limits));
    let ended = tokio::select! {
        () = outbox.closed.cancelled() => Ok(()),
        ended = read(shared, id, &mut frames) => ended,
    };
    {
        let mut state = shared.lock();
        state.core.disconnect(id, Instant::now());
        if let Err(error) = &ended {
            state.farewell(id, error);
        }
        state.deliver();
        state.outboxes.remove(&id);
    }
    shared.deadline_changed();
    match ended {
        Ok(()) => outbox.closed.cancel(),
        Err(error) => {
            tracing::info!(%peer, error = &error as &dyn std::error::Error, "connection closed");
            outbox.finish();
            // A socket closed with unread data resets the connection, and the peer never reads the reason.
            let discard = async { tokio::io::copy(frames.get_mut(), &mut tokio::io::sink()).await };
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
    frames: &mut FramedRead<impl AsyncRead + Unpin, Codec>,
) -> Result<(), WireError> {
    while let Some(frame) = frames.next().await {
        let crowded = {
            let mut state = shared.lock();
            match frame {
                Ok(Frame::Packet(packet)) => state.core.packet(id, packet, Instant::now()),
                Ok(Frame::Line(line)) => {
                    state.core.admin(id, &line, shared.options.access.as_ref());
                }
                Err(WireError::Io(_)) => return Ok(()),
                Err(error) => return Err(error),
            }
            state.deliver()
        };
        shared.deadline_changed();
        for outbox in crowded {
            if !outbox.wait_for_room(shared.options.slow_reader_limit).await {
                shared.lock().core.counters.slow_readers += 1;
                outbox.closed.cancel();
            }
        }
    }
    Ok(())
}

impl State {
    /// Hands out what the core has decided. Returns the outboxes that are above their mark.
    pub(super) fn deliver(&mut self) -> Vec<Arc<Outbox>> {
        let mut crowded = Vec::new();
        for (to, outgoing) in self.core.drain_deliveries() {
            if let Some(outbox) = self.outboxes.get(&to)
                && outbox.put(&outgoing)
            {
                crowded.push(outbox.clone());
            }
        }
        crowded
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
