//! The job servers of a builder: the configured ones, or one inside the process.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use nodeyard_config::{Config, GearmanListen, GearmanRight, GearmanServer};
use nodeyard_gearman::server::{AccessList, JobServer, JobServerOptions, Rights};
use nodeyard_gearman::{ClientTls, GearmanEndpoint, HostCheck, ServerTls, TlsFiles};
use nodeyard_store::socket::{PrivateSocket, SocketBindError, SocketFile};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::info;

/// The name of the socket of a private job server in `images-dir`.
const SOCKET: &str = "job-server.sock";

/// How long a predecessor that is being stopped may still serve the socket.
const PREDECESSOR_TIMEOUT: Duration = Duration::from_secs(5);

/// The job servers to connect to, and the one to run, if any.
#[derive(Debug)]
pub(crate) struct JobServers {
    pub(crate) endpoints: Vec<GearmanEndpoint>,
    pub(crate) own: Option<OwnJobServer>,
}

impl JobServers {
    /// Starts a job server for other hosts with `gearman-listen`, and a private one on a unix socket if neither
    /// `gearman-listen` nor `gearman-servers` is set.
    pub(crate) async fn of(config: &Config) -> anyhow::Result<Self> {
        let mut endpoints = configured(&config.gearman_servers)?;
        let own = match &config.gearman_listen {
            Some(listen) => {
                let (server, endpoint) = public(listen).await?;
                if endpoints.is_empty() {
                    endpoints.push(endpoint);
                }
                Some(server)
            }
            None if endpoints.is_empty() => {
                let (server, endpoint) = private(config).await?;
                endpoints.push(endpoint);
                Some(server)
            }
            None => None,
        };
        Ok(Self { endpoints, own })
    }
}

/// A job server of this process, and the file of its socket if it is a private one.
#[derive(Debug)]
pub(crate) struct OwnJobServer {
    pub(crate) server: JobServer,
    socket: Option<SocketFile>,
}

impl OwnJobServer {
    /// Serves until `stop`, then unlinks the socket.
    pub(crate) async fn run(self, stop: CancellationToken) {
        self.server.run(stop).await;
        drop(self.socket);
    }
}

/// Returns the job servers for a command: the configured ones, or the private one of a builder on this host.
pub(crate) fn find(config: &Config) -> anyhow::Result<Vec<GearmanEndpoint>> {
    if !config.gearman_servers.is_empty() {
        return configured(&config.gearman_servers);
    }
    if let Some(listen) = &config.gearman_listen {
        let host = listen.address.trim_matches(['[', ']']);
        let everywhere = host
            .parse()
            .is_ok_and(|address: IpAddr| address.is_unspecified());
        let server = GearmanServer {
            host: if everywhere { "localhost" } else { host }.to_owned(),
            port: listen.port,
            ssl_ca: listen.ssl_ca.clone(),
            ssl_cert: listen.ssl_cert.clone(),
            ssl_key: listen.ssl_key.clone(),
        };
        return configured(&[server]);
    }
    let socket = socket_path(config).filter(|path| path.exists());
    Ok(socket.map(GearmanEndpoint::Unix).into_iter().collect())
}

fn socket_path(config: &Config) -> Option<PathBuf> {
    let images = config.images_dir.as_ref()?;
    Some(Path::new(images).join(SOCKET))
}

/// Returns the endpoints of `gearman-servers`.
pub(crate) fn configured(servers: &[GearmanServer]) -> anyhow::Result<Vec<GearmanEndpoint>> {
    servers.iter().map(endpoint).collect()
}

fn endpoint(server: &GearmanServer) -> anyhow::Result<GearmanEndpoint> {
    let plain = GearmanEndpoint::new(&server.host, server.port.0);
    let (Some(ca), Some(cert), Some(key)) = (&server.ssl_ca, &server.ssl_cert, &server.ssl_key)
    else {
        return Ok(plain);
    };
    let files = tls_files(ca, cert, key);
    let tls = ClientTls::new(&files, HostCheck::ChainOnly)
        .with_context(|| format!("gearman server {}", server.host))?;
    Ok(plain.with_tls(tls))
}

/// Starts a job server that only processes of this user can reach.
async fn private(config: &Config) -> anyhow::Result<(OwnJobServer, GearmanEndpoint)> {
    let path = socket_path(config).context("`images-dir` is not set")?;
    let socket = bind(&path)
        .await
        .with_context(|| format!("failed to serve builds on {}", path.display()))?;
    let (listener, file) = socket.into_parts();
    let server = JobServer::on_unix_socket(listener, JobServerOptions::default());
    info!(socket = %path.display(), "job server ready");
    let own = OwnJobServer {
        server,
        socket: Some(file),
    };
    Ok((own, GearmanEndpoint::Unix(path)))
}

