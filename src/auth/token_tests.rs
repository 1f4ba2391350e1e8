use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as B64;
use serde_json::{Value, json};

use super::*;

const NOW: WallMs = WallMs(1_800_000_000_000);
const HUB: &str = "hub-1";

fn grant() -> Grant {
    Grant {
        name: "ci".into(),
        account: AccountId::new("default").unwrap(),
        scopes: BTreeSet::from([Scope::TasksWrite, Scope::TasksRead]),
        trust: Trust::Run,
        ttl_s: 60,
    }
}

fn device() -> DeviceId {
    DeviceId::new("laptop").unwrap()
}

fn tampered(token: &str, part: usize, change: impl Fn(&mut Value)) -> String {
    let mut parts: Vec<String> = token.split('.').map(str::to_owned).collect();
    let mut v: Value = serde_json::from_slice(&B64.decode(&parts[part]).unwrap()).unwrap();
    change(&mut v);
    parts[part] = B64.encode(v.to_string());
    parts.join(".")
}

#[test]
fn a_producer_token_says_what_it_was_granted() {
    let keys = HubKeys::generate().unwrap();
    let (token, jti) = mint_producer(&keys, HUB, &grant(), NOW).unwrap();
    let got = verify_producer(&keys, HUB, token.expose(), NOW).unwrap();
    assert_eq!((got.name.as_str(), got.jti), ("ci", jti));
    assert_eq!((got.scopes, got.trust), (grant().scopes, Trust::Run));
    assert_eq!(got.expires_at, NOW.plus(60_000));
}

#[test]
fn a_token_of_an_older_key_holds_after_a_rotation() {
    let mut keys = HubKeys::generate().unwrap();
    let (token, _) = mint_producer(&keys, HUB, &grant(), NOW).unwrap();
    keys.rotate().unwrap();
    assert!(verify_producer(&keys, HUB, token.expose(), NOW).is_ok());
    let strangers = HubKeys::generate().unwrap();
    assert_eq!(
        verify_producer(&strangers, HUB, token.expose(), NOW),
        Err(AuthError::UnknownKey)
    );
}

#[test]
fn every_fault_of_a_producer_token_has_its_own_error() {
    let keys = HubKeys::generate().unwrap();
    let (token, _) = mint_producer(&keys, HUB, &grant(), NOW).unwrap();
    let token = token.expose();
    let verify = |t: &str, now| verify_producer(&keys, HUB, t, now).unwrap_err();
    assert_eq!(verify(token, NOW.plus(60_000)), AuthError::Expired);
    assert_eq!(verify(token, NOW.plus(-60_000)), AuthError::NotYet);
    assert_eq!(
        verify_producer(&keys, "hub-2", token, NOW),
        Err(AuthError::WrongAudience)
    );
    let forged = tampered(token, 1, |v| v["trust"] = json!("run "));
    assert_eq!(verify(&forged, NOW), AuthError::BadSignature);
    for alg in ["none", "HS256", "RS256"] {
        let confused = tampered(token, 0, |v| v["alg"] = json!(alg));
        let e = verify(&confused, NOW);
        assert_eq!(e.code(), Code::TokenInvalid, "{alg}: {e:?}");
        assert_ne!(e, AuthError::BadSignature, "{alg}");
    }
    let no_kid = tampered(token, 0, |v| {
        v.as_object_mut().unwrap().remove("kid");
    });
    assert_eq!(verify(&no_kid, NOW), AuthError::UnknownKey);
    for text in ["", "x", "a.b.c", "....", &"A".repeat(10_000)] {
        assert_eq!(verify(text, NOW).code(), Code::TokenInvalid, "{text:?}");
    }
}

#[test]
fn an_unsigned_token_is_refused() {
    let keys = HubKeys::generate().unwrap();
    let (token, _) = mint_producer(&keys, HUB, &grant(), NOW).unwrap();
    let mut unsigned = tampered(token.expose(), 0, |v| v["alg"] = json!("none"));
    unsigned.truncate(unsigned.rfind('.').unwrap() + 1);
    assert_eq!(
        verify_producer(&keys, HUB, &unsigned, NOW)
            .unwrap_err()
            .code(),
        Code::TokenInvalid
    );
}

#[test]
fn a_connect_jwt_is_bound_to_device_hub_and_key() {
    let key = DeviceKey::generate().unwrap();
    let token = mint_connect(&key, &device(), HUB, NOW).unwrap();
    let t = token.expose();
    assert_eq!(peek_device(t), Some(device()));
    let ok = verify_connect(key.public(), &device(), HUB, t, NOW).unwrap();
    assert_eq!(ok.device, device());
    let other = DeviceKey::generate().unwrap();
    assert_eq!(
        verify_connect(other.public(), &device(), HUB, t, NOW),
        Err(AuthError::BadSignature)
    );
    assert_eq!(
        verify_connect(key.public(), &device(), "hub-2", t, NOW),
        Err(AuthError::WrongAudience)
    );
    assert_eq!(
        verify_connect(key.public(), &DeviceId::new("b").unwrap(), HUB, t, NOW),
        Err(AuthError::WrongAudience)
    );
}

#[test]
fn a_wrong_clock_is_told_apart_from_a_late_token() {
    let key = DeviceKey::generate().unwrap();
    let token = mint_connect(&key, &device(), HUB, NOW).unwrap();
    let at = |ms| verify_connect(key.public(), &device(), HUB, token.expose(), NOW.plus(ms));
    assert!(at(-4_000).is_ok() && at(0).is_ok() && at(64_000).is_ok());
    assert_eq!(at(65_000), Err(AuthError::Expired));
    for ms in [-6_000, -3_600_000, 66_000, 3_600_000] {
        let off_s = -ms / 1000;
        let hub_now = NOW.plus(ms);
        assert_eq!(at(ms), Err(AuthError::ClockSkew { hub_now, off_s }), "{ms}");
    }
}

#[test]
fn a_connect_jwt_that_lives_too_long_is_refused() {
    let key = DeviceKey::generate().unwrap();
    let iat = seconds(NOW);
    let claims = ConnectClaims {
        iss: device(),
        aud: HUB.into(),
        iat,
        exp: iat + 61,
        jti: Uuid::new_v4(),
    };
    let token = sign(&claims, None, key.pkcs8()).unwrap();
    assert_eq!(
        verify_connect(key.public(), &device(), HUB, token.expose(), NOW),
        Err(AuthError::TooLong {
            life_s: 61,
            max_s: 60
        })
    );
}

#[test]
fn a_producer_token_is_no_connect_jwt() {
    let keys = HubKeys::generate().unwrap();
    let (token, _) = mint_producer(&keys, HUB, &grant(), NOW).unwrap();
    assert_eq!(peek_device(token.expose()), None);
    let key = DeviceKey::generate().unwrap();
    let connect = mint_connect(&key, &device(), HUB, NOW).unwrap();
    assert_eq!(
        verify_producer(&keys, HUB, connect.expose(), NOW),
        Err(AuthError::UnknownKey)
    );
}

#[test]
fn empty_and_placeholder_tokens_are_refused_and_none_is_shown() {
    for bad in [
        "",
        "  \n",
        "changeme",
        "a.b",
        "a.b.c.d",
        "a..c",
        "<token>.x.y",
    ] {
        assert!(Token::parse(bad).is_err(), "{bad:?}");
    }
    let token = Token::parse(" aa.bb.cc\n").unwrap();
    assert_eq!(token.expose(), "aa.bb.cc");
    assert_eq!(format!("{token:?}"), "Token(…)");
}
