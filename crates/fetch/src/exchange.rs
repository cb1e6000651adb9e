//! One request over a connection of its own, for servers that the configuration or the command line names.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Body;
use hyper::client::conn::http1;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Sends a request over a new connection and returns the response, whose body may have `limit` bytes. The connection is
/// closed when the call ends or is dropped.
pub async fn exchange<S, B>(
    connection: S,
    request: Request<B>,
    limit: usize,
) -> Result<Response<Bytes>, BoxError>
where
    S: AsyncRead + AsyncWrite + Unpin,
    B: Body + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(connection)).await?;
    let response = async {
        let (head, body) = sender.send_request(request).await?.into_parts();
        let body = Limited::new(body, limit).collect().await?;
        Ok(Response::from_parts(head, body.to_bytes()))
    };
    tokio::pin!(response, connection);
    tokio::select! {
        biased;
        response = &mut response => response,
        ended = &mut connection => match ended {
            // What arrived before the connection was closed is still buffered.
            Ok(()) => response.await,
            Err(cause) => Err(cause.into()),
        },
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Empty;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;

    async fn get(connection: DuplexStream, limit: usize) -> Result<Response<Bytes>, BoxError> {
        exchange(connection, Request::new(Empty::<Bytes>::new()), limit).await
    }

    #[tokio::test]
    async fn responses_are_bounded() {
        for (limit, body) in [(4, Some("four")), (3, None)] {
            let (client, mut server) = duplex(1024);
            let serving = async {
                assert_eq!(server.read_u8().await.unwrap(), b'G');
                let response = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfour";
                server.write_all(response).await.unwrap();
            };
            let (response, ()) = tokio::join!(get(client, limit), serving);
            assert_eq!(
                response.ok().map(Response::into_body).as_deref(),
                body.map(str::as_bytes)
            );
        }
    }

    #[tokio::test]
    async fn a_dropped_call_closes_its_connection() {
        let (client, mut server) = duplex(1024);
        tokio::select! {
            _ = get(client, 10) => panic!("there is no response"),
            byte = server.read_u8() => assert_eq!(byte.unwrap(), b'G'),
        }
        let mut rest = String::new();
        server.read_to_string(&mut rest).await.unwrap();
        assert_eq!(rest, "ET / HTTP/1.1\r\n\r\n");
    }
}
