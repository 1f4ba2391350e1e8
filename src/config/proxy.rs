//! Through which proxy a hub is reached, if any: the key `proxy`, else the variables that `curl` reads.
//!
//! `https_proxy` wins over `HTTPS_PROXY`, both over `all_proxy` and `ALL_PROXY`; empty ones count as unset. `http_proxy` has no
//! say: a hub over plain http is on this machine, and this machine is never reached through a proxy. `no_proxy` and `NO_PROXY`
//! list hosts to be reached directly, also when the key names the proxy: names (each with what ends in it after a dot), addresses,
//! networks (`10.0.0.0/8`), each with `:PORT` or not; `*` is every host. Names are compared as they are written, never resolved.
//!
//! A proxy's password is shown nowhere: `Display` and `Debug` tell scheme, host and port.

use std::ffi::OsString;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use secrecy::{ExposeSecret as _, SecretString};
use url::{Host, Url};

/// A proxy that opens tunnels by CONNECT.
#[derive(Clone)]
pub struct ProxyUrl {
    tls: bool,
    host: String,
    port: u16,
    /// User and password as they stand in the URL, percent-encoded.
    user: Option<(String, SecretString)>,
    /// `Basic …`, of the two.
    authorization: Option<SecretString>,
}

/// Why a text names no proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProxyUrlError {
    /// No URL with a host.
    #[error("is not a proxy like http://proxy.example.org:3128")]
    NotAUrl,
    /// Another kind of proxy.
    #[error("names a proxy of another kind: only http:// and https:// proxies are spoken to")]
    Scheme,
    /// A path, query or fragment.
    #[error("has more than scheme, user, password, host and port")]
    Extra,
}

impl ProxyUrl {
    /// The whole URL, with the password: a secret, for the HTTP client alone.
    pub(crate) fn with_credentials(&self) -> Option<Url> {
        let mut url = Url::parse(&self.to_string()).ok()?;
        if let Some((user, password)) = &self.user {
            url.set_username(user).ok()?;
            url.set_password(Some(password.expose_secret())).ok()?;
        }
        Some(url)
    }

    /// Whether TLS is spoken with the proxy itself.
    #[must_use]
    pub const fn is_tls(&self) -> bool {
        self.tls
    }

    /// The host; an IPv6 address without brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        self.host.trim_matches(['[', ']'])
    }

    /// The port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The value of `Proxy-Authorization`, a secret.
    #[must_use]
    pub fn authorization(&self) -> Option<&str> {
        self.authorization.as_ref().map(|a| a.expose_secret())
    }
}

impl PartialEq for ProxyUrl {
    fn eq(&self, other: &Self) -> bool {
        (self.tls, &self.host, self.port) == (other.tls, &other.host, other.port)
            && self.authorization() == other.authorization()
    }
}

impl fmt::Display for ProxyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}:{}", self.host, self.port)
    }
}

impl fmt::Debug for ProxyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProxyUrl({self})")
    }
}

impl FromStr for ProxyUrl {
    type Err = ProxyUrlError;
    fn from_str(text: &str) -> Result<Self, ProxyUrlError> {
        let text = text.trim();
        let url = if text.contains("://") {
            Url::parse(text)
        } else {
            Url::parse(&format!("http://{text}"))
        };
        let url = url.map_err(|_| ProxyUrlError::NotAUrl)?;
        let tls = match url.scheme() {
            "http" => false,
            "https" => true,
            _ => return Err(ProxyUrlError::Scheme),
        };
        if url.path() != "/" || url.query().is_some() || url.fragment().is_some() {
            return Err(ProxyUrlError::Extra);
        }
        let host = url.host_str().ok_or(ProxyUrlError::NotAUrl)?.to_owned();
        let named = !url.username().is_empty() || url.password().is_some();
        let authorization = named.then(|| {
            let mut pair = decoded(url.username());
            pair.push(b':');
            pair.extend(decoded(url.password().unwrap_or_default()));
            SecretString::from(format!("Basic {}", STANDARD.encode(pair)))
        });
        let password = || SecretString::from(url.password().unwrap_or_default());
        let user = named.then(|| (url.username().to_owned(), password()));
        Ok(Self {
            tls,
            user,
            host,
            port: url.port_or_known_default().unwrap_or(80),
            authorization,
        })
    }
}

/// The bytes of a text with `%XX` in it.
fn decoded(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let hex = after
            .get(..2)
            .filter(|_| *first == b'%')
            .and_then(|h| std::str::from_utf8(h).ok())
            .and_then(|h| u8::from_str_radix(h, 16).ok());
        match hex {
            Some(byte) => {
                out.push(byte);
                rest = &after[2..];
            }
            None => {
                out.push(*first);
                rest = after;
            }
        }
    }
    out
}

/// What the key `proxy` says.
#[derive(Debug, Clone, PartialEq)]
pub enum ProxyChoice {
    /// No proxy, whatever the environment says.
    None,
    /// This one.
    Url(ProxyUrl),
}

