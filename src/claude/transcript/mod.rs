//! Transcripts: whether a text was seen, and whether a turn ended.
//!
//! A transcript is a file of JSON lines that the CLI appends to while it works. It is the only witness that a text reached the
//! model, and an unreliable one to read: it lags a little, its last line can be torn, a line can be megabytes long,
//! and the same text stands in it many times. What counts, measured with 2.1.332:
//!
//! | line | with the nonce it means |
//! |---|---|
//! | any, with a `rendered` field that holds the nonce | it went to the model (hook context at every event, queued texts) |
//! | `type: user` or `attachment` with `origin.kind` `peer` or `task-notification` | it went to the model: inbox, doorbell |
//! | `type: user` whose content is text, not typed by a person | it is a prompt: a headless run's stdin |
//! | `queue-operation` `enqueue` | it waits in the CLI's own queue |
//! | `attachment` `hook_success` | nothing: what a hook printed |
//! | `system` `stop_hook_summary`, `last-prompt`, `queue-operation` otherwise | nothing: bookkeeping |
//! | `api-request*` | nothing: whole requests written down once more |
//! | `assistant`, tool results, `isSidechain` | nothing: the model or a tool quotes it, or a subagent alone saw it |
//!
//! A turn ends at an assistant message whose `stop_reason` asks for no tool, at `system` `turn_duration` (interactive
//! sessions), and at an interruption. Beware of the lag: a hook at `Stop` can run before the end of its own turn is in the file, so
//! the first end after its offset may be that of the turn it continues; a later prompt, or a second end, is past doubt.
//!
//! A text that stands in the file may still leave the conversation: with Esc before the first word of an answer the CLI goes back to
//! before the prompt, and the next prompt's `parentUuid` passes over what the prompt brought along. So evidence counts as
//! **answered** with the next assistant line, interruption mark or prompt behind it, and as **taken back** with a prompt that
//! goes on from before it.
//!
//! [`Watch`] is pure: lines go in, findings accumulate. [`follow`] is the thin shell that reads what was appended.

mod lines;

use std::fs::File;
use std::io::{self, BufReader, Seek as _, SeekFrom};
use std::path::Path;

use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;

pub use lines::{Line, LineReader, MAX_TRANSCRIPT_LINE};

/// Why a line proves that the model saw a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Evidence {
    /// It was rendered into a request.
    Rendered,
    /// It came in by the inbox.
    Peer,
    /// It came in by a rewake.
    TaskNotification,
    /// It was the prompt.
    Prompt,
}

/// A nonce that was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Where its line ends, bytes.
    pub at: u64,
    /// Why that counts.
    pub evidence: Evidence,
    /// The inbox's id of the message, where it has one.
    pub msg_id: Option<String>,
}

/// Lines behind an evidence that are told apart from those of another branch; with more than these it counts as answered.
const MAX_BRANCH: usize = 512;

/// What is known of one nonce.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Trace {
    /// The first evidence.
    pub seen: Option<Seen>,
    /// Whether the conversation went on from there.
    pub answered: bool,
    /// Where the conversation went on from before the evidence: the model will not see it again.
    pub taken_back: Option<u64>,
    /// Where it was first put into the CLI's own queue.
    pub enqueued: Option<u64>,
    /// The lines that go on from the evidence, until it is answered.
    branch: Vec<String>,
}

impl Trace {
    /// Whether it stands in the conversation, and nothing tells yet whether it stays.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.seen.is_some() && !self.answered && self.taken_back.is_none()
    }

    /// Takes a line behind the evidence in.
    fn behind(&mut self, entry: &Entry<'_>, end: u64) {
        let parent = entry.parent.as_deref();
        let ours = parent.is_some_and(|p| self.branch.iter().any(|id| id == p));
        // Results of parallel tools are branches of their own, so an answer's parent proves nothing.
        if entry.kind == "assistant" || entry.interrupts() || self.branch.len() >= MAX_BRANCH {
            self.answered = true;
        } else if entry.begins_turn() {
            if ours || self.branch.is_empty() {
                self.answered = true;
            } else {
                self.taken_back = Some(end);
            }
        } else if let Some(id) = entry.uuid.as_deref().filter(|_| ours) {
            self.branch.push(id.to_owned());
        }
        if !self.is_pending() {
            self.branch = Vec::new();
        }
    }
}

/// Where something happened, first and last, and how often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Marks {
    /// The first one's line end, bytes.
    pub first: Option<u64>,
    /// The last one's line end, bytes.
    pub last: Option<u64>,
    /// How many.
    pub count: u32,
}

impl Marks {
    fn add(&mut self, at: u64) {
        self.first.get_or_insert(at);
        self.last = Some(at);
        self.count = self.count.saturating_add(1);
    }
}

