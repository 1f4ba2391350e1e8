//! What `claude -p --output-format stream-json` says, line by line, in bounded memory.
//!
//! [`StreamReader`] is pure: bytes go in as they come, events come out. A line that is no JSON is skipped and counted; of
//! a line beyond [`MAX_STREAM_LINE`] the ends of long strings are left out while it passes by (a result keeps up to
//! [`limits::MAX_RESULT_BYTES`] of its text and says that it was cut), and one that is still too long is dropped and
//! leaves a marker. A run's outcome is its `result`
//! line and nothing else: `subtype: "success"` comes with API errors too, and an exit status of 0 with an interrupt.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::domain::{PermissionDenial, SessionId, TaskResult, limits};

use shorten::Shortener;

mod shorten;

/// Bytes of a line that is kept as it is.
pub const MAX_STREAM_LINE: usize = 8 << 20;
/// Bytes of each string that are kept of a longer `result` line; room is left for the note that it was cut.
const RESULT_STRING: usize = limits::MAX_RESULT_BYTES - 1024;
/// Bytes of each string that are kept of any other longer line.
const OTHER_STRING: usize = 4 << 10;
/// How a `result` line begins.
const RESULT: &[u8] = br#""type":"result""#;
/// Bytes of a line in which its type is looked for.
const BEGINNING: usize = 64;
/// Characters of one progress text.
const MAX_PROGRESS: usize = 300;
/// Names of tools that are counted; no run has more.
const MAX_TOOLS: usize = 256;

/// One line's meaning.
#[derive(Debug, Clone, PartialEq)]
pub enum StreamEvent {
    /// The run began; the id can differ from the one asked for.
    Init {
        /// The conversation.
        session_id: Option<SessionId>,
        /// The model in use.
        model: Option<String>,
    },
    /// A step, in a few words.
    Progress {
        /// What happened.
        text: String,
    },
    /// The end.
    Result(Box<RunResult>),
    /// A line that was longer than [`MAX_STREAM_LINE`].
    Dropped,
    /// Anything else.
    Other,
}

/// The `result` line.
#[derive(Debug, Clone, PartialEq)]
pub struct RunResult {
    /// `success`, `error_max_turns`, `error_max_budget_usd`, `error_during_execution`.
    pub subtype: String,
    /// `completed`, `api_error`, `max_turns`, `budget_exhausted`, `aborted_streaming`, …
    pub terminal_reason: Option<String>,
    /// The API's HTTP status, where it was the API's error.
    pub api_error_status: Option<u16>,
    /// The API's class of error, such as `overloaded_error`.
    pub api_error_type: Option<String>,
    /// Text, cost, turns, session, denials. The cost of a resumed conversation is that of all its runs together.
    pub task: TaskResult,
}

impl RunResult {
    /// Whether the run did what it was asked: no error, and the CLI calls it completed.
    #[must_use]
    pub fn completed(&self) -> bool {
        !self.task.is_error && self.terminal_reason.as_deref() == Some("completed")
    }
}

/// Cuts a stream into lines and reads them.
#[derive(Debug, Default)]
pub struct StreamReader {
    line: Vec<u8>,
    /// The line is too long to be kept as it is.
    shortened: Option<Shortener>,
    over: bool,
    broken: u64,
    dropped: u64,
    tools: BTreeMap<String, u32>,
}

impl StreamReader {
    /// The events of these further bytes.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<StreamEvent> {
        let mut events = Vec::new();
        for part in bytes.split_inclusive(|b| *b == b'\n') {
            let (text, ends) = match part.split_last() {
                Some((b'\n', text)) => (text, true),
                _ => (part, false),
            };
            if !self.over {
                self.over = !self.keep(text);
            }
            if ends {
                events.extend(self.end_line());
            }
        }
        events
    }

    /// Takes more of the line in; false if it is too long whatever is left out.
    fn keep(&mut self, text: &[u8]) -> bool {
        if self.shortened.is_none() && self.line.len() + text.len() > MAX_STREAM_LINE {
            let line = std::mem::take(&mut self.line);
            let beginning = &line[..line.len().min(BEGINNING)];
            let most = if beginning.windows(RESULT.len()).any(|w| w == RESULT) {
                RESULT_STRING
            } else {
                OTHER_STRING
            };
            let mut shortened = Shortener::new(most, MAX_STREAM_LINE);
            if !line.starts_with(b"{") || !shortened.feed(&line) {
                return false;
            }
            self.shortened = Some(shortened);
        }
        match &mut self.shortened {
            Some(shortened) => shortened.feed(text),
            None => {
                self.line.extend_from_slice(text);
                true
            }
        }
    }

    /// The event of a last line without a line break, at the stream's end.
    pub fn finish(&mut self) -> Option<StreamEvent> {
        self.end_line()
    }

    /// Lines so far that were no JSON object.
    #[must_use]
    pub fn broken(&self) -> u64 {
        self.broken
    }

    /// Lines so far that were too long.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// How often the run called each tool so far, whether or not it was let.
    #[must_use]
    pub fn tools(&self) -> &BTreeMap<String, u32> {
        &self.tools
    }

    fn count_tools(&mut self, v: &Value) {
        let blocks = v.pointer("/message/content").and_then(Value::as_array);
        for block in blocks.into_iter().flatten() {
            if v.get("type").and_then(Value::as_str) == Some("assistant")
                && block.get("type").and_then(Value::as_str) == Some("tool_use")
                && let Some(name) = text(block, "name")
                && (self.tools.len() < MAX_TOOLS || self.tools.contains_key(&name))
            {
                let n = self.tools.entry(name).or_default();
                *n = n.saturating_add(1);
            }
        }
    }

    fn end_line(&mut self) -> Option<StreamEvent> {
        let shortened = self.shortened.take();
        let mut line = std::mem::take(&mut self.line);
        if std::mem::take(&mut self.over) {
            self.dropped += 1;
            return Some(StreamEvent::Dropped);
        }
        let mut left_out = 0;
        if let Some(shortened) = shortened {
            (line, left_out) = shortened.finish();
        }
        let text = line.trim_ascii();
        if text.is_empty() {
            return None;
        }
        match serde_json::from_slice::<Value>(text) {
            Ok(value) if value.is_object() => {
                self.count_tools(&value);
                let mut event = read(&value);
                if let StreamEvent::Result(result) = &mut event
                    && left_out > 0
                {
                    result.task.truncated = true;
                    result.task.text.push_str(&format!(
                        "\n[cut: about {left_out} bytes more; the session's transcript on the device has them]"
                    ));
                }
                Some(event)
            }
            _ => {
                self.broken += 1;
                None
            }
        }
    }
}

