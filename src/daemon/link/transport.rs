//! One open transport: its reading half in the link's loop, its writing half in a task of its own.
//!
//! Reads may be cancelled and so can stand in a `select!`; writes may not, and a hub that does not read must not keep us
//! from reading. Frames therefore go through a bounded channel to a task that gives each its deadline. When that
//! channel is full the hub has not read for a long time, and the transport is given up.

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::daemon::dial::{Event, Reader, Writer};
use crate::wire::CloseCode;

/// Frames that may wait to be written: more than both windows together ever ask for.
const QUEUE: usize = 1_024;

enum Out {
    Text(String),
    Ping(u64),
    Close(CloseCode, String, Reader),
}

/// An open transport.
pub(super) struct Transport {
    reader: Reader,
    out: mpsc::Sender<Out>,
    failed: mpsc::Receiver<String>,
}

impl Transport {
    /// Starts writing; the task ends with the transport.
    pub(super) fn new(reader: Reader, writer: Writer, tasks: &mut JoinSet<()>) -> Self {
        let (out, frames) = mpsc::channel(QUEUE);
        let (fail, failed) = mpsc::channel(1);
        tasks.spawn(write(writer, frames, fail));
        Self {
            reader,
            out,
            failed,
        }
    }

    /// The next event, from either half. May be cancelled.
    pub(super) async fn next(&mut self) -> Event {
        tokio::select! {
            biased;
            Some(detail) = self.failed.recv() => Event::Closed { code: None, detail },
            event = self.reader.next() => event,
        }
    }

    /// Sends a frame; `false` if the transport is of no use any more.
    pub(super) fn text(&self, text: String) -> bool {
        self.out.try_send(Out::Text(text)).is_ok()
    }

    /// Sends a ping; `false` if the transport is of no use any more.
    pub(super) fn ping(&self, number: u64) -> bool {
        self.out.try_send(Out::Ping(number)).is_ok()
    }

    /// Closes after what was sent; nothing comes off this transport any more.
    pub(super) fn close(self, code: CloseCode, reason: String) {
        // A full or ended channel means that nobody listens: dropping the transport is all that is left.
        drop(self.out.try_send(Out::Close(code, reason, self.reader)));
    }
}

async fn write(mut writer: Writer, mut frames: mpsc::Receiver<Out>, fail: mpsc::Sender<String>) {
    while let Some(frame) = frames.recv().await {
        let written = match frame {
            Out::Text(text) => writer.text(text).await,
            Out::Ping(number) => writer.ping(number).await,
            Out::Close(code, reason, reader) => {
                if writer.close(code, &reason).await.is_ok() {
                    reader.drain().await;
                }
                return;
            }
        };
        if let Err(error) = written {
            // The link's loop may have dropped the transport already.
            drop(fail.try_send(format!("a frame could not be written: {error}")));
            return;
        }
    }
}
