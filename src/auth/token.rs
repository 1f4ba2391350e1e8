//! Minting and verifying tokens: the only file that knows how a JWT looks.
//!
//! Everything is EdDSA: the header's `alg` is compared with that one name before a signature is looked at, so neither
//! `none` nor an HMAC keyed with a public key is ever tried. Times are compared with the `now` that the caller gives.
//!
//! A connect JWT is minted right before the dial, so one whose `iat` is not about now tells of a wrong clock and not of
//! a late caller: it is answered [`AuthError::ClockSkew`] with the hub's time, and the device signs again with the
//! offset. [`AuthError::Expired`] remains for one whose `iat` is plausible and whose `exp` is over.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use secrecy::{ExposeSecret, SecretString};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::keys::{DeviceKey, HubKeys, PublicKey};
use crate::domain::limits::CONNECT_JWT_S;
use crate::domain::{AccountId, Code, DeviceId, Trust, WallMs};

/// How far two honest clocks may differ, seconds.
pub(crate) const LEEWAY_S: i64 = 5;
/// Longest token text that is looked at, bytes.
const MAX_TOKEN_BYTES: usize = 8 << 10;
/// Life of a join token, seconds.
pub const JOIN_TTL_S: i64 = 3600;

pub(super) fn install_provider() {
    // `false` means that it is installed already.
    let _new = jsonwebtoken::crypto::aws_lc::DEFAULT_PROVIDER
        .install_default()
        .is_ok();
}

/// Why a token does not hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// Empty, a placeholder, or not a JWT.
    #[error("the token is not a token: {0}")]
    Malformed(&'static str),
    /// Signed with another algorithm than EdDSA, or with none.
    #[error("the token is not signed with EdDSA")]
    WrongAlgorithm,
    /// Signed by a key that is not known here.
    #[error("the token was signed by a key that is not known here")]
    UnknownKey,
    /// The signature does not match.
    #[error("the token's signature does not match")]
    BadSignature,
    /// Made for, or by, somebody else.
    #[error("the token was made for somebody else")]
    WrongAudience,
    /// Past its time.
    #[error("the token is expired: use a fresh one")]
    Expired,
    /// Not valid yet: the signer's clock is ahead.
    #[error("the token is not valid yet")]
    NotYet,
    /// A connect JWT whose `iat` is not about now.
    #[error("the device's clock is off by {off_s} s: sign again with the hub's time")]
    ClockSkew {
        /// The hub's time, Unix ms.
        hub_now: WallMs,
        /// Device time minus hub time, seconds, as far as the token tells.
        off_s: i64,
    },
    /// Valid for longer than such a token may be.
    #[error("the token is valid for {life_s} s; at most {max_s} s are allowed")]
    TooLong {
        /// Its life, seconds.
        life_s: i64,
        /// The limit, seconds.
        max_s: i64,
    },
    /// The key cannot sign.
    #[error("the key cannot sign")]
    CannotSign,
}

impl AuthError {
    /// The stable code.
    #[must_use]
    pub const fn code(&self) -> Code {
        match self {
            Self::Expired => Code::TokenExpired,
            Self::ClockSkew { .. } => Code::ClockSkew,
            Self::CannotSign => Code::Internal,
            Self::Malformed(_)
            | Self::WrongAlgorithm
            | Self::UnknownKey
            | Self::BadSignature
            | Self::WrongAudience
            | Self::NotYet
            | Self::TooLong { .. } => Code::TokenInvalid,
        }
    }
}

/// A token's text; `Debug` redacts it.
#[derive(Clone)]
pub struct Token(SecretString);

impl Token {
    /// The token in a text somebody pasted or piped: trimmed, not empty, not a placeholder, of a JWT's shape.
    ///
    /// # Errors
    /// [`AuthError::Malformed`] with what is wrong.
    pub fn parse(text: &str) -> Result<Self, AuthError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(AuthError::Malformed("it is empty"));
        }
        if text.len() > MAX_TOKEN_BYTES {
            return Err(AuthError::Malformed("it is too long"));
        }
        let part = |p: &str| {
            !p.is_empty()
                && p.bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        };
        let mut parts = text.split('.');
        let three = parts.by_ref().take(3).filter(|p| part(p)).count() == 3;
        if !three || parts.next().is_some() {
            return Err(AuthError::Malformed(
                "it does not consist of three base64url parts with dots between them",
            ));
        }
        Ok(Self(text.to_owned().into()))
    }

    /// The text, for the one place that sends or prints it.
    #[must_use]
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

