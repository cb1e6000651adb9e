//! Absolute `http` and `https` URLs without user information.

use std::fmt;
use std::str::FromStr;

use hyper::Uri;

/// A URL. Displayed without its query, which may be a signature.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Url {
    origin: Origin,
    /// Path and query.
    target: Box<str>,
}

/// Scheme, host and port of a URL.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Origin {
    pub(crate) secure: bool,
    /// In lower case; an IPv6 address without its brackets.
    pub(crate) host: Box<str>,
    pub(crate) port: u16,
}

/// A text that is not a valid URL. The text is omitted because it may contain a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid URL: {reason}")]
pub struct UrlError {
    reason: &'static str,
}

impl UrlError {
    pub(crate) fn new(reason: &'static str) -> Self {
        Self { reason }
    }
}

impl Origin {
    fn parse(scheme: Option<&str>, authority: &str) -> Result<Self, UrlError> {
        let secure = match scheme {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(UrlError::new("it must begin with https:// or http://")),
        };
        if authority.contains('@') {
            return Err(UrlError::new("it contains a user name or password"));
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest
                    .split_once(']')
                    .ok_or(UrlError::new("missing closing bracket"))?;
                (host, rest.strip_prefix(':'))
            }
            None => match authority.rsplit_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            },
        };
        if host.is_empty() {
            return Err(UrlError::new("missing host"));
        }
        let port = match port {
            None | Some("") if secure => 443,
            None | Some("") => 80,
            Some(port) => port.parse().map_err(|_| UrlError::new("invalid port"))?,
        };
        Ok(Self {
            secure,
            host: host.to_ascii_lowercase().into(),
            port,
        })
    }

    pub(crate) fn scheme(&self) -> &'static str {
        if self.secure { "https" } else { "http" }
    }

    fn has_default_port(&self) -> bool {
        self.port == if self.secure { 443 } else { 80 }
    }

    /// Formats host and port as in the Host header.
    pub(crate) fn authority(&self) -> String {
        let host = if self.host.contains(':') {
            format!("[{}]", self.host)
        } else {
            self.host.to_string()
        };
        if self.has_default_port() {
            host
        } else {
            format!("{host}:{}", self.port)
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme(), self.authority())
    }
}

impl Url {
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    pub fn path(&self) -> &str {
        let target = &*self.target;
        target.split_once('?').map_or(target, |(path, _)| path)
    }

    fn has_query(&self) -> bool {
        self.target.contains('?')
    }

    /// Returns the URL without its query, which is safe to log and store.
    pub fn without_query(&self) -> String {
        format!("{}{}", self.origin, self.path())
    }

    /// Returns path and query.
    pub(crate) fn target(&self) -> &str {
        &self.target
    }

    /// Appends `suffix` to the path. Returns `None` for a URL with a query, which may sign only this path.
    pub fn with_suffix(&self, suffix: &str) -> Option<Self> {
        (!self.has_query()).then(|| Self {
            origin: self.origin.clone(),
            target: format!("{}{suffix}", self.target).into(),
        })
    }

    /// Appends escaped path segments and removes the query.
    pub fn join_segments<'s>(&self, segments: impl IntoIterator<Item = &'s str>) -> Self {
        let mut target = self.path().trim_end_matches('/').to_owned();
        for segment in segments {
            target.push('/');
            encode(segment, &mut target);
        }
        Self {
            origin: self.origin.clone(),
            target: target.into(),
        }
    }

    pub fn with_query<'q>(&self, pairs: impl IntoIterator<Item = (&'q str, &'q str)>) -> Self {
        let mut target = self.path().to_owned();
        for (index, (key, value)) in pairs.into_iter().enumerate() {
            target.push(if index == 0 { '?' } else { '&' });
            encode(key, &mut target);
            target.push('=');
            encode(value, &mut target);
        }
        Self {
            origin: self.origin.clone(),
            target: target.into(),
        }
    }

    /// Resolves the Location of a redirect from this URL.
    pub fn join(&self, location: &str) -> Result<Self, UrlError> {
        if location.starts_with("http://") || location.starts_with("https://") {
            return location.parse();
        }
        if location.starts_with("//") {
            return format!("{}:{location}", self.origin.scheme()).parse();
        }
        let target = if location.starts_with('/') {
            location.to_owned()
        } else if location.starts_with('?') {
            format!("{}{location}", self.path())
        } else if location
            .split(['/', '?'])
            .next()
            .is_some_and(|initial_delay| initial_delay.contains(':'))
        {
            return Err(UrlError::new("it must begin with https:// or http://"));
        } else {
            let directory = self.path().rsplit_once('/').map_or("", |(dir, _)| dir);
            format!("{directory}/{location}")
        };
        format!("{}{target}", self.origin).parse()
    }
}

