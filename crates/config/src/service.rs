//! Sections of services that Nodepool does not have: the HTTP API, the builder's web pages and the gearman job server.

use crate::decode::{Decoder, Strictness};
use crate::point_in_time::PointInTime;
use crate::section::section;
use crate::values::{Name, OneOrMany, Port, SecretText, choice};
use crate::yaml::Map;

/// The standard port of gearman servers.
const GEARMAN_PORT: Port = Port(4730);
const API_PORT: Port = Port(8006);
const BUILDER_PORT: Port = Port(8007);
/// Requests per second.
const API_RATE: u64 = 100;
const LOOPBACK: &str = "127.0.0.1";

/// The reserved name of the local token. The name of a token is the requestor of its requests.
pub const LOCAL_TOKEN: &str = "local";

section! {
    /// A gearman job server.
    pub struct GearmanServer (_outer: ()) checked by check_server {
        /// Name or address.
        "host" [ours] host: String = required;
        /// Port.
        "port" [ours] port: Port = default(GEARMAN_PORT);
        /// Certificates of the authorities to trust; all three `ssl` keys or none.
        "ssl-ca" [ours] ssl_ca: Option<String> = optional;
        /// Client certificate.
        "ssl-cert" [ours] ssl_cert: Option<String> = optional;
        /// Key of the client certificate.
        "ssl-key" [ours] ssl_key: Option<String> = optional;
    }
}

fn check_server(_server: &GearmanServer, map: &Map, decoder: &mut Decoder<'_>) {
    all_or_none(map, &["ssl-ca", "ssl-cert", "ssl-key"], decoder);
}

fn all_or_none(map: &Map, keys: &[&str], decoder: &mut Decoder<'_>) {
    let Some(given) = keys.iter().find_map(|key| map.set(key)) else {
        return;
    };
    for key in keys.iter().filter(|key| map.set(key).is_none()) {
        decoder.error(
            "missing-key",
            given.key_span,
            format!("`{key}` is required with `{}`", given.key),
        );
    }
}

section! {
    /// The job server inside the process.
    pub struct GearmanListen (_outer: ()) checked by check_listen {
        /// Address to listen on; others than loopback need TLS.
        "address" [ours] address: String = default(LOOPBACK.to_owned());
        /// Port.
        "port" [ours] port: Port = default(GEARMAN_PORT);
        /// Certificates of the authorities whose clients are admitted; all three `ssl` keys or none.
        "ssl-ca" [ours] ssl_ca: Option<String> = optional;
        /// Server certificate.
        "ssl-cert" [ours] ssl_cert: Option<String> = optional;
        /// Key of the server certificate.
        "ssl-key" [ours] ssl_key: Option<String> = optional;
        /// Networks that may connect; all when absent.
        "allow-from" [ours] allow_from: Option<OneOrMany<String>> = optional;
        /// Permissions of clients, by the name in their certificate; everything when absent.
        "clients" [ours] clients: Option<Vec<GearmanClient>> = optional;
    }
}

fn check_listen(listen: &GearmanListen, map: &Map, decoder: &mut Decoder<'_>) {
    all_or_none(map, &["ssl-ca", "ssl-cert", "ssl-key"], decoder);
    if let (Some(address), None) = (map.set("address"), &listen.ssl_cert)
        && !is_loopback(&listen.address)
    {
        decoder
            .error(
                "insecure-listen",
                address.value.span,
                "a job server without TLS may only listen on loopback",
            )
            .map(|finding| finding.help("set `ssl-ca`, `ssl-cert` and `ssl-key`"));
    }
}

