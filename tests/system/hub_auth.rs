//! Who gets in: tokens, enrolment, revocation, the owner's socket, and what never appears in a log.

use std::os::unix::fs::PermissionsExt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as B64;
use remote_collab::auth::DeviceKey;
use remote_collab::domain::{Trust, WallMs};
use remote_collab::hub::{self, AdminCall, AdminError, HubConfig, HubError, admin};
use remote_collab::wire::SUBPROTOCOL;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::hub_bed::{ALL_SCOPES, HubBed, account, now, read};
use crate::support::ws_client::{WsClient, upgrade};

fn with_header(token: &str, change: impl Fn(&mut Value)) -> String {
    let (header, rest) = token.split_once('.').unwrap();
    let mut v: Value = serde_json::from_slice(&B64.decode(header).unwrap()).unwrap();
    change(&mut v);
    format!("{}.{rest}", B64.encode(v.to_string()))
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_tokens_are_refused_with_their_own_codes() {
    let bed = HubBed::start().await;
    bed.enrol("d").await;
    read(bed.request(Method::GET, "/tasks"))
        .await
        .refused(401, "token_missing");
    let in_url = bed.request(Method::GET, &format!("/healthz?token={}", bed.token));
    assert_eq!(read(in_url).await.status, 200);
    let in_url = bed.request(Method::GET, &format!("/devices?access_token={}", bed.token));
    read(in_url).await.refused(401, "token_missing");

    let t = &bed.token;
    let mut unsigned = with_header(t, |h| h["alg"] = json!("none"));
    unsigned.truncate(unsigned.rfind('.').unwrap() + 1);
    let stranger = HubBed::start().await;
    for bad in [
        "x".to_owned(),
        "a.b.c".to_owned(),
        unsigned,
        with_header(t, |h| h["alg"] = json!("HS256")),
        with_header(t, |h| h["kid"] = json!("other")),
        {
            let (head, c) = (&t[..t.len() - 10], &t[t.len() - 10..=t.len() - 10]);
            format!(
                "{head}{}{}",
                if c == "A" { "B" } else { "A" },
                &t[t.len() - 9..]
            )
        },
        stranger.token.clone(),
    ] {
        let got = bed.get_as("/tasks", &bad).await;
        got.refused(401, "token_invalid");
        assert!(got.headers.contains_key("www-authenticate"));
        assert!(!got.body.to_string().contains(&bad) || bad.len() < 6);
    }
    let short = AdminCall::CreateToken {
        name: "short".into(),
        account: account("default"),
        scopes: vec!["tasks:read".into()],
        trust: Trust::Run,
        ttl_s: 1,
    };
    let v = bed.hub.admin(&short).await.unwrap();
    let short = v["token"].as_str().unwrap();
    let deadline = tokio::time::Instant::now() + crate::support::hub_bed::DEADLINE;
    loop {
        let got = bed.get_as("/tasks", short).await;
        if got.status == 401 {
            got.refused(401, "token_expired");
            break;
        }
        assert!(tokio::time::Instant::now() < deadline);
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn scopes_and_trust_bound_what_a_token_does() {
    let bed = HubBed::start().await;
    bed.enrol("d").await;
    let reader = bed.token("reader", &["tasks:read"], Trust::Run).await;
    let task = json!({"task": "x"});
    bed.post_as("/tasks", &reader, &task)
        .await
        .refused(403, "scope_missing");
    bed.get_as("/messages", &reader)
        .await
        .refused(403, "scope_missing");
    let informer = bed.token("informer", ALL_SCOPES, Trust::Inform).await;
    bed.post_as("/tasks", &informer, &task)
        .await
        .refused(403, "trust_too_low");
    bed.post_as("/messages", &informer, &json!({"content": "x"}))
        .await
        .ok(202);
    let suggester = bed.token("suggester", ALL_SCOPES, Trust::Suggest).await;
    bed.post_as("/tasks", &suggester, &task).await.ok(202);
    let join = bed.join_token("default").await;
    bed.get_as("/devices", &join)
        .await
        .refused(403, "scope_missing");
    bed.post_as("/enroll", &bed.token, &json!({}))
        .await
        .refused(403, "scope_missing");
    let no_admin = bed.token("no-admin", &["tasks:read"], Trust::Run).await;
    let delete = bed
        .request(Method::DELETE, "/devices/d")
        .bearer_auth(&no_admin);
    read(delete).await.refused(403, "scope_missing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_was_called_back_holds_no_more_also_after_a_restart() {
    let bed = HubBed::start().await;
    let token = bed.token("gone", ALL_SCOPES, Trust::Run).await;
    bed.get_as("/tasks", &token).await.ok(200);
    let revoke = AdminCall::RevokeToken {
        account: account("default"),
        token: "gone".into(),
    };
    bed.hub.admin(&revoke).await.unwrap();
    bed.get_as("/tasks", &token)
        .await
        .refused(401, "token_revoked");
    let bed = bed.restart().await;
    bed.get_as("/tasks", &token)
        .await
        .refused(401, "token_revoked");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_join_token_makes_one_device_and_answers_a_repetition_alike() {
    let bed = HubBed::start().await;
    let join = bed.join_token("default").await;
    let key = DeviceKey::generate().unwrap();
    let body = json!({"public_key": key.public().to_string(), "name": "laptop"});
    let first = bed.post_as("/enroll", &join, &body).await.ok(200);
    let again = bed.post_as("/enroll", &join, &body).await.ok(200);
    assert_eq!(first, again);
    let other = DeviceKey::generate().unwrap();
    let stolen = json!({"public_key": other.public().to_string(), "name": "thief"});
    bed.post_as("/enroll", &join, &stolen)
        .await
        .refused(401, "token_used");
    let devices = bed.get("/devices").await.ok(200);
    assert_eq!(devices["devices"].as_array().unwrap().len(), 1);
    let join = bed.join_token("default").await;
    for bad in [
        json!({"public_key": "", "name": "x"}),
        json!({"public_key": "AAAA", "name": "x"}),
        json!({"public_key": key.public().to_string(), "name": ""}),
        json!({"public_key": key.public().to_string(), "name": "a\nb"}),
    ] {
        bed.post_as("/enroll", &join, &bad)
            .await
            .refused(400, "invalid_field");
    }
    // The refusals did not use it up, and the same key keeps its device.
    let v = bed.post_as("/enroll", &join, &body).await.ok(200);
    assert_eq!(v["device_id"], first["device_id"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_machines_with_one_join_token_make_one_device() {
    let bed = HubBed::start().await;
    let join = bed.join_token("default").await;
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let key = DeviceKey::generate().unwrap();
        let body = json!({"public_key": key.public().to_string(), "name": "m"});
        let request = bed
            .request(Method::POST, "/enroll")
            .bearer_auth(&join)
            .json(&body);
        all.spawn(read(request));
    }
    let statuses: Vec<u16> = all.join_all().await.iter().map(|g| g.status).collect();
    assert_eq!(
        statuses.iter().filter(|s| **s == 200).count(),
        1,
        "{statuses:?}"
    );
    let devices = bed.get("/devices").await.ok(200);
    assert_eq!(devices["devices"].as_array().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connect_jwt_is_refused_before_the_upgrade_with_a_code_and_the_hubs_time() {
    let bed = HubBed::start().await;
    let device = bed.enrol("d").await;
    let addr = bed.hub.addr;
    let proto = Some(SUBPROTOCOL);
    let refused = |r: Result<WsClient, crate::support::ws_client::Refused>| {
        let r = r.err().unwrap();
        (
            r.status,
            r.body["code"].as_str().unwrap().to_owned(),
            r.body,
        )
    };
    for off_ms in [-3_600_000, 3_600_000] {
        let jwt = device.jwt_at(WallMs(now().0 + off_ms));
        let (status, code, body) = refused(upgrade(addr, Some(&jwt), proto).await);
        assert_eq!((status, code.as_str()), (401, "clock_skew"));
        assert!((body["now"].as_i64().unwrap() - now().0).abs() < 10_000);
    }
    let (status, code, _) = refused(upgrade(addr, None, proto).await);
    assert_eq!((status, code.as_str()), (401, "token_missing"));
    let (status, code, _) = refused(upgrade(addr, Some(&bed.token), proto).await);
    assert_eq!((status, code.as_str()), (401, "token_invalid"));
    for other in [None, Some("remote-collab.v99")] {
        let (status, code, _) = refused(upgrade(addr, Some(&device.jwt()), other).await);
        assert_eq!((status, code.as_str()), (426, "version_unsupported"));
    }
    let jwt = device.jwt();
    assert!(upgrade(addr, Some(&jwt), proto).await.is_ok());
    let (status, code, _) = refused(upgrade(addr, Some(&jwt), proto).await);
    assert_eq!((status, code.as_str()), (401, "token_used"));
    let mut thief = bed.enrol("thief").await;
    thief.id = device.id.clone();
    let (status, code, _) = refused(upgrade(addr, Some(&thief.jwt()), proto).await);
    assert_eq!((status, code.as_str()), (401, "token_invalid"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_device_is_closed_at_once_and_stays_out() {
    let bed = HubBed::start().await;
    let device = bed.enrol("d").await;
    let (mut ws, _, _) = WsClient::synced(bed.hub.addr, &device, 1).await;
    let path = format!("/devices/{}", device.id);
    let delete = bed.request(Method::DELETE, &path).bearer_auth(&bed.token);
    assert_eq!(read(delete).await.status, 204);
    assert_eq!(ws.end().await, ("device_revoked".to_owned(), 4403));
    let bed = bed.restart().await;
    let r = upgrade(bed.hub.addr, Some(&device.jwt()), Some(SUBPROTOCOL)).await;
    let r = r.err().unwrap();
    assert_eq!(
        (r.status, r.body["code"].as_str()),
        (403, Some("device_revoked"))
    );
    bed.post("/tasks", &json!({"task": "x"}))
        .await
        .refused(404, "unknown_target");
    let join = bed.join_token("default").await;
    let body = json!({"public_key": device.key.public().to_string(), "name": "again"});
    bed.post_as("/enroll", &join, &body)
        .await
        .refused(403, "device_revoked");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_owners_calls_work_beside_a_running_hub_and_without_one() {
    let bed = HubBed::start().await;
    let list = AdminCall::ListTokens {
        account: account("default"),
    };
    let socket = bed.dir.path().join("hub/admin.sock");
    let mode = |p: &std::path::Path| std::fs::metadata(p).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&socket), 0o600);
    assert_eq!(mode(&bed.dir.path().join("hub")), 0o700);
    let v = admin::call(bed.dir.path(), &list).await.unwrap();
    assert_eq!(v["tokens"][0]["name"], "ci");
    assert!(!v.to_string().contains(&bed.token));
    let bad = AdminCall::CreateToken {
        name: "../x".into(),
        account: account("default"),
        scopes: vec!["tasks:fly".into()],
        trust: Trust::Run,
        ttl_s: 1,
    };
    let Err(AdminError::Refused(p)) = admin::call(bed.dir.path(), &bad).await else {
        panic!("accepted");
    };
    assert_eq!(p.code, "invalid_field");
    // A second hub over the same folder is refused.
    let second = hub::start(HubConfig::local(bed.dir.path())).await;
    assert!(matches!(second, Err(HubError::Held { .. })));

    let HubBed {
        dir, hub, token, ..
    } = bed;
    hub.shutdown().await;
    let call = AdminCall::CreateToken {
        name: "offline".into(),
        account: account("default"),
        scopes: vec!["tasks:read".into()],
        trust: Trust::Suggest,
        ttl_s: 60,
    };
    let v = admin::call(dir.path(), &call).await.unwrap();
    admin::call(dir.path(), &AdminCall::RotateKeys)
        .await
        .unwrap();
    let bed = HubBed::start_in(dir, |_| {}).await;
    bed.get_as("/tasks", v["token"].as_str().unwrap())
        .await
        .ok(200);
    bed.get_as("/tasks", &token).await.ok(200);
    let jwks = bed.get("/.well-known/jwks.json").await.ok(200);
    assert_eq!(jwks["keys"].as_array().unwrap().len(), 2);
    assert_ne!(jwks["keys"][0]["kid"], jwks["keys"][1]["kid"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_insecure_hub_does_not_start() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = HubConfig::local(dir.path());
    config.listen = "0.0.0.0:0".parse().unwrap();
    assert!(matches!(
        hub::start(config.clone()).await,
        Err(HubError::Insecure { .. })
    ));
    config.listen = "127.0.0.1:0".parse().unwrap();
    hub::start(config.clone()).await.unwrap().shutdown().await;
    let key = dir.path().join("hub/keys/000001.pem");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    let e = hub::start(config.clone()).await.unwrap_err();
    assert!(e.to_string().contains("chmod 600"), "{e}");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    for text in ["", "changeme\n"] {
        std::fs::write(&key, text).unwrap();
        assert!(
            matches!(hub::start(config.clone()).await, Err(HubError::Key(_))),
            "{text:?}"
        );
    }
}

/// Everything that any part of this process logs, at every level.
#[derive(Clone, Default)]
struct Captured(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for Captured {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(buf);
        Ok(buf.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_token_and_no_text_reaches_a_log_or_an_answer() {
    let log = Captured::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .try_init()
        .unwrap();
    let bed = HubBed::start().await;
    let join = bed.join_token("default").await;
    let key = DeviceKey::generate().unwrap();
    let body = json!({"public_key": key.public().to_string(), "name": "d"});
    let v = bed.post_as("/enroll", &join, &body).await.ok(200);
    let device = crate::support::hub_bed::Device {
        id: v["device_id"].as_str().unwrap().parse().unwrap(),
        key,
        hub_id: v["hub_id"].as_str().unwrap().to_owned(),
    };
    let jwt = device.jwt();
    let mut ws = upgrade(bed.hub.addr, Some(&jwt), Some(SUBPROTOCOL))
        .await
        .unwrap();
    let renewed = device.jwt();
    ws.send(&crate::support::ws_client::hello(1, &Value::Null))
        .await;
    ws.expect("welcome").await;
    ws.until_synced().await;
    ws.send(&json!({"type": "auth", "token": renewed})).await;
    let task = json!({"task": "a very private request"});
    bed.post("/tasks", &task).await.ok(202);
    ws.expect("deliver").await;
    let expired = device.jwt_at(WallMs(0));
    for bad in [expired.as_str(), "aaa.bbb.ccc"] {
        let got = bed.get_as("/tasks", bad).await;
        assert!(!got.body.to_string().contains(bad));
    }
    ws.send(&json!({"type": "auth", "token": "ddd.eee.fff"}))
        .await;
    ws.end().await;
    let token = bed.token.clone();
    bed.hub.shutdown().await;
    let log = String::from_utf8_lossy(&log.0.lock().unwrap()).into_owned();
    assert!(log.contains("a device is in sync"), "the log was captured");
    let secrets = [&token, &join, &jwt, &renewed, &expired];
    for secret in secrets {
        let signature = secret.rsplit('.').next().unwrap();
        assert!(!log.contains(signature), "a token is in the log");
    }
    for text in ["aaa.bbb.ccc", "ddd.eee.fff", "a very private request"] {
        assert!(!log.contains(text), "{text}");
    }
}
