//! Reports addresses and ports on which several services of one process would listen: `webapp`, `api`, `builder-webapp`
//! and `gearman-listen`. Two configured ones are an error; a configured one on another's default port is a warning.

use std::net::{IpAddr, Ipv4Addr};

use crate::decode::Decoder;
use crate::file::MainFile;
use crate::service::BuilderWebapp;
use crate::source::Span;
use crate::values::Port;
use crate::yaml::{Map, YamlValue};

/// A service with a listening port.
struct ListeningService<'f> {
    key: &'static str,
    address: &'f str,
    port: u16,
    /// The position of its port, or else of its section, in the file; None where defaults are used.
    span: Option<Span>,
}

/// Reports services whose listening ports conflict.
pub(crate) fn check(file: &MainFile, map: &Map, decoder: &mut Decoder<'_>) {
    let (webapp, api) = (&file.webapp, &file.api);
    let builder_default = BuilderWebapp::default();
    let builder = file.builder_webapp.as_ref().unwrap_or(&builder_default);
    let service = |key, address, Port(port): Port| ListeningService {
        key,
        address,
        port,
        span: span(map, key),
    };
    let mut services = vec![
        service("webapp", webapp.listen_address.as_str(), webapp.port),
        service("api", api.listen_address.as_str(), api.port),
        service(
            "builder-webapp",
            builder.listen_address.as_str(),
            builder.port,
        ),
    ];
    // Without this section the job server listens on a port that the system chooses.
    if let Some(listen) = &file.gearman_listen {
        services.push(service(
            "gearman-listen",
            listen.address.as_str(),
            listen.port,
        ));
    }
    for (index, later) in services.iter().enumerate() {
        for earlier in services.iter().take(index) {
            if earlier.port == later.port && overlap(earlier.address, later.address) {
                report(earlier, later, decoder);
            }
        }
    }
}

fn report(earlier: &ListeningService<'_>, later: &ListeningService<'_>, decoder: &mut Decoder<'_>) {
    let port = later.port;
    let (configured, span, other) = match (earlier.span, later.span) {
        (Some(other), Some(span)) => {
            let message = format!("`{}` already listens on port {port}", earlier.key);
            decoder
                .error("duplicate-port", span, message)
                .map(|finding| {
                    finding
                        .label(other, "the other one")
                        .help("give each of them a port of its own")
                });
            return;
        }
        (Some(span), None) => (earlier, span, later),
        (None, Some(span)) => (later, span, earlier),
        (None, None) => return,
    };
    let message = format!(
        "`{}` is on port {port}, which is the default port of `{}`",
        configured.key, other.key
    );
    decoder
        .warning("duplicate-port", span, message)
        .map(|finding| {
            finding.help(format!(
                "set `port` of `{}`, or choose another port here",
                other.key
            ))
        });
}

fn span(map: &Map, key: &str) -> Option<Span> {
    let section = map.set(key)?;
    let port = match &section.value.value {
        YamlValue::Map(fields) => fields.set("port").map(|port| port.value.span),
        _ => None,
    };
    Some(port.unwrap_or(section.key_span))
}

/// Returns whether two sockets on the same port of these addresses exclude each other. Linux lets `::` accept IPv4,
/// too.
fn overlap(a: &str, b: &str) -> bool {
    if a == b {
        return true;
    }
    let covers = |a: IpAddr, b: IpAddr| a.is_unspecified() && (a.is_ipv6() || b.is_ipv4());
    match (parse(a), parse(b)) {
        (Some(a), Some(b)) => a == b || covers(a, b) || covers(b, a),
        _ => false,
    }
}

fn parse(address: &str) -> Option<IpAddr> {
    if address == "localhost" {
        return Some(Ipv4Addr::LOCALHOST.into());
    }
    let bare = address.trim_start_matches('[').trim_end_matches(']');
    bare.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcard_addresses_overlap_with_specific_ones() {
        for (a, b, expected) in [
            ("0.0.0.0", "127.0.0.1", true),
            ("0.0.0.0", "localhost", true),
            ("0.0.0.0", "::1", false),
            ("::", "127.0.0.1", true),
            ("[::]", "::1", true),
            ("::", "0.0.0.0", true),
            ("127.0.0.1", "127.0.0.2", false),
            ("192.0.2.1", "192.0.2.1", true),
            ("ci.example", "ci.example", true),
            ("ci.example", "192.0.2.1", false),
        ] {
            assert_eq!(overlap(a, b), expected, "{a} {b}");
            assert_eq!(overlap(b, a), expected, "{b} {a}");
        }
    }
}
