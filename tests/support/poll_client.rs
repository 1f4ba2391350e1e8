//! A device on the fallback as bare as it can be: one call at a time, nothing automatic.

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use super::hub_bed::{Device, Got, HubBed};
use super::ws_client::hello;

/// An open session.
pub(crate) struct PollClient<'a> {
    pub(crate) bed: &'a HubBed,
    pub(crate) device: &'a Device,
    pub(crate) welcome: Value,
}

pub(crate) async fn open(bed: &HubBed, device: &Device, instance: u128, last: &Value) -> Got {
    let mut body = hello(instance, last);
    body.as_object_mut().unwrap().remove("type");
    bed.post_as("/poll/open", &device.jwt(), &body).await
}

impl<'a> PollClient<'a> {
    pub(crate) async fn open(bed: &'a HubBed, device: &'a Device, instance: u128) -> Self {
        let welcome = open(bed, device, instance, &Value::Null).await.ok(200);
        Self {
            bed,
            device,
            welcome,
        }
    }

    pub(crate) fn generation(&self) -> u64 {
        self.welcome["generation"].as_u64().unwrap()
    }

    pub(crate) fn request(&self, after: u64, wait_s: u64) -> RequestBuilder {
        let path = format!(
            "/poll?generation={}&after={after}&wait_s={wait_s}",
            self.generation()
        );
        let request = self.bed.request(Method::GET, &path);
        request.bearer_auth(self.device.jwt())
    }

    pub(crate) async fn poll(&self, after: u64, wait_s: u64) -> Got {
        self.bed.send(self.request(after, wait_s)).await
    }

    /// What a call carries when nothing is said but the cursor.
    pub(crate) fn body(&self, seq: u64) -> Value {
        json!({"epoch": self.welcome["epoch"], "generation": self.generation(), "seq": seq, "reports": []})
    }

    pub(crate) async fn call(&self, body: &Value) -> Got {
        let jwt = self.device.jwt();
        self.bed.post_as("/poll/ack", &jwt, body).await
    }

    pub(crate) async fn ack(&self, seq: u64) -> Got {
        self.call(&self.body(seq)).await
    }
}

/// The contents of the messages in an answer.
pub(crate) fn texts(polled: &Value) -> Vec<String> {
    let rows = polled["envelopes"].as_array().unwrap();
    let text = |r: &Value| {
        r["envelope"]["body"]["content"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    rows.iter().map(text).collect()
}