/// Creates a socket, as soon as a predecessor that is being stopped has released it.
async fn bind(path: &Path) -> Result<PrivateSocket, SocketBindError> {
    if let Some(directory) = path.parent() {
        tokio::fs::create_dir_all(directory).await?;
    }
    let deadline = Instant::now() + PREDECESSOR_TIMEOUT;
    loop {
        match PrivateSocket::bind(path).await {
            Err(SocketBindError::Alive) if Instant::now() < deadline => {
                sleep(Duration::from_millis(100)).await;
            }
            bound => return bound,
        }
    }
}

/// Starts the job server of `gearman-listen`.
async fn public(listen: &GearmanListen) -> anyhow::Result<(OwnJobServer, GearmanEndpoint)> {
    let (options, tls) = listening(listen).await?;
    let server = JobServer::bind(options).await?;
    let address = server
        .local_addr()
        .context("the job server has no address")?;
    info!(%address, "job server ready");
    let endpoint = GearmanEndpoint::new(reachable(address.ip()).to_string(), address.port());
    let endpoint = match tls {
        Some(tls) => endpoint.with_tls(tls),
        None => endpoint,
    };
    let own = OwnJobServer {
        server,
        socket: None,
    };
    Ok((own, endpoint))
}

/// Returns the options for `gearman-listen`. The process is also a client of this server and uses the server's
/// certificate.
async fn listening(
    listen: &GearmanListen,
) -> anyhow::Result<(JobServerOptions, Option<ClientTls>)> {
    let address = listen.address.trim_matches(['[', ']']);
    let listen_on = tokio::net::lookup_host((address, listen.port.0))
        .await
        .ok()
        .and_then(|mut found| found.next())
        .with_context(|| format!("gearman-listen: failed to resolve {}", listen.address))?;
    let mut options = JobServerOptions {
        listen: listen_on,
        ..JobServerOptions::default()
    };
    for network in listen.allow_from.iter().flat_map(|networks| &networks.0) {
        options.allow.push(network_of(network)?);
    }
    if !options.allow.is_empty() {
        // This process is also a client.
        options.allow.push(reachable(listen_on.ip()).into());
    }
    let (Some(ca), Some(cert), Some(key)) = (&listen.ssl_ca, &listen.ssl_cert, &listen.ssl_key)
    else {
        if listen.clients.is_some() {
            bail!(
                "gearman-listen: `clients` are identified by their certificates; set the `ssl` keys"
            );
        }
        return Ok((options, None));
    };
    let files = tls_files(ca, cert, key);
    options.tls = Some(ServerTls::new(&files)?);
    if let Some(clients) = &listen.clients {
        let mut access = AccessList::new();
        if let Some(own) = files.common_name() {
            let everything = Rights::none().register("")?.invoke("")?.operate();
            access = access.subject(own, everything);
        }
        for client in clients {
            let functions = client.functions.as_ref().map(|functions| &*functions.0);
            let rights = rights(&client.rights, functions.unwrap_or_default())
                .with_context(|| format!("gearman-listen: client {}", *client.name))?;
            access = access.subject(client.name.to_string(), rights);
        }
        options.access = Some(access);
    }
    let tls = ClientTls::new(&files, HostCheck::ChainOnly)?;
    Ok((options, Some(tls)))
}

fn tls_files(ca: &str, cert: &str, key: &str) -> TlsFiles {
    TlsFiles {
        ca: ca.into(),
        cert: cert.into(),
        key: key.into(),
    }
}

/// Returns the rights for functions that match the patterns; without patterns for all functions.
fn rights(granted: &[GearmanRight], patterns: &[String]) -> anyhow::Result<Rights> {
    let functions: Vec<String> = patterns.iter().map(|one| format!("(?:{one})")).collect();
    let functions = functions.join("|");
    let mut rights = Rights::none();
    for right in granted {
        rights = match right {
            GearmanRight::Admin => rights.operate(),
            GearmanRight::Register => rights.register(&functions)?,
            GearmanRight::Invoke => rights.invoke(&functions)?,
        };
    }
    Ok(rights)
}

/// Parses a network or a single address.
fn network_of(text: &str) -> anyhow::Result<ipnet::IpNet> {
    text.parse()
        .or_else(|_| text.parse::<IpAddr>().map(ipnet::IpNet::from))
        .with_context(|| {
            format!("gearman-listen: allow-from: {text} is not a network such as 10.0.0.0/8")
        })
}

/// Returns an address to connect to a server that listens on `address`.
fn reachable(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(v4) if v4.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(v6) if v6.is_unspecified() => std::net::Ipv6Addr::LOCALHOST.into(),
        specific => specific,
    }
}