fn is_loopback(address: &str) -> bool {
    let bare = address.trim_start_matches('[').trim_end_matches(']');
    address == "localhost"
        || bare
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

choice! {
    /// What a gearman client may do.
    enum GearmanRight { Invoke = "invoke", Register = "register", Admin = "admin" }
}

section! {
    /// A gearman client.
    pub struct GearmanClient (_outer: ()) {
        /// Common name of its certificate.
        "name" [ours] name: Name = required;
        /// What it may do.
        "rights" [ours] rights: Vec<GearmanRight> = required;
        /// Patterns of function names that this applies to; all when absent.
        "functions" [ours] functions: Option<OneOrMany<String>> = optional;
    }
}

section! {
    /// The pages of a builder: `/live`, `/ready` and `/metrics`.
    pub struct BuilderWebapp (_outer: ()) {
        /// Address to listen on.
        "listen-address" [ours] listen_address: String = default(LOOPBACK.to_owned());
        /// Port.
        "port" [ours] port: Port = default(BUILDER_PORT);
    }
}

impl Default for BuilderWebapp {
    fn default() -> Self {
        Self {
            listen_address: LOOPBACK.into(),
            port: BUILDER_PORT,
        }
    }
}

section! {
    /// The HTTP API.
    pub struct ApiConfig (_outer: ()) checked by check_api {
        /// Address to listen on.
        "listen-address" [ours] listen_address: String = default(LOOPBACK.to_owned());
        /// Port.
        "port" [ours] port: Port = default(API_PORT);
        /// What is allowed without a token.
        "anonymous" [ours] anonymous: AnonymousAccess = default(AnonymousAccess::Read);
        /// Tokens and what they allow.
        "tokens" [ours] tokens: Vec<ApiToken> = default(Vec::<ApiToken>::new());
        /// Requests per second of each token, or of each address without one; bursts may have five times as many, and 0
        /// is unlimited.
        "rate-limit" [ours] rate_limit: u64 = default(API_RATE);
        /// Certificates; plain HTTP when absent.
        "tls" [ours] tls: Option<ApiTls> = optional;
    }
}

impl Default for ApiConfig {
    fn default() -> Self {
        Self {
            listen_address: LOOPBACK.into(),
            port: API_PORT,
            anonymous: AnonymousAccess::Read,
            tokens: Vec::new(),
            rate_limit: API_RATE,
            tls: None,
        }
    }
}

fn check_api(api: &ApiConfig, map: &Map, decoder: &mut Decoder<'_>) {
    if let (Some(address), None) = (map.set("listen-address"), &api.tls)
        && !api.tokens.is_empty()
        && !is_loopback(&api.listen_address)
    {
        decoder
            .warning(
                "insecure-listen",
                address.value.span,
                "tokens travel here unprotected",
            )
            .map(|finding| finding.help("set `tls`, or put a proxy with TLS in front"));
    }
    for (index, token) in api.tokens.iter().enumerate() {
        if token.name.as_str() == LOCAL_TOKEN {
            decoder
                .error(
                    "reserved-name",
                    token.name.span,
                    format!(
                        "`{LOCAL_TOKEN}` is the name of the token that this host makes for itself"
                    ),
                )
                .map(|finding| finding.help("give the token another name"));
        }
        let earlier = api
            .tokens
            .iter()
            .take(index)
            .find(|earlier| earlier.name == token.name);
        if let (Some(earlier), false) = (earlier, token.name.is_empty()) {
            let message = format!(
                "`{}` is already the name of another token",
                decoder.quote(&token.name)
            );
            decoder
                .error("duplicate-name", token.name.span, message)
                .map(|finding| finding.label(earlier.name.span, "the other one"));
        }
    }
}

choice! {
    /// What is allowed without a token.
    enum AnonymousAccess { Read = "read", None = "none" }
}

choice! {
    /// What a token allows; each includes those before it.
    enum ApiRight { Read = "read", Request = "request", Operate = "operate", Admin = "admin" }
}

section! {
    /// A token of the API.
    pub struct ApiToken (_outer: ()) checked by check_token {
        /// Name, stored with the leases of this token; `local` is reserved for the host's own token.
        "name" [ours] name: Name = required;
        /// The token itself; `token-file` keeps it out of this file.
        "token" [ours secret] token: Option<SecretText> = optional;
        /// File with the token.
        "token-file" [ours] token_file: Option<String> = optional;
        /// Environment variable with the token.
        "token-env" [ours] token_env: Option<String> = optional;
        /// What it allows.
        "right" [ours] right: ApiRight = default(ApiRight::Request);
        /// Tenant it is confined to; all when absent.
        "tenant" [ours] tenant: Option<String> = optional;
        /// Time at which the token expires, such as `2027-01-31` or `2027-01-31T18:00:00Z`; never when absent.
        "expires" [ours] expires: Option<PointInTime> = optional;
    }
}

fn check_token(_token: &ApiToken, map: &Map, decoder: &mut Decoder<'_>) {
    decoder.exactly_one(
        map,
        &["token", "token-file", "token-env"],
        Strictness::Strict,
    );
}

section! {
    /// Certificates of the API, as paths of PEM files.
    pub struct ApiTls (_outer: ()) {
        /// Server certificate.
        "cert" [ours] cert: String = required;
        /// Key of the server certificate.
        "key" [ours] key: String = required;
        /// Certificates of the authorities whose clients are admitted; clients need none when absent.
        "client-ca" [ours] client_ca: Option<String> = optional;
    }
}
