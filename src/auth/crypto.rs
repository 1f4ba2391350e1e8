//! The one cryptography provider (aws-lc-rs): installed here, and its few primitives that we call ourselves.

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use aws_lc_rs::{digest, hmac, rand};

/// The provider refused: a key it cannot read, or no randomness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CryptoError {
    /// The bytes are not an Ed25519 private key in PKCS#8.
    #[error("not an Ed25519 private key in PKCS#8")]
    NotAKey,
    /// The operating system gave no randomness.
    #[error("no randomness from the operating system")]
    NoRandomness,
}

/// Makes aws-lc-rs the provider of TLS and of JWTs for this process; may be called any number of times.
pub fn install() {
    // Both report an error only when a provider is already there; the crate graph contains no other one.
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    super::token::install_provider();
}

/// SHA-256 of `data`.
#[must_use]
pub fn sha256(data: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest::digest(&digest::SHA256, data).as_ref());
    out
}

/// HMAC-SHA256 of `data` under `key`.
#[must_use]
pub fn hmac_sha256(key: &[u8], data: &[u8]) -> [u8; 32] {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    let mut out = [0; 32];
    out.copy_from_slice(hmac::sign(&key, data).as_ref());
    out
}

/// `N` unpredictable bytes.
///
/// # Errors
/// When the operating system gives none.
pub fn random<const N: usize>() -> Result<[u8; N], CryptoError> {
    let mut out = [0; N];
    rand::fill(&mut out).map_err(|_| CryptoError::NoRandomness)?;
    Ok(out)
}

/// A new Ed25519 private key in PKCS#8 v1 (DER), as `openssl genpkey -algorithm ed25519` makes them.
pub(super) fn generate_ed25519() -> Result<Vec<u8>, CryptoError> {
    let pair = Ed25519KeyPair::generate().map_err(|_| CryptoError::NoRandomness)?;
    let der = pair.to_pkcs8v1().map_err(|_| CryptoError::NoRandomness)?;
    Ok(der.as_ref().to_vec())
}

/// The public half (32 bytes) of a private key in PKCS#8 (DER).
pub(super) fn public_of(pkcs8: &[u8]) -> Result<[u8; 32], CryptoError> {
    let pair = Ed25519KeyPair::from_pkcs8(pkcs8).map_err(|_| CryptoError::NotAKey)?;
    let mut out = [0; 32];
    let public = pair.public_key().as_ref();
    if public.len() != out.len() {
        return Err(CryptoError::NotAKey);
    }
    out.copy_from_slice(public);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_provider_can_be_installed_twice() {
        install();
        install();
        assert!(rustls::crypto::CryptoProvider::get_default().is_some());
    }

    #[test]
    fn sha256_is_the_known_one() {
        assert_eq!(sha256(b"")[..4], [0xe3, 0xb0, 0xc4, 0x42]);
    }
}
