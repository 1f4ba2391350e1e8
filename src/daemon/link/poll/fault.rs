//! Calls without an answer, and what a refusal is told as.

use tokio::sync::mpsc;

use crate::core::retry::reason_with_window;
use crate::daemon::dial::Event;
use crate::domain::{Code, Problem};
use crate::wire::{CloseCode, HubFrame, encode};

/// Why a call has no answer.
#[derive(Debug)]
pub(super) enum Fault {
    /// Nothing came, or something that is not the hub answered.
    Lost(String),
    /// The hub refused.
    Refused(Box<Problem>),
}

/// Tells the end as a WebSocket would: the hub's `error`, then a close.
pub(super) async fn tell(events: &mpsc::Sender<Event>, fault: Fault) {
    let (said, code, detail) = match fault {
        Fault::Lost(detail) => (None, None, detail),
        Fault::Refused(problem) => {
            let (code, detail) = as_close(&problem);
            (Some(problem), code, detail)
        }
    };
    if let Some(p) = said {
        let frame = HubFrame::Error {
            code: p.code,
            message: p.title,
            retry_after_s: p.retry_after_s,
        };
        // Whoever dropped the transport needs no end.
        events.send(Event::Text(encode(&frame))).await.ok();
    }
    let code = code.map(CloseCode::as_u16);
    events.send(Event::Closed { code, detail }).await.ok();
}

/// The close that a refusal amounts to, as `proto/README.md` lists them.
fn as_close(problem: &Problem) -> (Option<CloseCode>, String) {
    let window = || {
        let ms = problem.retry_after_s.map(|s| s.saturating_mul(1_000));
        ms.map(reason_with_window).unwrap_or_default()
    };
    let close = match problem.known_code() {
        Some(Code::GoingAway) => return (Some(CloseCode::Restart), window()),
        Some(Code::RateLimited) => return (Some(CloseCode::SlowDown), window()),
        Some(Code::DeviceRevoked) => CloseCode::Forbidden,
        Some(Code::Superseded | Code::KeyHeldElsewhere) => CloseCode::Superseded,
        Some(Code::TooLarge) => CloseCode::TooLarge,
        Some(code) if code.http_status() == 401 => CloseCode::Unauthenticated,
        Some(code) if matches!(code.http_status(), 400 | 409 | 415) => CloseCode::Protocol,
        _ => return (None, format!("{} ({})", problem.title, problem.code)),
    };
    (Some(close), problem.code.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_as_the_close_that_it_would_be() {
        let told = |code: Code, after: Option<u64>| {
            let mut problem = Problem::new(code, "no");
            problem.retry_after_s = after;
            let (close, detail) = as_close(&problem);
            (close.map(CloseCode::as_u16), detail)
        };
        let window = "retry_after_ms=3000".to_owned();
        assert_eq!(told(Code::GoingAway, Some(3)), (Some(1012), window.clone()));
        assert_eq!(told(Code::GoingAway, None), (Some(1012), String::new()));
        assert_eq!(told(Code::RateLimited, Some(3)), (Some(4429), window));
        for (code, close) in [
            (Code::DeviceRevoked, 4403),
            (Code::Superseded, 4409),
            (Code::KeyHeldElsewhere, 4409),
            (Code::TokenExpired, 4401),
            (Code::TokenInvalid, 4401),
            (Code::TooLarge, 4413),
            (Code::ProtocolError, 4400),
            (Code::InvalidField, 4400),
            (Code::Conflict, 4400),
        ] {
            assert_eq!(told(code, None), (Some(close), code.as_str().to_owned()));
        }
        for code in [
            Code::PollClosed,
            Code::HeartbeatLost,
            Code::StoreUnavailable,
            Code::DiskFull,
            // A hub that knows no fallback.
            Code::NotFound,
        ] {
            assert_eq!(told(code, Some(1)).0, None, "{code}");
        }
    }
}
