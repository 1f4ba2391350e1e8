//! One open transport: its reading half in the link's loop, its writing half in a task of its own.
//!
//! Reads may be cancelled and so can stand in a `select!`; writes may not, and a hub that does not read must not keep us
//! from reading. Frames therefore go through a bounded channel to a task that gives each its deadline. When that
//! channel is full the hub has not read for a long time, and the transport is given up.

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::poll::Poll;
use crate::daemon::dial::{Event, Reader, Writer};
use crate::wire::{CloseCode, DeviceFrame, encode};

/// Frames that may wait to be written: more than both windows together ever ask for.
const QUEUE: usize = 1_024;

/// Events of a poll session that may wait to be read.
const EVENTS: usize = 512;

/// What is asked of a transport.
pub(super) enum Out {
    Frame(Box<DeviceFrame>),
    Ping(u64),
    /// With the reading half, if it is not elsewhere.
    Close(CloseCode, String, Option<Reader>),
}

/// Where events come from.
enum Source {
    Socket(Reader),
    Calls(mpsc::Receiver<Event>),
}

/// An open transport.
pub(super) struct Transport {
    source: Source,
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
            source: Source::Socket(reader),
            out,
            failed,
        }
    }

    /// Starts a poll session; the task ends with the transport.
    pub(super) fn polling(poll: Poll, tasks: &mut JoinSet<()>) -> Self {
        let (out, frames) = mpsc::channel(QUEUE);
        let (tell, events) = mpsc::channel(EVENTS);
        tasks.spawn(poll.run(frames, tell));
        let (_, failed) = mpsc::channel(1);
        Self {
            source: Source::Calls(events),
            out,
            failed,
        }
    }

    /// The next event, from either half. May be cancelled.
    pub(super) async fn next(&mut self) -> Event {
        tokio::select! {
            biased;
            Some(detail) = self.failed.recv() => Event::Closed { code: None, detail },
            event = self.source.next() => event,
        }
    }

    /// Sends a frame; `false` if the transport is of no use any more.
    pub(super) fn send(&self, frame: DeviceFrame) -> bool {
        self.out.try_send(Out::Frame(Box::new(frame))).is_ok()
    }

    /// Sends a ping; `false` if the transport is of no use any more.
    pub(super) fn ping(&self, number: u64) -> bool {
        self.out.try_send(Out::Ping(number)).is_ok()
    }

    /// Closes after what was sent; nothing comes off this transport any more.
    pub(super) fn close(self, code: CloseCode, reason: String) {
        // A full or ended channel means that nobody listens: dropping the transport is all that is left.
        let reader = match self.source {
            Source::Socket(reader) => Some(reader),
            Source::Calls(_) => None,
        };
        drop(self.out.try_send(Out::Close(code, reason, reader)));
    }
}

impl Source {
    /// May be cancelled.
    async fn next(&mut self) -> Event {
        match self {
            Self::Socket(reader) => reader.next().await,
            Self::Calls(events) => events.recv().await.unwrap_or_else(|| Event::Closed {
                code: None,
                detail: "the session ended".to_owned(),
            }),
        }
    }
}

async fn write(mut writer: Writer, mut frames: mpsc::Receiver<Out>, fail: mpsc::Sender<String>) {
    while let Some(frame) = frames.recv().await {
        let written = match frame {
            Out::Frame(frame) => writer.text(encode(&*frame)).await,
            Out::Ping(number) => writer.ping(number).await,
            Out::Close(code, reason, reader) => {
                if writer.close(code, &reason).await.is_ok()
                    && let Some(reader) = reader
                {
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
