//! Who may do what: keys, and the short texts they sign.
//!
//! Three kinds of token exist, all JWTs signed with Ed25519 (`EdDSA`, no other algorithm is read):
//!
//! | token | signed by | `iss` → `aud` | life | says |
//! |---|---|---|---|---|
//! | producer | hub | hub → hub | as asked, 90 days by default | name, account, scopes, trust |
//! | join | hub | hub → hub | 1 h, single use | the scope `devices:enroll`, the account |
//! | connect | device | device → hub | ≤ 60 s, `jti` once | this is the holder of the device's key |
//!
//! A device never holds a secret of the hub and the hub never holds a secret of a device: enrolment hands over a
//! public key. Keys are files of mode 0600 that are refused when anybody else could read them. Time is given from
//! outside everywhere, so that expiry and clock skew can be tested.

pub mod crypto;
pub mod keys;
pub mod token;

pub use keys::{DeviceKey, HubKeys, KeyError, PublicKey};
pub use token::{
    AuthError, Connect, Grant, Scope, Token, Verified, mint_connect, mint_producer, verify_connect,
    verify_producer,
};