/// Percent-encodes all but unreserved characters.
fn encode(text: &str, out: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (text, _fragment) = text.split_once('#').unwrap_or((text, ""));
        let uri: Uri = text.parse().map_err(|_| UrlError::new("syntax error"))?;
        let authority = uri.authority().ok_or(UrlError::new("missing host"))?;
        let origin = Origin::parse(uri.scheme_str(), authority.as_str())?;
        let target = uri
            .path_and_query()
            .map_or("/", hyper::http::uri::PathAndQuery::as_str);
        let target = if target.starts_with('/') {
            target.into()
        } else {
            format!("/{target}").into()
        };
        Ok(Self { origin, target })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let query = if self.has_query() { "?…" } else { "" };
        write!(f, "{}{}{query}", self.origin, self.path())
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Url({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        text.parse().unwrap()
    }

    fn with_query(url: &Url) -> String {
        format!("{}{}", url.origin, url.target)
    }

    #[test]
    fn signatures_are_not_shown() {
        let signed = url("https://Store.Example:443/a/b.raw?X-Sig=geheim#part");
        assert_eq!(signed.to_string(), "https://store.example/a/b.raw?…");
        assert!(!format!("{signed:?}").contains("geheim"));
        assert_eq!(signed.without_query(), "https://store.example/a/b.raw");
        assert!(with_query(&signed).ends_with("?X-Sig=geheim"));
        let refused = "https://user:geheim@store.example/".parse::<Url>();
        assert!(!refused.unwrap_err().to_string().contains("geheim"));
    }

    #[test]
    fn locations_are_resolved() {
        let from = url("https://a.example/x/y?q=1");
        for (location, to) in [
            ("https://b.example/z?s", "https://b.example/z?s"),
            ("//b.example:8443/z", "https://b.example:8443/z"),
            ("/z", "https://a.example/z"),
            ("z?t=2", "https://a.example/x/z?t=2"),
            ("?t=2", "https://a.example/x/y?t=2"),
        ] {
            assert_eq!(with_query(&from.join(location).unwrap()), to, "{location}");
        }
        for bad in [
            "file:///etc/passwd",
            "javascript:alert(1)",
            "https://",
            "https://[::1/",
        ] {
            assert!(from.join(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let origin = |text: &str| url(text).origin().clone();
        assert_eq!(
            origin("https://A.example"),
            origin("https://a.example:443/x")
        );
        assert_ne!(origin("https://a.example"), origin("http://a.example:443"));
        assert_ne!(origin("https://a.example"), origin("https://a.example:444"));
        assert_eq!(origin("http://[::1]:80/").to_string(), "http://[::1]");
    }

    #[test]
    fn segments_and_query_are_escaped() {
        let built = url("https://a.example/api/")
            .join_segments(["tenant", "a/b ü"])
            .with_query([("project", "x&y=*"), ("pipeline", "p")]);
        assert_eq!(
            with_query(&built),
            "https://a.example/api/tenant/a%2Fb%20%C3%BC?project=x%26y%3D%2A&pipeline=p"
        );
        assert_eq!(built.with_suffix(".sha256"), None);
    }
}