fn text(v: &Value, key: &str) -> Option<String> {
    v.get(key)?.as_str().map(str::to_owned)
}

fn read(v: &Value) -> StreamEvent {
    match (
        v.get("type").and_then(Value::as_str),
        v.get("subtype").and_then(Value::as_str),
    ) {
        (Some("system"), Some("init")) => StreamEvent::Init {
            session_id: text(v, "session_id").and_then(|id| id.parse().ok()),
            model: text(v, "model"),
        },
        (Some("assistant"), _) => match progress(v) {
            Some(text) => StreamEvent::Progress { text },
            None => StreamEvent::Other,
        },
        (Some("result"), subtype) => {
            StreamEvent::Result(Box::new(result(v, subtype.unwrap_or_default())))
        }
        _ => StreamEvent::Other,
    }
}

/// An assistant message in a few words: its text, or the tools it calls.
fn progress(v: &Value) -> Option<String> {
    let blocks = v.pointer("/message/content")?.as_array()?;
    let mut parts = Vec::new();
    for block in blocks {
        match block.get("type").and_then(Value::as_str) {
            Some("text") => parts.push(text(block, "text")?),
            Some("tool_use") => {
                let input = block.get("input");
                let what = [
                    "description",
                    "command",
                    "file_path",
                    "pattern",
                    "path",
                    "url",
                ]
                .iter()
                .find_map(|key| text(input?, key));
                let name = text(block, "name")?;
                parts.push(match what {
                    Some(what) => format!("{name}: {what}"),
                    None => name,
                });
            }
            _ => {}
        }
    }
    let all = parts.join(" · ");
    let mut short: String = all.chars().take(MAX_PROGRESS).collect();
    if short.len() < all.len() {
        short.push('…');
    }
    Some(short).filter(|s| !s.trim().is_empty())
}

