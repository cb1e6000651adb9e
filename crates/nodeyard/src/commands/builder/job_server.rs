//! The job servers of a builder: the configured ones, or one inside the process.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use nodeyard_config::{Config, GearmanListen, GearmanRight, GearmanServer};
use nodeyard_gearman::server::{AccessList, JobServer, JobServerOptions, Rights};
use nodeyard_gearman::{ClientTls, GearmanEndpoint, HostCheck, ServerTls, TlsFiles};
use tracing::info;

/// The job servers to connect to, and the one to run, if any.
#[derive(Debug)]
pub(crate) struct JobServers {
    pub(crate) endpoints: Vec<GearmanEndpoint>,
    pub(crate) own: Option<JobServer>,
}

impl JobServers {
    /// Starts a job server for other hosts with `gearman-listen`, and a private one on a port that the system chooses
    /// if neither `gearman-listen` nor `gearman-servers` is set.
    pub(crate) async fn of(config: &Config) -> anyhow::Result<Self> {
        let mut endpoints = configured(&config.gearman_servers)?;
        if config.gearman_listen.is_none() && !endpoints.is_empty() {
            return Ok(Self {
                endpoints,
                own: None,
            });
        }
        let (options, tls) = match &config.gearman_listen {
            Some(listen) => listening(listen).await?,
            None => (private(), None),
        };
        let server = JobServer::bind(options).await?;
        let address = server.local_addr();
        info!(%address, "job server ready");
        if endpoints.is_empty() {
            let host = reachable(address.ip()).to_string();
            let own = GearmanEndpoint::new(host, address.port());
            endpoints.push(match tls {
                Some(tls) => own.with_tls(tls),
                None => own,
            });
        }
        Ok(Self {
            endpoints,
            own: Some(server),
        })
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
    let written = address_file(config).and_then(|path| std::fs::read_to_string(path).ok());
    let address = written.and_then(|text| text.trim().parse::<SocketAddr>().ok());
    let endpoint =
        |address: SocketAddr| GearmanEndpoint::new(address.ip().to_string(), address.port());
    Ok(address.map(endpoint).into_iter().collect())
}

/// Writes the address of a private job server to a file for [`known`].
pub(super) fn publish_address(config: &Config, address: SocketAddr) {
    let Some(path) = address_file(config).filter(|_| config.gearman_listen.is_none()) else {
        return;
    };
    if let Err(error) = std::fs::write(&path, format!("{address}\n")) {
        let error = &error as &dyn std::error::Error;
        info!(path = %path.display(), error, "failed to write the address of the job server; commands on this host cannot find it");
    }
}

fn address_file(config: &Config) -> Option<PathBuf> {
    let images = config.images_dir.as_ref()?;
    Some(Path::new(images).join("job-server.txt"))
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

fn private() -> JobServerOptions {
    JobServerOptions {
        listen: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0),
        ..JobServerOptions::default()
    }
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
