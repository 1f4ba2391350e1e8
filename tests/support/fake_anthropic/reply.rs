//! What the fake answers: a reply, and the directives with which a prompt asks for one.
//!
//! Directives stand in the prompt itself, so that a test of one line needs no script:
//!
//! | directive | the answer |
//! |---|---|
//! | `[[tool:NAME:{json}]]` | a use of that tool; several are done one a request, in order |
//! | `[[say:TEXT]]` | the final text |
//! | `[[delay:SECONDS]]` | waits before each answer of the turn |
//! | `[[error:STATUS]]`, `[[error:STATUS*N]]` | that API error, always or for the first N requests |
//! | `[[usage:TOKENS]]` | reports that many input tokens, to provoke a compaction |
//!
//! Only the user message that opened the current turn is read: what a tool printed, what a hook added
//! and what an earlier turn asked for direct nothing.

use std::time::Duration;

use serde_json::Value;

use super::request::{Kind, Request};

/// What the CLI writes into its request for a summary of the conversation.
const COMPACTION: &str = "Respond with TEXT ONLY";

/// The input tokens a reply reports unless told otherwise.
const FEW_TOKENS: u64 = 100;

/// What an answer holds.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// A final text.
    Text(String),
    /// The use of a tool.
    Tool {
        /// The tool's name.
        name: String,
        /// Its input.
        input: Value,
    },
    /// An API error.
    Error {
        /// The HTTP status.
        status: u16,
        /// Headers beside it, such as `retry-after`.
        headers: Vec<(String, String)>,
    },
}

/// One answer of the model API.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(super) content: Content,
    pub(super) delay: Duration,
    pub(super) input_tokens: u64,
}

impl Reply {
    fn new(content: Content) -> Self {
        Self {
            content,
            delay: Duration::ZERO,
            input_tokens: FEW_TOKENS,
        }
    }

    /// A final text.
    pub(crate) fn say(text: impl Into<String>) -> Self {
        Self::new(Content::Text(text.into()))
    }

    /// The use of a tool.
    pub(crate) fn tool(name: impl Into<String>, input: Value) -> Self {
        Self::new(Content::Tool {
            name: name.into(),
            input,
        })
    }

    /// An API error.
    pub(crate) fn error(status: u16) -> Self {
        Self::new(Content::Error {
            status,
            headers: Vec::new(),
        })
    }

    /// The same error with a header, such as `retry-after`.
    ///
    /// # Panics
    /// On a reply that is no error.
    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        let Content::Error { headers, .. } = &mut self.content else {
            panic!("only an error carries headers");
        };
        headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The same reply, given after a delay.
    pub(crate) fn after(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// The same reply, reporting that many input tokens.
    pub(crate) fn input_tokens(mut self, tokens: u64) -> Self {
        self.input_tokens = tokens;
        self
    }

    /// Its name in the log.
    pub(super) fn name(&self) -> String {
        match &self.content {
            Content::Text(_) => "say".to_owned(),
            Content::Tool { name, .. } => format!("tool:{name}"),
            Content::Error { status, .. } => format!("error:{status}"),
        }
    }
}

/// The directives of one prompt.
#[derive(Clone, Debug, Default)]
pub(super) struct Directives {
    tools: Vec<(String, Value)>,
    say: Option<String>,
    delay: Duration,
    error: Option<(u16, Option<usize>)>,
    usage: Option<u64>,
}

impl Directives {
    /// Reads the directives of a text; `None` if it holds not one.
    fn read(text: &str) -> Option<Self> {
        let mut found = Self::default();
        let mut any = false;
        let mut rest = text;
        while let Some(at) = rest.find("[[") {
            rest = &rest[at + 2..];
            if let Some(after) = found.take(rest) {
                rest = after;
                any = true;
            }
        }
        any.then_some(found)
    }

