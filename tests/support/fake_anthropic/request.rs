//! One request to the fake, typed, with the questions that tests ask of it.

use std::collections::BTreeMap;
use std::time::SystemTime;

use axum::body::Bytes;
use axum::http::{HeaderMap, Method, Uri};
use serde_json::Value;

/// The headers that carry a key; they are dropped before a request is kept.
const SECRET_HEADERS: [&str; 2] = ["x-api-key", "authorization"];

/// The header that names the conversation.
const SESSION_HEADER: &str = "x-claude-code-session-id";

/// The header that names a subagent; the conversation itself sends none.
const AGENT_HEADER: &str = "x-claude-code-agent-id";

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A step of a conversation: it offers tools to the model.
    Main,
    /// A helper call of the CLI without tools, such as a title.
    Side,
    /// A call that only counts tokens.
    Count,
    /// Anything else: probes, model lists, unknown endpoints.
    Other,
}

/// Where in a request a text stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The system prompt in front of the conversation.
    SystemPrompt,
    /// A text of a user message.
    User,
    /// A `system` message between the turns: what hooks and notifications add.
    MidSystem,
    /// The output of a tool.
    ToolResult,
    /// Something the model said, or asked a tool for.
    Assistant,
}

/// One text of a request.
#[derive(Clone, Debug)]
pub(crate) struct Passage {
    /// Where it stands.
    pub(crate) place: Place,
    /// The text itself.
    pub(crate) text: String,
}

/// One request as it arrived, with the name of the answer that was chosen for it.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Its place in the log, from 1.
    pub(crate) number: usize,
    /// When it arrived.
    pub(crate) at: SystemTime,
    /// The HTTP method.
    pub(crate) method: String,
    /// The path with its query.
    pub(crate) path: String,
    /// The headers in lower case, without the ones that carry a key.
    pub(crate) headers: BTreeMap<String, String>,
    /// What it is for.
    pub(crate) kind: Kind,
    /// The decoded body, or `Null` where it was empty or not JSON.
    pub(crate) body: Value,
    /// What it is answered with: `say`, `tool:Bash`, `error:529`, `200` or `404`.
    pub(crate) reply: String,
}

impl Request {
    /// Reads a request off the wire.
    pub(crate) fn read(
        number: usize,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
        body: &Bytes,
    ) -> Self {
        let body: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
        let offers_tools = body["tools"].as_array().is_some_and(|t| !t.is_empty());
        let kind = match (method, uri.path()) {
            (&Method::POST, "/v1/messages") if offers_tools => Kind::Main,
            (&Method::POST, "/v1/messages") => Kind::Side,
            (&Method::POST, "/v1/messages/count_tokens") => Kind::Count,
            _ => Kind::Other,
        };
        let headers = headers
            .iter()
            .filter(|(name, _)| !SECRET_HEADERS.contains(&name.as_str()))
            .map(|(name, value)| {
                (
                    name.to_string(),
                    String::from_utf8_lossy(value.as_bytes()).into_owned(),
                )
            })
            .collect();
        Self {
            number,
            at: SystemTime::now(),
            method: method.to_string(),
            path: uri.to_string(),
            headers,
            kind,
            body,
            reply: String::new(),
        }
    }

    /// The session that sent it; its subagents send the same id.
    pub(crate) fn session_id(&self) -> Option<&str> {
        self.headers.get(SESSION_HEADER).map(String::as_str)
    }

    /// Whether a subagent of the session sent it.
    pub(crate) fn is_subagent(&self) -> bool {
        self.headers.contains_key(AGENT_HEADER)
    }

    /// Whether the answer is to be streamed.
    pub(crate) fn stream(&self) -> bool {
        self.body["stream"].as_bool().unwrap_or(false)
    }

    /// The messages of the conversation so far.
    pub(crate) fn messages(&self) -> &[Value] {
        self.body["messages"].as_array().map_or(&[], Vec::as_slice)
    }

    /// Every text in it, in the order in which the model reads them.
    pub(crate) fn passages(&self) -> Vec<Passage> {
        let mut out = Vec::new();
        collect(Place::SystemPrompt, &self.body["system"], &mut out);
        for message in self.messages() {
            let place = match message["role"].as_str() {
                Some("assistant") => Place::Assistant,
                Some("system") => Place::MidSystem,
                _ => Place::User,
            };
            collect(place, &message["content"], &mut out);
        }
        out
    }

    /// The texts at one place, oldest first.
    pub(crate) fn texts(&self, place: Place) -> Vec<String> {
        self.passages()
            .into_iter()
            .filter(|passage| passage.place == place)
            .map(|passage| passage.text)
            .collect()
    }

    /// The newest text of a user message, or an empty one.
    pub(crate) fn newest_user_text(&self) -> String {
        self.texts(Place::User).pop().unwrap_or_default()
    }

    /// All that the model was given, joined: everything but its own words.
    pub(crate) fn given_text(&self) -> String {
        let given: Vec<String> = self
            .passages()
            .into_iter()
            .filter(|passage| passage.place != Place::Assistant)
            .map(|passage| passage.text)
            .collect();
        given.join("\n")
    }

    /// How often a marker stands in what the model was given.
    pub(crate) fn count(&self, marker: &str) -> usize {
        self.given_text().matches(marker).count()
    }

    /// Whether a marker stands in what the model was given.
    pub(crate) fn contains(&self, marker: &str) -> bool {
        self.count(marker) > 0
    }

    /// One line about it, for the message of a failed wait.
    pub(crate) fn digest(&self) -> String {
        let newest: String = self.newest_user_text().chars().take(100).collect();
        format!(
            "#{} {:?} {} {} -> {}: {newest:?}",
            self.number, self.kind, self.method, self.path, self.reply
        )
    }
}

/// Adds the texts of a `content` or `system` value, which is a string or a list of blocks.
fn collect(place: Place, content: &Value, out: &mut Vec<Passage>) {
    if let Some(text) = content.as_str() {
        out.push(Passage {
            place,
            text: text.to_owned(),
        });
    }
    for block in content.as_array().into_iter().flatten() {
        match block["type"].as_str() {
            Some("text") => collect(place, &block["text"], out),
            Some("tool_result") => collect(Place::ToolResult, &block["content"], out),
            Some("tool_use") => {
                out.push(Passage {
                    place: Place::Assistant,
                    text: block["input"].to_string(),
                });
            }
            _ => {}
        }
    }
}