/// What a transcript showed since an offset, about these nonces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watch {
    nonces: Vec<String>,
    traces: Vec<Trace>,
    offset: u64,
    ends: Marks,
    prompts: Marks,
    skipped: u64,
    answer: Option<(u64, String)>,
}

impl Watch {
    /// A watch that has seen nothing; reading begins at `offset`, which must be 0 or the end of a line. A nonce is
    /// plain text without characters that JSON escapes, such as a UUID.
    #[must_use]
    pub fn new(offset: u64, nonces: impl IntoIterator<Item = String>) -> Self {
        let nonces: Vec<String> = nonces.into_iter().filter(|n| !n.is_empty()).collect();
        Self {
            traces: vec![Trace::default(); nonces.len()],
            nonces,
            offset,
            ends: Marks::default(),
            prompts: Marks::default(),
            skipped: 0,
            answer: None,
        }
    }

    /// Where to read on, bytes.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// What is known of a nonce.
    #[must_use]
    pub fn trace(&self, nonce: &str) -> Option<&Trace> {
        let at = self.nonces.iter().position(|n| n == nonce)?;
        self.traces.get(at)
    }

    /// Ends of turns.
    #[must_use]
    pub fn ends(&self) -> Marks {
        self.ends
    }

    /// Beginnings of turns.
    #[must_use]
    pub fn prompts(&self) -> Marks {
        self.prompts
    }

    /// Lines that were too long or no JSON.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Whether the turn that saw this nonce has ended.
    #[must_use]
    pub fn ended_after(&self, nonce: &str) -> bool {
        let seen = self.trace(nonce).and_then(|t| t.seen.as_ref());
        matches!((seen, self.ends.last), (Some(seen), Some(end)) if end > seen.at)
    }

    /// The last answer that ended a turn after this nonce was seen.
    #[must_use]
    pub fn answer_after(&self, nonce: &str) -> Option<&str> {
        let seen = self.trace(nonce)?.seen.as_ref()?;
        let (end, text) = self.answer.as_ref()?;
        (*end > seen.at).then_some(text)
    }

    /// Takes one line; `None` for one that was too long to be read. `end` is where it ends, its line break included.
    pub fn line(&mut self, line: Option<&[u8]>, end: u64) {
        self.offset = end;
        let Some(text) = line.and_then(|l| std::str::from_utf8(l).ok()) else {
            self.skipped += 1;
            return;
        };
        // Whole requests, often most of the file; the CLI writes `type` first in these.
        if text.starts_with("{\"type\":\"api-request") || text.trim().is_empty() {
            return;
        }
        let Ok(entry) = serde_json::from_str::<Entry<'_>>(text) else {
            self.skipped += 1;
            return;
        };
        if entry.kind.starts_with("api-request") || entry.is_sidechain {
            return;
        }
        for (nonce, trace) in self.nonces.iter().zip(&mut self.traces) {
            if trace.is_pending() {
                trace.behind(&entry, end);
            }
            if !text.contains(nonce.as_str()) {
                continue;
            }
            if trace.seen.is_none()
                && let Some(evidence) = entry.evidence(nonce)
            {
                trace.seen = Some(Seen {
                    at: end,
                    evidence,
                    msg_id: entry
                        .origin()
                        .and_then(|o| o.msg_id.clone())
                        .map(Cow::into_owned),
                });
                trace
                    .branch
                    .extend(entry.uuid.as_deref().map(str::to_owned));
            }
            if entry.kind == "queue-operation" && entry.operation.as_deref() == Some("enqueue") {
                trace.enqueued.get_or_insert(end);
            }
        }
        if entry.ends_turn() {
            self.ends.add(end);
            if entry.kind == "assistant"
                && let Some(text) = entry.texts().pop()
            {
                self.answer = Some((end, text.into_owned()));
            }
        } else if entry.begins_turn() {
            self.prompts.add(end);
        }
    }
}

/// A transcript line, as far as we look.
#[derive(Debug, Deserialize)]
struct Entry<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(default, borrow)]
    subtype: Option<Cow<'a, str>>,
    #[serde(default, rename = "isSidechain")]
    is_sidechain: bool,
    #[serde(default, rename = "isCompactSummary")]
    is_compact_summary: bool,
    #[serde(default, borrow, rename = "promptId")]
    prompt_id: Option<&'a RawValue>,
    #[serde(default, borrow)]
    operation: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    origin: Option<Origin<'a>>,
    #[serde(default, borrow)]
    message: Option<Message<'a>>,
    #[serde(default, borrow)]
    attachment: Option<Attachment<'a>>,
    #[serde(default, borrow)]
    rendered: Option<&'a RawValue>,
    #[serde(default, borrow)]
    uuid: Option<Cow<'a, str>>,
    #[serde(default, borrow, rename = "parentUuid")]
    parent: Option<Cow<'a, str>>,
}

