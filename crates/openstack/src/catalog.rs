//! The endpoints of a cloud's services.

use reqwest::Url;
use serde::Deserialize;

use crate::clouds::CloudSettings;
use crate::error::{Error, ErrorKind};
use crate::service::Service;

/// The catalog that comes with a token.
#[derive(Debug, Default, Deserialize)]
#[serde(transparent)]
pub(crate) struct Catalog(Vec<Entry>);

#[derive(Debug, Deserialize)]
struct Entry {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    endpoints: Vec<Endpoint>,
}

#[derive(Debug, Deserialize)]
struct Endpoint {
    #[serde(default)]
    interface: String,
    #[serde(default)]
    region: Option<String>,
    #[serde(default)]
    region_id: Option<String>,
    #[serde(default)]
    url: String,
}

impl Endpoint {
    fn region(&self) -> Option<&str> {
        self.region.as_deref().or(self.region_id.as_deref())
    }
}

impl Catalog {
    /// Returns the base URL of a service.
    pub(crate) fn endpoint(
        &self,
        service: Service,
        settings: &CloudSettings,
        call: &str,
    ) -> Result<Url, Error> {
        let own = settings.service(service);
        let text = match &own.endpoint_override {
            Some(url) => url,
            None => self.find(service, settings, call)?,
        };
        let setup = |cause: String| Error::new(ErrorKind::Setup, service, call).with_message(cause);
        let url: Url = text.parse().map_err(|cause| {
            setup(format!(
                "the address {text:?} of the {service} service is none: {cause}"
            ))
        })?;
        versioned(url, service).ok_or_else(|| {
            setup(format!(
                "the address {text:?} of the {service} service has no path"
            ))
        })
    }

    fn find(&self, service: Service, settings: &CloudSettings, call: &str) -> Result<&str, Error> {
        let interfaces = settings.interfaces(service);
        let region = settings.region_of(service);
        let entries = |kind: &'static str| self.0.iter().filter(move |entry| entry.kind == kind);
        let mut elsewhere = Vec::new();
        for kind in service.types() {
            for interface in interfaces {
                let endpoints = entries(kind).flat_map(|entry| &entry.endpoints);
                for endpoint in endpoints.filter(|endpoint| *endpoint.interface == **interface) {
                    if region.is_none_or(|region| endpoint.region() == Some(region)) {
                        return Ok(&endpoint.url);
                    }
                    elsewhere.extend(endpoint.region());
                }
            }
        }
        elsewhere.sort_unstable();
        elsewhere.dedup();
        let error = Error::new(ErrorKind::NoService, service, call);
        Err(match region {
            Some(region) if !elsewhere.is_empty() => error.with_message(format!(
                "not in region {region:?}, only in {}",
                elsewhere.join(", ")
            )),
            _ if service
                .types()
                .iter()
                .any(|kind| entries(kind).next().is_some()) =>
            {
                error.with_message(format!("not for interface {}", interfaces.join(", ")))
            }
            _ => error,
        })
    }
}

/// Catalogs have URLs with a version and without. Nova's `v2` does not support microversions.
fn versioned(mut url: Url, service: Service) -> Option<Url> {
    let is_version = |segment: &str| {
        let number = segment.strip_prefix('v');
        number.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let mut segments: Vec<String> = url.path_segments()?.map(ToOwned::to_owned).collect();
    segments.retain(|segment| !segment.is_empty());
    match segments.iter_mut().find(|segment| is_version(segment)) {
        Some(version) if service == Service::Compute && version == "v2" => {
            service.version().clone_into(version);
        }
        Some(version) if service == Service::Identity => service.version().clone_into(version),
        Some(_) => {}
        None => segments.push(service.version().to_owned()),
    }
    url.set_path(&segments.join("/"));
    Some(url)
}

/// Returns the URL where tokens are requested.
pub(crate) fn tokens(auth_url: &Url) -> Option<Url> {
    let mut url = versioned(auth_url.clone(), Service::Identity)?;
    url.path_segments_mut().ok()?.extend(["auth", "tokens"]);
    Some(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_get_the_version_that_they_lack() {
        for (service, given, expected) in [
            (Service::Network, "http://c:9696", "http://c:9696/v2.0"),
            (Service::Network, "http://c:9696/", "http://c:9696/v2.0"),
            (Service::Image, "https://c/image", "https://c/image/v2"),
            (Service::Image, "https://c/image/v2/", "https://c/image/v2"),
            (Service::Compute, "https://c/v2/abc", "https://c/v2.1/abc"),
            (Service::Compute, "https://c/v2.1", "https://c/v2.1"),
            (
                Service::Volume,
                "https://c/volume/v3/abc",
                "https://c/volume/v3/abc",
            ),
        ] {
            let url = versioned(given.parse().unwrap(), service).unwrap();
            assert_eq!(url.as_str(), expected);
        }
        for given in [
            "https://c:5000",
            "https://c:5000/v3",
            "https://c:5000/v2.0/",
            "https://c:5000/v3/",
        ] {
            let url = tokens(&given.parse().unwrap()).unwrap();
            assert_eq!(url.as_str(), "https://c:5000/v3/auth/tokens");
        }
        let below = tokens(&"https://c/identity".parse().unwrap()).unwrap();
        assert_eq!(below.as_str(), "https://c/identity/v3/auth/tokens");
    }
}
