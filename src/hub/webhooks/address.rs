//! Which addresses a call may go to: pure.
//!
//! A producer names the URL, the hub makes the call, from inside whatever network it stands in. So only addresses of the
//! public Internet are called, unless the hub's owner allows private ones; link-local ones (where clouds keep their
//! metadata), multicast and the unspecified are never called.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use url::{Host, Url};

/// Longest URL, bytes.
const MAX_URL: usize = 2048;

/// What kind of address it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Public,
    Loopback,
    /// Of a private network.
    Private,
    /// Link-local, multicast, unspecified, reserved, or a way into another address family that cannot be judged.
    Never,
}

pub(crate) fn kind(ip: IpAddr) -> Kind {
    match ip {
        IpAddr::V4(ip) => kind_v4(ip),
        IpAddr::V6(ip) => kind_v6(ip),
    }
}

fn kind_v4(ip: Ipv4Addr) -> Kind {
    let [a, b, c, _] = ip.octets();
    match (a, b, c) {
        (127, ..) => Kind::Loopback,
        (10, ..) | (192, 168, _) | (172, 16..=31, _) | (100, 64..=127, _) => Kind::Private,
        (0 | 224..=255, ..)
        | (169, 254, _)
        | (192, 0, 0 | 2)
        | (192, 88, 99)
        | (198, 18 | 19, _)
        | (198, 51, 100)
        | (203, 0, 113) => Kind::Never,
        _ => Kind::Public,
    }
}

fn kind_v6(ip: Ipv6Addr) -> Kind {
    if ip == Ipv6Addr::LOCALHOST {
        return Kind::Loopback;
    }
    let s = ip.segments();
    let inner = |high: u16, low: u16| {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        kind_v4(Ipv4Addr::new(a, b, c, d))
    };
    match s {
        // Mapped, and NAT64: the IPv4 address inside is the one that is reached.
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            inner(high, low)
        }
        // 6to4.
        [0x2002, high, low, ..] => inner(high, low),
        // Teredo, ORCHID and the like, documentation.
        [0x2001, second, ..] if second < 0x0200 || second == 0x0db8 => Kind::Never,
        [0x3fff, second, ..] if second < 0x1000 => Kind::Never,
        [first, ..] if first & 0xfe00 == 0xfc00 => Kind::Private,
        [first, ..] if first & 0xe000 == 0x2000 => Kind::Public,
        _ => Kind::Never,
    }
}

/// Why a URL is not called.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    #[error("must be an absolute URL of at most {MAX_URL} bytes")]
    NotAUrl,
    #[error("must begin with `https://`")]
    NotHttps,
    #[error(
        "must not hold a user name or password; calls are signed with the token's webhook secret"
    )]
    UserInfo,
    #[error("names {0}, which this hub does not call")]
    Address(IpAddr),
}

/// The URL of a callback, as far as it can be judged before its name is resolved.
pub(crate) fn url(text: &str, allow_private: bool) -> Result<Url, Refused> {
    if text.len() > MAX_URL {
        return Err(Refused::NotAUrl);
    }
    let url = Url::parse(text).map_err(|_| Refused::NotAUrl)?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(Refused::UserInfo);
    }
    let ip = match url.host().ok_or(Refused::NotAUrl)? {
        Host::Ipv4(ip) => Some(IpAddr::V4(ip)),
        Host::Ipv6(ip) => Some(IpAddr::V6(ip)),
        Host::Domain(_) => None,
    };
    match url.scheme() {
        "https" => {}
        "http" if allow_private => {}
        _ => return Err(Refused::NotHttps),
    }
    if let Some(ip) = ip {
        check(&url, ip, allow_private)?;
    }
    Ok(url)
}

/// Whether this URL may be called at this address.
pub(crate) fn check(url: &Url, ip: IpAddr, allow_private: bool) -> Result<(), Refused> {
    let may = match kind(ip) {
        Kind::Public => url.scheme() == "https",
        Kind::Loopback => allow_private,
        Kind::Private => allow_private && url.scheme() == "https",
        Kind::Never => false,
    };
    if may {
        Ok(())
    } else {
        Err(Refused::Address(ip))
    }
}

/// The URL as it is shown: without its query, in which people keep secrets.
pub(crate) fn shown(text: &str) -> String {
    let end = text.find(['?', '#']).unwrap_or(text.len());
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ip: &str) -> Kind {
        kind(ip.parse().unwrap())
    }

    #[test]
    fn only_the_public_internet_is_public() {
        for ip in [
            "1.1.1.1",
            "93.184.216.34",
            "172.32.0.1",
            "100.128.0.1",
            "2606:4700::1",
            "64:ff9b::101:101",
            "2002:101:101::1",
        ] {
            assert_eq!(of(ip), Kind::Public, "{ip}");
        }
        for ip in [
            "127.0.0.1",
            "127.9.9.9",
            "::1",
            "::ffff:127.0.0.1",
            "64:ff9b::7f00:1",
        ] {
            assert_eq!(of(ip), Kind::Loopback, "{ip}");
        }
        for ip in [
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "100.64.0.1",
            "fd00:ec2::254",
            "fc00::1",
            "::ffff:10.0.0.1",
            "2002:a00:1::",
        ] {
            assert_eq!(of(ip), Kind::Private, "{ip}");
        }
        for ip in [
            "0.0.0.0",
            "0.1.2.3",
            "169.254.169.254",
            "224.0.0.1",
            "255.255.255.255",
            "240.0.0.1",
            "192.0.2.1",
            "198.18.0.1",
            "::",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::1",
            "2001::1",
            "2001:db8::1",
            "::7f00:1",
            "100::1",
            "2002:a9fe:a9fe::",
        ] {
            assert_eq!(of(ip), Kind::Never, "{ip}");
        }
    }

    #[test]
    fn what_a_producer_may_name_is_https_without_credentials() {
        for good in [
            "https://example.com/hook?x=1",
            "https://example.com:8443/",
            "https://1.1.1.1/",
        ] {
            assert!(url(good, false).is_ok(), "{good}");
        }
        let long = format!("https://example.com/{}", "x".repeat(MAX_URL));
        for (bad, why) in [
            ("http://example.com/", Refused::NotHttps),
            ("ftp://example.com/", Refused::NotHttps),
            ("file:///etc/passwd", Refused::NotAUrl),
            ("example.com", Refused::NotAUrl),
            (&long, Refused::NotAUrl),
            ("https://u@example.com/", Refused::UserInfo),
            ("https://u:p@example.com/", Refused::UserInfo),
            (
                "https://127.0.0.1/",
                Refused::Address([127, 0, 0, 1].into()),
            ),
            // Every way to write an address is the same address.
            (
                "https://0x7f000001/",
                Refused::Address([127, 0, 0, 1].into()),
            ),
            (
                "https://2130706433/",
                Refused::Address([127, 0, 0, 1].into()),
            ),
            (
                "https://169.254.169.254/latest",
                Refused::Address([169, 254, 169, 254].into()),
            ),
        ] {
            assert_eq!(url(bad, false), Err(why), "{bad}");
        }
        assert!(url("https://[::ffff:10.0.0.1]/", false).is_err());
        assert!(url("http://127.0.0.1:9/", true).is_ok());
        assert!(url("https://10.0.0.1/", true).is_ok());
        // In clear text only to this machine, and never to where clouds keep their metadata.
        assert!(url("http://10.0.0.1/", true).is_err());
        assert!(url("http://1.1.1.1/", true).is_err());
        assert!(url("https://169.254.169.254/", true).is_err());
        assert_eq!(
            shown("https://example.com/a?key=s#x"),
            "https://example.com/a"
        );
    }
}