#[derive(Debug, Deserialize)]
struct Origin<'a> {
    #[serde(default, borrow)]
    kind: Cow<'a, str>,
    #[serde(default, borrow)]
    msg_id: Option<Cow<'a, str>>,
}

#[derive(Debug, Deserialize)]
struct Message<'a> {
    #[serde(default, borrow)]
    content: Option<&'a RawValue>,
    #[serde(default, borrow)]
    stop_reason: Option<Cow<'a, str>>,
}

#[derive(Debug, Deserialize)]
struct Attachment<'a> {
    #[serde(default, borrow)]
    origin: Option<Origin<'a>>,
}

/// The content of a message.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Content<'a> {
    Text(#[serde(borrow)] Cow<'a, str>),
    Blocks(#[serde(borrow)] Vec<Block<'a>>),
}

#[derive(Debug, Deserialize)]
struct Block<'a> {
    #[serde(default, borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(default, borrow)]
    text: Option<Cow<'a, str>>,
}

impl<'a> Entry<'a> {
    fn origin(&self) -> Option<&Origin<'a>> {
        let attached = self.attachment.as_ref().and_then(|a| a.origin.as_ref());
        self.origin.as_ref().or(attached)
    }

    /// The texts of a user's message; none if a tool's result is in it.
    fn prompt_texts(&self) -> Vec<Cow<'a, str>> {
        if self.kind == "user" {
            self.texts()
        } else {
            Vec::new()
        }
    }

    /// The texts of a message; none if a tool's result is in it.
    fn texts(&self) -> Vec<Cow<'a, str>> {
        let content = self.message.as_ref().and_then(|m| m.content);
        match content.and_then(|c| serde_json::from_str::<Content<'a>>(c.get()).ok()) {
            Some(Content::Text(text)) => vec![text],
            Some(Content::Blocks(blocks)) if blocks.iter().all(|b| b.kind != "tool_result") => {
                blocks.into_iter().filter_map(|b| b.text).collect()
            }
            _ => Vec::new(),
        }
    }

    fn evidence(&self, nonce: &str) -> Option<Evidence> {
        if !matches!(self.kind.as_ref(), "user" | "attachment") {
            return None;
        }
        if self.rendered.is_some_and(|r| r.get().contains(nonce)) {
            return Some(Evidence::Rendered);
        }
        let origin = self.origin().map(|o| o.kind.as_ref());
        match origin {
            Some("peer") => Some(Evidence::Peer),
            Some("task-notification") => Some(Evidence::TaskNotification),
            Some("human") => None,
            _ => self
                .prompt_texts()
                .iter()
                .any(|t| t.contains(nonce))
                .then_some(Evidence::Prompt),
        }
    }

    fn ends_turn(&self) -> bool {
        match self.kind.as_ref() {
            "assistant" => self
                .message
                .as_ref()
                .and_then(|m| m.stop_reason.as_deref())
                .is_some_and(|r| !matches!(r, "tool_use" | "pause_turn")),
            "system" => self.subtype.as_deref() == Some("turn_duration"),
            _ => self.interrupts(),
        }
    }

    fn interrupts(&self) -> bool {
        self.prompt_texts()
            .iter()
            .any(|t| t.starts_with("[Request interrupted by user"))
    }

    fn begins_turn(&self) -> bool {
        self.kind == "user"
            && self.prompt_id.is_some()
            && !self.is_compact_summary
            && !self.prompt_texts().is_empty()
    }
}

/// How far a read came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// To the end of the last whole line.
    End,
    /// The budget is used up; more is there.
    More,
    /// The file is shorter than what was read before: it is another one now.
    Replaced,
}

/// Reads on where the watch stands, at most about `budget` bytes.
///
/// # Errors
/// When the file cannot be read.
pub fn follow(path: &Path, watch: &mut Watch, budget: u64) -> io::Result<Reach> {
    let mut file = File::open(path)?;
    if file.metadata()?.len() < watch.offset {
        return Ok(Reach::Replaced);
    }
    file.seek(SeekFrom::Start(watch.offset))?;
    let start = watch.offset;
    let mut lines = LineReader::new(BufReader::with_capacity(64 << 10, file), start);
    while let Some(line) = lines.next_line()? {
        watch.line(line.bytes, line.end);
        if line.end - start >= budget {
            return Ok(Reach::More);
        }
    }
    Ok(Reach::End)
}

#[cfg(test)]
mod tests;
