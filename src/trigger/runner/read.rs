//! Reading a run's pipes in bounded memory.

use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::sync::mpsc;

use crate::claude::{RunResult, StreamEvent, StreamReader};
use crate::domain::{Progress, SessionId};

use super::super::{Exit, Kill};
use super::{Ended, RunEvent};

/// Bytes of standard error that are kept.
const TAIL: usize = 8 << 10;
/// Bytes of one read.
const CHUNK: usize = 64 << 10;

/// What standard output said so far.
pub(super) struct Seen {
    reader: StreamReader,
    events: mpsc::Sender<RunEvent>,
    waiting: Option<Progress>,
    skipped: u64,
    result: Option<RunResult>,
    session_id: Option<SessionId>,
    last_text: Option<String>,
}

impl Seen {
    pub(super) fn new(events: mpsc::Sender<RunEvent>) -> Self {
        Self {
            reader: StreamReader::default(),
            events,
            waiting: None,
            skipped: 0,
            result: None,
            session_id: None,
            last_text: None,
        }
    }

    pub(super) async fn read(&mut self, stdout: Option<impl AsyncRead + Unpin>) {
        let Some(mut stdout) = stdout else { return };
        let mut chunk = vec![0; CHUNK];
        while let Ok(n @ 1..) = stdout.read(&mut chunk).await {
            for event in self.reader.feed(&chunk[..n]) {
                self.take(event);
            }
        }
    }

    fn take(&mut self, event: StreamEvent) {
        match event {
            StreamEvent::Init { session_id, .. } => {
                self.session_id = session_id.or(self.session_id);
                if let Some(id) = session_id {
                    self.tell(RunEvent::Session(id));
                }
            }
            StreamEvent::Progress { text } => {
                self.last_text = Some(text.clone());
                self.flush();
                let replaced = self.waiting.replace(Progress { text });
                self.skipped += u64::from(replaced.is_some());
                self.flush();
            }
            // A later one replaces an earlier one: the last word counts.
            StreamEvent::Result(result) => self.result = Some(*result),
            StreamEvent::Dropped | StreamEvent::Other => {}
        }
    }

    /// Tells the step that waits, if there is room.
    fn flush(&mut self) {
        if self.waiting.is_some()
            && let Ok(slot) = self.events.try_reserve()
            && let Some(step) = self.waiting.take()
        {
            slot.send(RunEvent::Progress(step));
        }
    }

    /// Tells what is also in [`Ended`], hence may be lost here.
    fn tell(&self, event: RunEvent) {
        drop(self.events.try_send(event));
    }

    pub(super) fn into_ended(
        mut self,
        exit: Exit,
        killed_by: Option<Kill>,
        stderr: String,
    ) -> Ended {
        if let Some(event) = self.reader.finish() {
            self.take(event);
        }
        self.flush();
        self.skipped += u64::from(self.waiting.is_some());
        Ended {
            exit,
            killed_by,
            stderr,
            unread_lines: (self.reader.broken(), self.reader.dropped()),
            tools: self.reader.tools().clone(),
            session_id: self
                .result
                .as_ref()
                .and_then(|r| r.task.session_id)
                .or(self.session_id),
            result: self.result,
            last_text: self.last_text,
            skipped: self.skipped,
        }
    }
}

/// The end of standard error.
#[derive(Default)]
pub(super) struct Tail {
    bytes: Vec<u8>,
    cut: bool,
}

impl Tail {
    pub(super) async fn read(&mut self, stderr: Option<impl AsyncRead + Unpin>) {
        let Some(mut stderr) = stderr else { return };
        let mut chunk = vec![0; CHUNK];
        while let Ok(n @ 1..) = stderr.read(&mut chunk).await {
            self.bytes.extend_from_slice(&chunk[..n]);
            if let Some(over) = self.bytes.len().checked_sub(TAIL)
                && over > 0
            {
                self.bytes.drain(..over);
                self.cut = true;
            }
        }
    }

    /// The text; a first word that was cut is left out, as half a credential could not be recognised.
    pub(super) fn into_text(self) -> String {
        let text = String::from_utf8_lossy(&self.bytes);
        let from = if self.cut {
            text.find(char::is_whitespace).unwrap_or(text.len())
        } else {
            0
        };
        text[from..].trim().to_owned()
    }
}