macro_rules! scopes {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// One thing that a token lets its bearer do.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Scope { $($(#[$doc])* $name,)* }

        impl Scope {
            /// Every scope.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The scope as it stands in a token.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

scopes! {
    /// Post tasks.
    TasksWrite = "tasks:write",
    /// Read tasks.
    TasksRead = "tasks:read",
    /// Post messages.
    MessagesWrite = "messages:write",
    /// Read messages.
    MessagesRead = "messages:read",
    /// Read memory, index, notes.
    MemoryRead = "memory:read",
    /// Write them.
    MemoryWrite = "memory:write",
    /// Revoke devices.
    DevicesAdmin = "devices:admin",
    /// Enrol one device, once.
    DevicesEnroll = "devices:enroll",
    /// Decide about approvals.
    ApprovalsWrite = "approvals:write",
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Scope {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        Self::ALL
            .iter()
            .copied()
            .find(|x| x.as_str() == s)
            .ok_or_else(|| {
                let known: Vec<_> = Self::ALL.iter().map(|s| s.as_str()).collect();
                format!("unknown scope `{s}`; known are {}", known.join(", "))
            })
    }
}

/// What a hub-signed token is to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Its name: what receivers see as the sender.
    pub name: String,
    /// Its account.
    pub account: AccountId,
    /// What it lets its bearer do.
    pub scopes: BTreeSet<Scope>,
    /// How far its bearer is believed.
    pub trust: Trust,
    /// Its life from now, seconds.
    pub ttl_s: i64,
}

impl Grant {
    /// A join token's grant: single use, one hour.
    #[must_use]
    pub fn join(name: impl Into<String>, account: AccountId) -> Self {
        Self {
            name: name.into(),
            account,
            scopes: BTreeSet::from([Scope::DevicesEnroll]),
            trust: Trust::Inform,
            ttl_s: JOIN_TTL_S,
        }
    }
}

/// What a hub-signed token says, after its signature, audience and times were found good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// Its name.
    pub name: String,
    /// Its account.
    pub account: AccountId,
    /// What it lets its bearer do; scopes of a later version are dropped.
    pub scopes: BTreeSet<Scope>,
    /// How far its bearer is believed.
    pub trust: Trust,
    /// Its own id, for revocation and single use.
    pub jti: Uuid,
    /// When it ends, Unix ms.
    pub expires_at: WallMs,
}

/// What a connect JWT says, after its signature, audience and times were found good; `jti` is still to be checked for a replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connect {
    /// The device.
    pub device: DeviceId,
    /// Its own id; it may be used once.
    pub jti: Uuid,
    /// When it was signed, by the device's clock, Unix ms.
    pub issued_at: WallMs,
    /// When it ends, Unix ms.
    pub expires_at: WallMs,
}

#[derive(Serialize, Deserialize)]
struct ProducerClaims {
    iss: String,
    aud: String,
    sub: String,
    account: AccountId,
    scope: String,
    #[serde(default)]
    trust: Trust,
    iat: i64,
    exp: i64,
    jti: Uuid,
}

#[derive(Serialize, Deserialize)]
struct ConnectClaims {
    iss: DeviceId,
    aud: String,
    iat: i64,
    exp: i64,
    jti: Uuid,
}

const fn seconds(now: WallMs) -> i64 {
    now.0.div_euclid(1000)
}

/// A hub-signed token of a fresh `jti`, and that `jti`.
///
/// # Errors
/// [`AuthError::CannotSign`].
pub fn mint_producer(
    keys: &HubKeys,
    hub_id: &str,
    grant: &Grant,
    now: WallMs,
) -> Result<(Token, Uuid), AuthError> {
    let (kid, pkcs8) = keys.signer().ok_or(AuthError::CannotSign)?;
    let jti = Uuid::new_v4();
    let scopes: Vec<_> = grant.scopes.iter().map(|s| s.as_str()).collect();
    let iat = seconds(now);
    let claims = ProducerClaims {
        iss: hub_id.to_owned(),
        aud: hub_id.to_owned(),
        sub: grant.name.clone(),
        account: grant.account.clone(),
        scope: scopes.join(" "),
        trust: grant.trust,
        iat,
        exp: iat.saturating_add(grant.ttl_s),
        jti,
    };
    Ok((sign(&claims, Some(kid), pkcs8)?, jti))
}

/// Verifies a hub-signed token, producer's or join.
///
/// # Errors
/// Why it does not hold.
pub fn verify_producer(
    keys: &HubKeys,
    hub_id: &str,
    token: &str,
    now: WallMs,
) -> Result<Verified, AuthError> {
    let header = header_of(token)?;
    let kid = header.kid.ok_or(AuthError::UnknownKey)?;
    let key = keys.by_kid(&kid).ok_or(AuthError::UnknownKey)?;
    let claims: ProducerClaims = check(token, key)?;
    if claims.aud != hub_id || claims.iss != hub_id {
        return Err(AuthError::WrongAudience);
    }
    let t = seconds(now);
    if claims.exp <= t {
        return Err(AuthError::Expired);
    }
    if claims.iat > t.saturating_add(LEEWAY_S) {
        return Err(AuthError::NotYet);
    }
    Ok(Verified {
        name: claims.sub,
        account: claims.account,
        scopes: claims
            .scope
            .split_ascii_whitespace()
            .filter_map(|s| s.parse().ok())
            .collect(),
        trust: claims.trust,
        jti: claims.jti,
        expires_at: WallMs(claims.exp.saturating_mul(1000)),
    })
}