    /// Takes the one directive at the start of `text`, just behind its brackets; returns what follows it.
    fn take<'t>(&mut self, text: &'t str) -> Option<&'t str> {
        let (word, argument) = text.split_once(':')?;
        if word == "tool" {
            let (name, json) = argument.split_once(':')?;
            let mut values = serde_json::Deserializer::from_str(json).into_iter::<Value>();
            let input = values.next()?.ok()?;
            let rest = json[values.byte_offset()..].strip_prefix("]]")?;
            self.tools.push((name.to_owned(), input));
            return Some(rest);
        }
        let (argument, rest) = argument.split_once("]]")?;
        match word {
            "say" => self.say = Some(argument.to_owned()),
            "delay" => self.delay = Duration::try_from_secs_f64(argument.parse().ok()?).ok()?,
            "usage" => self.usage = Some(argument.parse().ok()?),
            "error" => {
                self.error = Some(match argument.split_once('*') {
                    Some((status, times)) => (status.parse().ok()?, Some(times.parse().ok()?)),
                    None => (argument.parse().ok()?, None),
                });
            }
            _ => return None,
        }
        Some(rest)
    }
}

/// The turn that a request belongs to: the prompt that opened it, and how far it has come.
#[derive(Debug)]
pub(super) struct Turn {
    /// The prompt's text, where it holds directives; it also names the turn.
    pub(super) prompt: Option<String>,
    tools_used: usize,
}

impl Turn {
    /// Finds the turn by walking back from the newest message.
    pub(super) fn of(request: &Request) -> Self {
        let mut tools_used = 0;
        if request.kind != Kind::Main {
            return Self {
                prompt: None,
                tools_used,
            };
        }
        for message in request.messages().iter().rev() {
            let blocks = message["content"].as_array().map_or(&[][..], Vec::as_slice);
            let of_type = |wanted: &str| blocks.iter().filter(|b| b["type"] == wanted).count();
            match message["role"].as_str() {
                Some("assistant") => match of_type("tool_use") {
                    0 => break,
                    used => tools_used += used,
                },
                Some("user") => {
                    let prompt = texts_of(message).into_iter().rfind(|t| has_directives(t));
                    let prompt = prompt.map(str::to_owned);
                    if prompt.is_some() || of_type("tool_result") == 0 {
                        return Self { prompt, tools_used };
                    }
                }
                _ => {}
            }
        }
        Self {
            prompt: None,
            tools_used,
        }
    }

    /// The answer that the directives ask for; `failures` counts the errors this prompt already got.
    pub(super) fn answer(&self, request: &Request, failures: &mut usize) -> Reply {
        if request.newest_user_text().contains(COMPACTION) {
            return Reply::say("<analysis>none</analysis><summary>A short summary.</summary>");
        }
        if request.kind == Kind::Side && request.body["output_config"]["format"].is_object() {
            return Reply::say(r#"{"title":"A title"}"#);
        }
        let asked = self
            .prompt
            .as_deref()
            .and_then(Directives::read)
            .unwrap_or_default();
        let fails = asked
            .error
            .filter(|(_, times)| times.is_none_or(|times| *failures < times));
        let reply = if let Some((status, _)) = fails {
            *failures += 1;
            Reply::error(status)
        } else if let Some((name, input)) = asked.tools.get(self.tools_used) {
            Reply::tool(name, input.clone())
        } else {
            Reply::say(
                asked
                    .say
                    .unwrap_or_else(|| format!("Answer {}.", request.number)),
            )
        };
        reply
            .after(asked.delay)
            .input_tokens(asked.usage.unwrap_or(FEW_TOKENS))
    }
}

/// Whether a text holds a directive.
fn has_directives(text: &str) -> bool {
    Directives::read(text).is_some()
}

/// The text blocks of a message, without what tools printed.
fn texts_of(message: &Value) -> Vec<&str> {
    match &message["content"] {
        Value::String(text) => vec![text],
        Value::Array(blocks) => blocks
            .iter()
            .filter_map(|block| block["text"].as_str())
            .collect(),
        _ => Vec::new(),
    }
}
