//! `POST /enroll`: a join token and a public key become a device.
//!
//! The join token's use and the device's record are one commit, so that a token makes one device. The same token with
//! the same key is a repetition after a lost answer and is answered as before; with another key it is used up. A key
//! that is already enrolled keeps its device; one that was revoked stays revoked.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use uuid::Uuid;

use super::super::body::JsonBody;
use super::super::clock::wall;
use super::super::guard::Caller;
use super::super::once::{Answer, Effect, Once, commit};
use super::super::problem::{ApiError, ApiResult};
use super::super::records::{self, DeviceRecord, JoinRecord, put, value};
use super::super::state::Hub;
use super::super::store::Expect;
use super::asked::EnrollPost;
use super::views::Enrolled;
use crate::auth::{PublicKey, Scope};
use crate::domain::limits::FINISHED_KEPT_MS;
use crate::domain::{AccountId, Code, DeviceId, IdError};

/// `POST /enroll` `{public_key, name, os, build}` → `{device_id, hub_id, account}`.
pub(crate) async fn enroll(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    headers: HeaderMap,
    body: JsonBody,
) -> ApiResult<Answer> {
    caller.need(Scope::DevicesEnroll)?;
    let token = caller.producer()?;
    let key = Once::of(&caller, &headers, "POST /enroll", &body.sha256)?;
    let EnrollPost {
        public_key,
        name,
        os,
        build,
    } = asked(body)?;
    let (os, build) = (os.unwrap_or_default(), build.unwrap_or_default());

    let account = &caller.account;
    let join_key = format!("join/{}", token.jti);
    if let Some(used) = hub.store.get(join_key.clone()).await? {
        return match records::read::<JoinRecord>(&used) {
            Some(j) if j.public_key == public_key => Ok(answer(&hub, account, &j.device)),
            _ => Err(
                ApiError::new(Code::TokenUsed, "this join token was used before")
                    .hint("make a new one on the hub: `remote-collab hub token create --scope devices:enroll`"),
            ),
        };
    }
    let known = hub.directory.device_with_key(account, &public_key);
    if known.as_ref().is_some_and(|d| d.revoked_at.is_some()) {
        return Err(
            ApiError::new(Code::DeviceRevoked, "this key was revoked").hint(
                "move the machine's old key file away, then `remote-collab login` makes a new one",
            ),
        );
    }
    let id = device_id(&name).map_err(|e| ApiError::field("/name", e.to_string()))?;
    let device = known.map_or_else(
        || DeviceRecord {
            id,
            account: account.clone(),
            name: name.trim().to_owned(),
            public_key: public_key.clone(),
            os,
            build,
            claude_version: None,
            enrolled_at: wall(),
            revoked_at: None,
            instance: None,
            shut_out: Vec::new(),
            last_seen: None,
            handed: None,
            vouched: true,
        },
        |d| (*d).clone(),
    );
    let join = JoinRecord {
        device: device.id.clone(),
        public_key,
    };
    let keep = Some(wall().plus(FINISHED_KEPT_MS));
    let effect = Effect {
        ops: vec![
            put(join_key, &join, Expect::Absent, keep),
            put(
                DeviceRecord::key(account, &device.id),
                &device,
                Expect::Any,
                None,
            ),
        ],
        answer: answer(&hub, account, &device.id),
    };
    let given = commit(&hub, key.as_ref(), Ok(effect)).await.map_err(|e| {
        // Two at once with one token: the other one was first.
        match e.0.known_code() {
            Some(Code::Conflict) => ApiError::new(
                Code::TokenUsed,
                "this join token is being used by another machine",
            )
            .hint("repeat, or make a new one on the hub"),
            _ => e,
        }
    })?;
    tracing::info!(device = %device.id, account = %account, "a device was enrolled");
    hub.directory.put_device(device);
    Ok(given)
}

/// The body, with every fault named.
fn asked(body: JsonBody) -> ApiResult<EnrollPost> {
    let mut f = body.fields();
    let public_key = f.required_text("public_key");
    let public_key = match public_key.parse::<PublicKey>() {
        Ok(k) => k.to_string(),
        Err(e) => {
            if !public_key.is_empty() {
                f.fault("public_key", e.to_string());
            }
            String::new()
        }
    };
    let name = f.required_text("name");
    let mut short = |field: &str| {
        let text = f.text(field);
        let said = text.as_deref().unwrap_or_default();
        if said.chars().count() > 200 || said.chars().any(char::is_control) {
            f.fault(
                field,
                "must be at most 200 characters without control characters",
            );
        }
        text
    };
    let (os, build) = (short("os"), short("build"));
    if name.chars().count() > 100 || name.chars().any(char::is_control) {
        f.fault(
            "name",
            "must be at most 100 characters without control characters",
        );
    }
    f.finish()?;
    Ok(EnrollPost {
        public_key,
        name,
        os,
        build,
    })
}

fn answer(hub: &Hub, account: &AccountId, device: &DeviceId) -> Answer {
    Answer {
        status: StatusCode::OK,
        location: None,
        body: value(&Enrolled {
            device_id: device.clone(),
            hub_id: hub.id.clone(),
            account: account.clone(),
        }),
    }
}

/// A new id: the machine's name as far as it can be one, and a random end.
fn device_id(name: &str) -> Result<DeviceId, IdError> {
    let random = Uuid::new_v4().simple().to_string();
    let slug: String = name
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_lowercase()
            } else {
                '-'
            }
        })
        .take(40)
        .collect();
    let slug = match slug.trim_matches('-') {
        "" => "device",
        slug => slug,
    };
    DeviceId::new(format!("{slug}-{}", &random[..8]))
}
