//! The hub's rules over the store: what a hello, an ack, a report and the passing of time do.
//!
//! Each is one batch. Those of a connection begin with a fence on its generation, so that the frames of an older
//! connection change nothing; records are compared and set, and a lost race reads again.

mod connection;
mod items;
mod report_batch;
mod reroute;
mod revoked;
mod sweep;

pub(crate) use connection::{Connection, Refusal};
pub(crate) use items::{Item, stored_item, write_item};

use super::records::{self, ProjectRecord, SessionRecord};
use super::store::{Expect, Op};
use crate::domain::{AccountId, WallMs, limits::FINISHED_KEPT_MS};

/// Tries of a batch whose records others change at the same time.
const TRIES: usize = 8;

fn put_project(account: &AccountId, p: &ProjectRecord) -> Op {
    let key = ProjectRecord::key(account, &p.device, &p.info.name);
    records::put(key, p, Expect::Any, None)
}

fn put_session(account: &AccountId, s: &SessionRecord, now: WallMs) -> Op {
    let key = SessionRecord::key(account, s.info.session_id);
    records::put(key, s, Expect::Any, Some(now.plus(FINISHED_KEPT_MS)))
}