impl FromStr for ProxyChoice {
    type Err = ProxyUrlError;
    fn from_str(text: &str) -> Result<Self, ProxyUrlError> {
        match text.trim() {
            "none" => Ok(Self::None),
            url => url.parse().map(Self::Url),
        }
    }
}

/// Why the environment's proxy cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{variable} {error}; correct it, or set the key `proxy` (`none` for no proxy)")]
pub struct ProxyError {
    variable: &'static str,
    error: ProxyUrlError,
}

/// Decides for every connection to a hub.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Proxies {
    proxy: Option<Result<ProxyUrl, ProxyError>>,
    direct: Vec<Direct>,
}

impl Proxies {
    /// What the key and the environment say; an unusable variable is an error only for a hub that would be reached by it.
    #[must_use]
    pub fn read(key: Option<ProxyChoice>, env: &dyn Fn(&str) -> Option<OsString>) -> Self {
        let get = |name: &str| {
            let value = env(name)?.to_string_lossy().trim().to_owned();
            (!value.is_empty()).then_some(value)
        };
        let proxy = match key {
            Some(ProxyChoice::None) => None,
            Some(ProxyChoice::Url(url)) => Some(Ok(url)),
            None => ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"]
                .into_iter()
                .find_map(|variable| Some((variable, get(variable)?)))
                .map(|(variable, text)| {
                    text.parse().map_err(|error| ProxyError { variable, error })
                }),
        };
        let list = ["no_proxy", "NO_PROXY"].into_iter().find_map(get);
        let direct = list
            .unwrap_or_default()
            .split(|c: char| c == ',' || c.is_whitespace())
            .filter_map(Direct::parse)
            .collect();
        Self { proxy, direct }
    }

    /// Whether a password goes to the proxy.
    pub(super) fn has_secret(&self) -> bool {
        matches!(&self.proxy, Some(Ok(p)) if p.authorization.is_some())
    }

    /// The proxy for a connection to this host (IPv6 with brackets or without) and port; `None` is the direct way.
    ///
    /// # Errors
    /// When there is a proxy for it whose URL cannot be used.
    pub fn for_host(&self, host: &str, port: u16) -> Result<Option<&ProxyUrl>, ProxyError> {
        let host = host
            .trim_matches(['[', ']'])
            .trim_end_matches('.')
            .to_ascii_lowercase();
        let address: Option<IpAddr> = host.parse().ok().map(|ip: IpAddr| ip.to_canonical());
        let here = address.map_or(host == "localhost", |ip| ip.is_loopback());
        match &self.proxy {
            Some(proxy) if !here && !self.direct.iter().any(|d| d.holds(&host, address, port)) => {
                proxy.as_ref().map(Some).map_err(Clone::clone)
            }
            _ => Ok(None),
        }
    }
}

/// One entry of `NO_PROXY`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Direct {
    which: Which,
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Which {
    All,
    Name(String),
    Network(IpAddr, u8),
}

impl Direct {
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim().to_ascii_lowercase();
        if let Some(which) = Which::parse(&text) {
            return Some(Self { which, port: None });
        }
        let (host, port) = text.rsplit_once(':')?;
        Some(Self {
            which: Which::parse(host)?,
            port: Some(port.parse().ok()?),
        })
    }

    fn holds(&self, host: &str, address: Option<IpAddr>, port: u16) -> bool {
        self.port.is_none_or(|p| p == port)
            && match &self.which {
                Which::All => true,
                Which::Name(name) => {
                    let before = host.strip_suffix(name.as_str());
                    address.is_none() && before.is_some_and(|b| b.is_empty() || b.ends_with('.'))
                }
                Which::Network(network, bits) => {
                    address.is_some_and(|a| same_network(a, *network, *bits))
                }
            }
    }
}

impl Which {
    fn parse(text: &str) -> Option<Self> {
        if text == "*" {
            return Some(Self::All);
        }
        let (address, bits) = text
            .split_once('/')
            .map_or((text, None), |(a, b)| (a, Some(b)));
        if let Ok(ip) = address.trim_matches(['[', ']']).parse::<IpAddr>() {
            let most = if ip.is_ipv4() { 32 } else { 128 };
            let bits = bits.map_or(Some(most), |b| b.parse().ok())?;
            return (bits <= most).then(|| Self::Network(ip.to_canonical(), bits));
        }
        let name = text.trim_start_matches("*.").trim_matches('.');
        let is_name = bits.is_none() && !name.is_empty() && Host::parse(name).is_ok();
        is_name.then(|| Self::Name(name.to_owned()))
    }
}

