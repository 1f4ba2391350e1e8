//! A real hub on a loopback port, with tokens and devices to talk to it.

use std::path::Path;
use std::time::Duration;

use remote_collab::auth::{DeviceKey, mint_connect};
use remote_collab::domain::{AccountId, DeviceId, Trust, WallMs};
use remote_collab::hub::{self, AdminCall, HubConfig, HubHandle, Rate};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use super::sse;

/// The deadline of every wait.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

pub(crate) const ALL_SCOPES: &[&str] = &[
    "tasks:write",
    "tasks:read",
    "messages:write",
    "messages:read",
    "memory:read",
    "memory:write",
    "devices:admin",
];

pub(crate) struct HubBed {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) hub: HubHandle,
    pub(crate) http: reqwest::Client,
    /// A token of the account `default` with every scope and trust `run`.
    pub(crate) token: String,
}

/// An answer, read whole.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) status: u16,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) body: Value,
}

impl Got {
    pub(crate) fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or("")
    }

    /// Asserts a refusal: status, stable code, media type.
    #[track_caller]
    pub(crate) fn refused(&self, status: u16, code: &str) {
        assert_eq!((self.status, self.code()), (status, code), "{self:?}");
        assert_eq!(self.headers["content-type"], "application/problem+json");
        assert_eq!(self.body["status"], status);
    }

    #[track_caller]
    pub(crate) fn ok(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{:?}", self.body);
        self.body
    }
}

/// An enrolled device that has not connected yet.
pub(crate) struct Device {
    pub(crate) id: DeviceId,
    pub(crate) key: DeviceKey,
    pub(crate) hub_id: String,
}

impl Device {
    pub(crate) fn jwt(&self) -> String {
        self.jwt_at(now())
    }

    pub(crate) fn jwt_at(&self, at: WallMs) -> String {
        let token = mint_connect(&self.key, &self.id, &self.hub_id, at).unwrap();
        token.expose().to_owned()
    }
}

pub(crate) fn now() -> WallMs {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    WallMs(i64::try_from(since.unwrap().as_millis()).unwrap())
}

pub(crate) fn account(name: &str) -> AccountId {
    AccountId::new(name).unwrap()
}

pub(crate) fn config(dir: &Path) -> HubConfig {
    let mut config = HubConfig::local(dir);
    config.rate = Rate {
        per_s: 10_000,
        burst: 10_000,
    };
    config
}

impl HubBed {
    pub(crate) async fn start() -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), |_| {}).await
    }

    pub(crate) async fn start_in(
        dir: tempfile::TempDir,
        change: impl FnOnce(&mut HubConfig),
    ) -> Self {
        let mut config = config(dir.path());
        change(&mut config);
        let hub = hub::start(config).await.unwrap();
        let token = token(&hub, "ci", "default", ALL_SCOPES, Trust::Run).await;
        Self {
            dir,
            hub,
            http: reqwest::Client::builder()
                .timeout(DEADLINE)
                .build()
                .unwrap(),
            token,
        }
    }

    /// Stops the hub and starts it again over the same folder.
    pub(crate) async fn restart(self) -> Self {
        self.hub.shutdown().await;
        Self::start_in(self.dir, |_| {}).await
    }

    pub(crate) async fn token(&self, name: &str, scopes: &[&str], trust: Trust) -> String {
        token(&self.hub, name, "default", scopes, trust).await
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http
            .request(method, format!("{}{path}", self.hub.url()))
    }

    pub(crate) async fn send(&self, request: RequestBuilder) -> Got {
        read(request).await
    }

    pub(crate) async fn get(&self, path: &str) -> Got {
        self.get_as(path, &self.token).await
    }

    pub(crate) async fn get_as(&self, path: &str, token: &str) -> Got {
        read(self.request(Method::GET, path).bearer_auth(token)).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Got {
        self.post_as(path, &self.token, body).await
    }

    pub(crate) async fn post_as(&self, path: &str, token: &str, body: &Value) -> Got {
        read(
            self.request(Method::POST, path)
                .bearer_auth(token)
                .json(body),
        )
        .await
    }

    /// Waits until a task or a message of the account `default` is as wanted.
    pub(crate) async fn becomes(&self, path: &str, want: impl Fn(&Value) -> bool) -> Value {
        sse::becomes(&self.http, &self.hub.url(), &self.token, path, want).await
    }

    /// Enrols a device of this name in the account `default`.
    pub(crate) async fn enrol(&self, name: &str) -> Device {
        self.enrol_in("default", name).await
    }

    pub(crate) async fn enrol_in(&self, of: &str, name: &str) -> Device {
        let join = self.join_token(of).await;
        let key = DeviceKey::generate().unwrap();
        let body = json!({"public_key": key.public().to_string(), "name": name, "os": "linux", "build": "t"});
        let v = self.post_as("/enroll", &join, &body).await.ok(200);
        Device {
            id: v["device_id"].as_str().unwrap().parse().unwrap(),
            key,
            hub_id: v["hub_id"].as_str().unwrap().to_owned(),
        }
    }

    pub(crate) async fn join_token(&self, of: &str) -> String {
        make_account(&self.hub, of).await;
        let call = AdminCall::CreateJoin {
            name: "join".into(),
            account: account(of),
        };
        let v = self.hub.admin(&call).await.unwrap();
        v["token"].as_str().unwrap().to_owned()
    }
}

/// Makes the account if it is not there yet.
pub(crate) async fn make_account(hub: &HubHandle, of: &str) {
    let call = AdminCall::CreateAccount {
        account: account(of),
    };
    // One that exists is refused, which is as well.
    drop(hub.admin(&call).await);
}

pub(crate) async fn token(
    hub: &HubHandle,
    name: &str,
    of: &str,
    scopes: &[&str],
    trust: Trust,
) -> String {
    make_account(hub, of).await;
    let call = AdminCall::CreateToken {
        name: name.into(),
        account: account(of),
        scopes: scopes.iter().map(|s| (*s).to_owned()).collect(),
        trust,
        ttl_s: 3600,
    };
    let v = hub.admin(&call).await.unwrap();
    v["token"].as_str().unwrap().to_owned()
}

pub(crate) async fn read(request: RequestBuilder) -> Got {
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let bytes = response.bytes().await.unwrap();
    Got {
        status,
        headers,
        body: serde_json::from_slice(&bytes).unwrap_or(Value::Null),
    }
}