fn result(v: &Value, subtype: &str) -> RunResult {
    let errors = || {
        let list = v.get("errors")?.as_array()?;
        let texts: Vec<&str> = list.iter().filter_map(Value::as_str).collect();
        Some(texts.join("\n"))
    };
    let denial = |d: &Value| {
        Some(PermissionDenial {
            tool_name: text(d, "tool_name")?,
            tool_input: d.get("tool_input").cloned().unwrap_or_default(),
        })
    };
    RunResult {
        subtype: subtype.to_owned(),
        terminal_reason: text(v, "terminal_reason"),
        api_error_status: v
            .get("api_error_status")
            .and_then(Value::as_u64)
            .and_then(|s| s.try_into().ok()),
        api_error_type: text(v, "api_error_type"),
        task: TaskResult {
            text: text(v, "result").or_else(errors).unwrap_or_default(),
            // Not to say whether it went wrong is to say that it did.
            is_error: v.get("is_error").and_then(Value::as_bool).unwrap_or(true),
            cost_usd: v.get("total_cost_usd").and_then(Value::as_f64),
            num_turns: v
                .get("num_turns")
                .and_then(Value::as_u64)
                .and_then(|n| n.try_into().ok()),
            session_id: text(v, "session_id").and_then(|id| id.parse().ok()),
            permission_denials: v
                .get("permission_denials")
                .and_then(Value::as_array)
                .map(|list| list.iter().filter_map(denial).collect())
                .unwrap_or_default(),
            truncated: false,
            whole: None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn feed_all(bytes: &[u8], step: usize) -> (Vec<StreamEvent>, StreamReader) {
        let mut reader = StreamReader::default();
        let mut events = Vec::new();
        for chunk in bytes.chunks(step) {
            events.extend(reader.feed(chunk));
        }
        events.extend(reader.finish());
        (events, reader)
    }

    fn stream() -> Vec<u8> {
        let id = SessionId::from_u128(9).to_string();
        let lines = [
            json!({"type": "system", "subtype": "hook_started"}).to_string(),
            json!({"type": "system", "subtype": "init", "session_id": id, "model": "m"}).to_string(),
            "not json".to_owned(),
            "[1]".to_owned(),
            String::new(),
            json!({"type": "assistant", "message": {"content": [
                {"type": "text", "text": "看"}, {"type": "tool_use", "name": "Bash", "input": {"command": "ls"}},
            ]}})
            .to_string(),
            json!({"type": "result", "subtype": "success", "is_error": false, "terminal_reason": "completed",
                "result": "done", "num_turns": 2, "total_cost_usd": 0.5, "session_id": id,
                "permission_denials": [{"tool_name": "Bash", "tool_input": {"command": "rm"}}, 7]})
            .to_string(),
        ];
        lines.join("\r\n").into_bytes()
    }

    #[test]
    fn a_stream_reads_the_same_however_it_is_torn() {
        let whole = feed_all(&stream(), 1 << 20).0;
        assert_eq!(whole.len(), 4);
        for step in [1, 2, 3, 7, 64] {
            let (events, reader) = feed_all(&stream(), step);
            assert_eq!(events, whole);
            assert_eq!((reader.broken(), reader.dropped()), (2, 0));
            assert_eq!(reader.tools().get("Bash"), Some(&1));
        }
        let id = Some(SessionId::from_u128(9));
        assert!(matches!(&whole[1], StreamEvent::Init { session_id, .. } if *session_id == id));
        assert!(matches!(&whole[2], StreamEvent::Progress { text } if text == "看 · Bash: ls"));
        let StreamEvent::Result(result) = &whole[3] else {
            panic!("no result");
        };
        assert!(result.completed());
        assert_eq!(result.task.permission_denials.len(), 1);
        assert_eq!(
            (result.task.num_turns, result.task.session_id),
            (Some(2), id)
        );
    }

    #[test]
    fn a_line_over_the_limit_is_dropped_and_the_next_is_read() {
        let mut reader = StreamReader::default();
        let big = vec![b'x'; 1 << 20];
        for _ in 0..20 {
            assert_eq!(reader.feed(&big), []);
            assert!(reader.line.len() <= MAX_STREAM_LINE);
        }
        let events = reader.feed(b"\n{\"type\":\"user\"}\n");
        assert_eq!(events, [StreamEvent::Dropped, StreamEvent::Other]);
        assert_eq!(reader.dropped(), 1);
    }

    #[test]
    fn a_result_of_twenty_megabytes_is_read_and_says_that_it_was_cut() {
        let text = "abcdé\n".repeat(3 << 20);
        let line = json!({"type": "result", "subtype": "success", "is_error": false, "result": text,
            "num_turns": 3, "terminal_reason": "completed"});
        // The order of the CLI's own fields.
        let line = line.to_string().replacen('{', r#"{"type":"result","#, 1);
        let mut reader = StreamReader::default();
        let mut events = Vec::new();
        for chunk in format!("{line}\n{{\"type\":\"user\"}}\n")
            .as_bytes()
            .chunks(65_536)
        {
            events.extend(reader.feed(chunk));
        }
        let [StreamEvent::Result(result), StreamEvent::Other] = events.as_slice() else {
            panic!("{} events", events.len());
        };
        assert!(result.completed() && result.task.truncated);
        assert_eq!(result.task.num_turns, Some(3));
        let (kept, note) = result.task.text.rsplit_once('\n').unwrap();
        assert!(
            text.starts_with(kept) && kept.len() + 8 >= RESULT_STRING,
            "{note}"
        );
        assert!(result.task.text.len() <= limits::MAX_RESULT_BYTES);
        assert_eq!(reader.dropped(), 0);
    }

    #[test]
    fn success_without_completion_is_no_completion() {
        for (line, completed) in [
            (
                json!({"type": "result", "subtype": "success", "is_error": true, "api_error_status": 529,
                "terminal_reason": "api_error", "result": "API Error"}),
                false,
            ),
            (
                json!({"type": "result", "subtype": "success", "is_error": false, "num_turns": 0,
                "result": "blocked by hook"}),
                false,
            ),
            (
                json!({"type": "result", "subtype": "error_max_turns", "is_error": true,
                "terminal_reason": "max_turns", "errors": ["a", "b"]}),
                false,
            ),
            (json!({"type": "result"}), false),
            (
                json!({"type": "result", "is_error": false, "terminal_reason": "completed"}),
                true,
            ),
        ] {
            let bytes = line.to_string().into_bytes();
            let (events, _) = feed_all(&bytes, 64);
            let [StreamEvent::Result(result)] = events.as_slice() else {
                panic!("{events:?}");
            };
            assert_eq!(result.completed(), completed, "{line}");
            if line.get("errors").is_some() {
                assert_eq!(result.task.text, "a\nb");
            }
        }
    }
}