fn same_network(a: IpAddr, b: IpAddr, bits: u8) -> bool {
    let same = |x: u128, y: u128, width: u32| {
        let kept = u32::from(bits).min(width);
        kept == 0 || (x ^ y) >> (width - kept) == 0
    };
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => same(a.to_bits().into(), b.to_bits().into(), 32),
        (IpAddr::V6(a), IpAddr::V6(b)) => same(a.to_bits(), b.to_bits(), 128),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(key: Option<&str>, env: &[(&str, &str)]) -> Proxies {
        let get = |name: &str| {
            let found = env.iter().find(|(n, _)| *n == name);
            found.map(|(_, v)| OsString::from(v))
        };
        Proxies::read(key.map(|k| k.parse().unwrap()), &get)
    }

    fn way(p: &Proxies, host: &str) -> Option<String> {
        p.for_host(host, 443).unwrap().map(ToString::to_string)
    }

    #[test]
    fn the_first_variable_that_says_something_counts_and_the_key_wins() {
        let all = [
            ("https_proxy", " "),
            ("HTTPS_PROXY", "upper:1"),
            ("ALL_PROXY", "all:2"),
        ];
        assert_eq!(
            way(&proxies(None, &all), "hub.example").unwrap(),
            "http://upper:1"
        );
        assert_eq!(
            way(&proxies(None, &all[2..]), "hub.example").unwrap(),
            "http://all:2"
        );
        let lower = [("https_proxy", "https://lower"), ("HTTPS_PROXY", "upper:1")];
        assert_eq!(
            way(&proxies(None, &lower), "hub.example").unwrap(),
            "https://lower:443"
        );
        let key = proxies(Some("http://key:3"), &all);
        assert_eq!(way(&key, "hub.example").unwrap(), "http://key:3");
        assert_eq!(way(&proxies(Some("none"), &all), "hub.example"), None);
        assert_eq!(
            way(
                &proxies(None, &[("http_proxy", "x:1"), ("HTTP_PROXY", "x:1")]),
                "h"
            ),
            None
        );
    }

    #[test]
    fn this_machine_is_never_reached_through_a_proxy() {
        let p = proxies(Some("http://proxy:3128"), &[]);
        for host in [
            "localhost",
            "LOCALHOST.",
            "127.0.0.1",
            "127.9.9.9",
            "::1",
            "[::1]",
            "[::ffff:127.0.0.1]",
        ] {
            assert_eq!(way(&p, host), None, "{host}");
        }
        for host in ["localhost.example", "128.0.0.1", "hub.localdomain"] {
            assert!(way(&p, host).is_some(), "{host}");
        }
    }

    #[test]
    fn no_proxy_knows_names_addresses_networks_and_ports() {
        let list = "corp.example, .dot.example\t*.star.example 10.0.0.0/8,192.0.2.7,[2001:db8::]/32,fe80::1,only.example:8443,nonsense/9,256.1.1.1/33";
        let p = proxies(Some("proxy:3128"), &[("no_proxy", list)]);
        for host in [
            "corp.example",
            "a.b.CORP.example",
            "dot.example",
            "x.dot.example",
            "x.star.example",
            "10.255.0.1",
            "192.0.2.7",
            "[2001:db8:1::1]",
            "fe80::1",
        ] {
            assert_eq!(way(&p, host), None, "{host}");
        }
        for host in [
            "notcorp.example",
            "corp.example.org",
            "11.0.0.1",
            "192.0.2.70",
            "[2001:db9::1]",
            "only.example",
        ] {
            assert!(way(&p, host).is_some(), "{host}");
        }
        assert_eq!(p.for_host("only.example", 8443).unwrap(), None);
        assert_eq!(
            way(&proxies(Some("proxy:1"), &[("NO_PROXY", "*")]), "anything"),
            None
        );
    }

    #[test]
    fn a_password_is_sent_and_never_shown() {
        let url: ProxyUrl = "http://us%65r:p%40ss%3Aw%zz@Proxy.example:3128"
            .parse()
            .unwrap();
        let expected = STANDARD.encode("user:p@ss:w%zz");
        assert_eq!(
            url.authorization(),
            Some(format!("Basic {expected}").as_str())
        );
        for shown in [url.to_string(), format!("{url:?}")] {
            assert!(shown.contains("http://proxy.example:3128"), "{shown}");
            assert!(
                !shown.contains("user") && !shown.contains(&expected),
                "{shown}"
            );
        }
    }

    #[test]
    fn what_is_no_proxy_is_refused_without_being_repeated() {
        for (text, error) in [
            ("socks5://u:secret@p:1080", ProxyUrlError::Scheme),
            ("http://u:secret@", ProxyUrlError::NotAUrl),
            ("http://u:secret@p:99999", ProxyUrlError::NotAUrl),
            ("http://p/path", ProxyUrlError::Extra),
        ] {
            assert_eq!(text.parse::<ProxyUrl>(), Err(error), "{text}");
        }
        let p = proxies(None, &[("ALL_PROXY", "socks5://u:secret@p:1080")]);
        let error = p.for_host("hub.example", 443).unwrap_err().to_string();
        assert!(
            error.contains("ALL_PROXY") && !error.contains("secret"),
            "{error}"
        );
        assert_eq!(way(&p, "127.0.0.1"), None);
    }
}
