//! The link table, row by row, and the rules below it.

use super::*;
use crate::core::retry::Retry;
use crate::domain::{Code, EnvelopeId, EnvelopeKind, Priority, ReportKind, Sender, Trust, Ts};
use crate::wire::{HubFrame, Resume, Welcome, encode};

mod delivery;
mod failures;
mod moved;
mod table;

const EPOCH: Epoch = InstanceId::from_u128(0xe);

fn envelope(n: u128) -> Envelope {
    Envelope {
        id: EnvelopeId::from_u128(n),
        kind: EnvelopeKind::Message,
        from: Sender {
            name: "ci".into(),
            trust: Trust::Inform,
        },
        to: crate::domain::Address::default(),
        priority: Priority::Normal,
        body: serde_json::json!({"content": "hello"}),
        wake: false,
        created_at: WallMs(0),
        expires_at: WallMs(1),
        attempt: None,
        hops: 0,
        reply_to: None,
    }
}

fn report(n: u64, text: &str) -> Report {
    Report {
        n,
        id: uuid::Uuid::from_u128(1),
        kind: ReportKind::Note,
        at: WallMs(0),
        body: serde_json::json!(text),
    }
}

fn snapshot(last: Option<u64>, next_n: u64) -> HelloSnapshot {
    HelloSnapshot {
        instance: InstanceId::from_u128(1),
        take_over: false,
        last: last.map(|seq| Cursor {
            epoch: EPOCH,
            seq: Seq(seq),
        }),
        outbox_instance: InstanceId::from_u128(2),
        next_n,
        build: "0".into(),
        os: "linux".into(),
        claude_version: None,
        capacity: 2,
        projects: Vec::new(),
        sessions: Vec::new(),
    }
}

fn welcome(resume: Resume) -> Welcome {
    Welcome {
        epoch: EPOCH,
        head: Seq(9),
        resume,
        generation: 4,
        now: WallMs(1_000_000),
        heartbeat_s: 20,
        window: 4,
        max_frame_bytes: 1 << 20,
        auth_expires_in_s: 900,
        report_n: 0,
    }
}

/// A machine with its clock; `out` holds what it asked for since the last look.
struct Rig {
    client: LinkClient,
    now: Ts,
}

impl Rig {
    fn new() -> Self {
        Self::with(ClientConfig::default())
    }

    fn with(config: ClientConfig) -> Self {
        Self {
            client: LinkClient::new(config),
            now: Ts(1_000),
        }
    }

    fn take(&mut self) -> Vec<Output> {
        std::iter::from_fn(|| self.client.poll_output()).collect()
    }

    fn feed(&mut self, input: Input) -> Vec<Output> {
        self.client.handle(input, self.now);
        self.take()
    }

    fn frame(&mut self, frame: &HubFrame) -> Vec<Output> {
        self.feed(Input::Text(encode(frame)))
    }

    fn deliver(&mut self, seq: u64) -> Vec<Output> {
        self.frame(&HubFrame::Deliver {
            seq: Seq(seq),
            envelope: Box::new(envelope(u128::from(seq))),
        })
    }

    fn store(&mut self, seq: u64) -> Vec<Output> {
        self.feed(Input::Stored {
            epoch: EPOCH,
            seq: Seq(seq),
        })
    }

    fn pass(&mut self, ms: u64) -> Vec<Output> {
        let end = self.now.plus(ms);
        let mut out = Vec::new();
        while let Some((at, _)) = self.client.poll_timeout().filter(|(at, _)| *at <= end) {
            self.now = self.now.max(at);
            self.client.handle_timeout(self.now);
            out.extend(self.take());
        }
        self.now = end;
        out
    }

    fn state(&self) -> LinkState {
        self.client.state()
    }

    fn dialing() -> Self {
        let mut rig = Self::new();
        let out = rig.feed(Input::Connect);
        assert!(matches!(
            out.last(),
            Some(Output::Dial { hub_offset_ms: 0 })
        ));
        rig
    }

    fn greeted() -> Self {
        let mut rig = Self::dialing();
        rig.greet(Some(5), 1);
        rig
    }

    fn greet(&mut self, last: Option<u64>, next_n: u64) {
        let out = self.feed(Input::TransportUp);
        assert_eq!(out.last(), Some(&Output::SendHello));
        self.client.hello(snapshot(last, next_n), self.now);
        let out = self.take();
        assert!(
            matches!(out.as_slice(), [Output::Send(DeviceFrame::Hello(_))]),
            "{out:?}"
        );
    }

    fn open() -> Self {
        let mut rig = Self::greeted();
        rig.frame(&HubFrame::Welcome(welcome(Resume::Continue)));
        rig
    }

    fn synced() -> Self {
        let mut rig = Self::open();
        rig.sync();
        rig
    }

    fn sync(&mut self) {
        self.frame(&HubFrame::Synced { seq: Seq(5) });
        assert_eq!(self.state(), LinkState::Synced);
    }

    /// Drops the connection and comes back to `Greeted`.
    fn redial(&mut self, last: Option<u64>, next_n: u64) {
        self.feed(lost());
        self.feed(Input::RetryDue);
        self.greet(last, next_n);
    }
}

fn lost() -> Input {
    closed(None, "connection reset")
}

fn closed(code: Option<u16>, detail: &str) -> Input {
    Input::TransportClosed {
        code,
        detail: detail.into(),
    }
}

fn refused(code: Code) -> Input {
    Input::TransportFailed(DialFailure::Refused {
        code: code.as_str().into(),
        message: "no".into(),
        hub_offset_ms: None,
        retry_after_s: None,
    })
}

fn armed(out: &[Output]) -> Option<Retry> {
    out.iter().find_map(|o| match o {
        Output::ArmRetry(retry) => Some(*retry),
        _ => None,
    })
}

fn dials(out: &[Output]) -> bool {
    out.iter().any(|o| matches!(o, Output::Dial { .. }))
}

fn close_code(out: &[Output]) -> Option<CloseCode> {
    out.iter().find_map(|o| match o {
        Output::Close { code, .. } => Some(*code),
        _ => None,
    })
}

fn acks(out: &[Output]) -> Vec<u64> {
    out.iter()
        .filter_map(|o| match o {
            Output::Send(DeviceFrame::Ack { seq }) => Some(seq.0),
            _ => None,
        })
        .collect()
}

fn fatal(rig: &Rig) -> Option<String> {
    match rig.client.status().cause {
        Some(Cause::Fatal { code, .. }) => Some(code),
        _ => None,
    }
}