/// A connect JWT for one upgrade, one in-band `auth` or one device call; `now` is the hub's time as far as the device knows it.
///
/// # Errors
/// [`AuthError::CannotSign`].
pub fn mint_connect(
    key: &DeviceKey,
    device: &DeviceId,
    hub_id: &str,
    now: WallMs,
) -> Result<Token, AuthError> {
    let iat = seconds(now);
    let claims = ConnectClaims {
        iss: device.clone(),
        aud: hub_id.to_owned(),
        iat,
        exp: iat + i64::try_from(CONNECT_JWT_S).unwrap_or(60),
        jti: Uuid::new_v4(),
    };
    sign(&claims, None, key.pkcs8())
}

/// The device that a bearer token claims to come from, before any check: to find the key to verify it with.
/// `None` if it is not a connect JWT (a hub-signed token carries a `kid`).
#[must_use]
pub fn peek_device(token: &str) -> Option<DeviceId> {
    let header = header_of(token).ok()?;
    if header.kid.is_some() {
        return None;
    }
    jsonwebtoken::dangerous::insecure_decode::<ConnectClaims>(token)
        .ok()
        .map(|t| t.claims.iss)
}

/// Verifies a connect JWT of this device against its public key.
///
/// # Errors
/// Why it does not hold.
pub fn verify_connect(
    key: &PublicKey,
    device: &DeviceId,
    hub_id: &str,
    token: &str,
    now: WallMs,
) -> Result<Connect, AuthError> {
    header_of(token)?;
    let claims: ConnectClaims = check(token, key)?;
    if claims.aud != hub_id || claims.iss != *device {
        return Err(AuthError::WrongAudience);
    }
    let max_s = i64::try_from(CONNECT_JWT_S).unwrap_or(60);
    let life_s = claims.exp.saturating_sub(claims.iat);
    if life_s > max_s {
        return Err(AuthError::TooLong { life_s, max_s });
    }
    let t = seconds(now);
    let off_s = claims.iat.saturating_sub(t);
    if off_s > LEEWAY_S || off_s < -(max_s + LEEWAY_S) {
        return Err(AuthError::ClockSkew {
            hub_now: now,
            off_s,
        });
    }
    if claims.exp.saturating_add(LEEWAY_S) <= t {
        return Err(AuthError::Expired);
    }
    Ok(Connect {
        device: claims.iss,
        jti: claims.jti,
        issued_at: WallMs(claims.iat.saturating_mul(1000)),
        expires_at: WallMs((claims.exp + LEEWAY_S).saturating_mul(1000)),
    })
}

fn sign<C: Serialize>(claims: &C, kid: Option<String>, pkcs8: &[u8]) -> Result<Token, AuthError> {
    install_provider();
    let mut header = Header::new(Algorithm::EdDSA);
    header.kid = kid;
    let key = EncodingKey::from_ed_der(pkcs8);
    let text = jsonwebtoken::encode(&header, claims, &key).map_err(|_| AuthError::CannotSign)?;
    Ok(Token(text.into()))
}

fn header_of(token: &str) -> Result<Header, AuthError> {
    if token.len() > MAX_TOKEN_BYTES {
        return Err(AuthError::Malformed("it is too long"));
    }
    let header = jsonwebtoken::decode_header(token).map_err(|e| translate(e.kind()))?;
    if header.alg == Algorithm::EdDSA {
        Ok(header)
    } else {
        Err(AuthError::WrongAlgorithm)
    }
}

fn check<C: DeserializeOwned>(token: &str, key: &PublicKey) -> Result<C, AuthError> {
    install_provider();
    let mut rules = Validation::new(Algorithm::EdDSA);
    // Times and audience are compared by the callers, against the time they were given.
    rules.validate_exp = false;
    rules.validate_nbf = false;
    rules.validate_aud = false;
    rules.required_spec_claims.clear();
    let key = DecodingKey::from_ed_der(key.as_bytes());
    jsonwebtoken::decode::<C>(token, &key, &rules)
        .map(|t| t.claims)
        .map_err(|e| translate(e.kind()))
}

fn translate(kind: &ErrorKind) -> AuthError {
    match kind {
        ErrorKind::InvalidSignature | ErrorKind::InvalidEddsaKey | ErrorKind::InvalidKeyFormat => {
            AuthError::BadSignature
        }
        ErrorKind::InvalidAlgorithm
        | ErrorKind::InvalidAlgorithmName
        | ErrorKind::UnsupportedAlgorithm
        | ErrorKind::MissingAlgorithm => AuthError::WrongAlgorithm,
        ErrorKind::Json(_) => {
            AuthError::Malformed("its header or claims are not what they must be")
        }
        _ => AuthError::Malformed("it cannot be read"),
    }
}

#[cfg(test)]
#[path = "token_tests.rs"]
mod tests;
