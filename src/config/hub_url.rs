//! A hub's address, checked once: encrypted unless it is on this machine, and without secrets in it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use url::{Host, Url};

/// A hub's address: `https://…`, or `http://…` on loopback; without user info, query and fragment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HubUrl(Url);

/// Why a text is not a hub's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HubUrlError {
    /// No URL with a host.
    #[error("not a URL like https://hub.example.org")]
    NotAUrl,
    /// Another scheme.
    #[error("a hub's URL begins with https:// (or http:// on this machine)")]
    Scheme,
    /// Not encrypted, and not on this machine.
    #[error("http:// is only accepted for this machine: use https://")]
    Insecure,
    /// User info, query or fragment.
    #[error("a hub's URL carries no credentials, query or fragment")]
    Extra,
}

impl HubUrl {
    /// Whether TLS is used.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.0.scheme() == "https"
    }

    /// Whether it names this machine itself.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.0.host().is_some_and(|host| leads_here(&host))
    }

    /// The host as it stands in certificates and `Host` headers (IPv6 in brackets).
    #[must_use]
    pub fn host(&self) -> &str {
        self.0.host_str().unwrap_or_default()
    }

    /// The port, also when it is the scheme's own.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.0.port_or_known_default().unwrap_or(443)
    }

    /// The host and port for a `Host` header: the port only if it is not the scheme's own.
    #[must_use]
    pub fn authority(&self) -> String {
        match self.0.port() {
            Some(port) => format!("{}:{port}", self.host()),
            None => self.host().to_owned(),
        }
    }

    /// The path below which the API lies, without a final slash; empty for the root.
    #[must_use]
    pub fn base_path(&self) -> &str {
        self.0.path().trim_end_matches('/')
    }

    /// The address of an API path made of these segments, each percent-encoded as needed.
    #[must_use]
    pub fn api(&self, segments: &[&str]) -> Url {
        let mut url = self.0.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(segments);
        }
        url
    }
}

fn leads_here(host: &Host<&str>) -> bool {
    match host {
        Host::Domain(name) => *name == "localhost",
        Host::Ipv4(ip) => ip.is_loopback(),
        Host::Ipv6(ip) => ip.is_loopback(),
    }
}

impl fmt::Display for HubUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str().trim_end_matches('/'))
    }
}

impl FromStr for HubUrl {
    type Err = HubUrlError;
    fn from_str(s: &str) -> Result<Self, HubUrlError> {
        let url = Url::parse(s.trim()).map_err(|_| HubUrlError::NotAUrl)?;
        if !matches!(url.scheme(), "https" | "http") {
            return Err(HubUrlError::Scheme);
        }
        let here = leads_here(&url.host().ok_or(HubUrlError::NotAUrl)?);
        if url.scheme() == "http" && !here {
            return Err(HubUrlError::Insecure);
        }
        let plain = url.username().is_empty()
            && url.password().is_none()
            && url.query().is_none()
            && url.fragment().is_none();
        if !plain {
            return Err(HubUrlError::Extra);
        }
        Ok(Self(url))
    }
}

impl TryFrom<String> for HubUrl {
    type Error = HubUrlError;
    fn try_from(s: String) -> Result<Self, HubUrlError> {
        s.parse()
    }
}

impl From<HubUrl> for String {
    fn from(url: HubUrl) -> Self {
        url.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_as_written_and_lead_to_encoded_paths() {
        let url: HubUrl = "https://hub.example/base/".parse().unwrap();
        assert_eq!(url.to_string(), "https://hub.example/base");
        assert_eq!(
            url.api(&["memory", "a/b c"]).as_str(),
            "https://hub.example/base/memory/a%2Fb%20c"
        );
        assert_eq!((url.port(), url.authority()), (443, "hub.example".into()));
        let local: HubUrl = "http://127.0.0.1:8080".parse().unwrap();
        assert_eq!(
            local.api(&["enroll"]).as_str(),
            "http://127.0.0.1:8080/enroll"
        );
        assert_eq!((local.base_path(), local.is_tls()), ("", false));
    }
}
