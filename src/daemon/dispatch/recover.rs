//! What an earlier daemon left behind: runs that go on without it, and hook events that nobody heard.

use std::time::Duration;

use super::brain::Brain;
use super::followed;
use super::planning::reports;
use super::run_end::end_stage;
use super::runs::Detail;
use crate::daemon::clock;
use crate::daemon::store::{Change, RunRow, StoreError};
use crate::domain::{EnvelopeId, Stage, TaskState, TaskStatus};
use crate::hook::SPOOL_FILE;
use crate::local::HookCall;
use crate::trigger::orphan;

/// How long each demand to an orphan to end is waited for.
const GRACE: Duration = Duration::from_secs(2);

/// Ends the runs of an earlier daemon. One that never read its prompt starts again; a task that was read is
/// `interrupted` (`cancelled` if it was called off) and never silently repeated; a message is done if its session saw it.
pub(super) async fn runs(brain: &mut Brain) -> Result<(), StoreError> {
    for row in brain.parts.store.unfinished_runs().await? {
        let off = brain.parts.store.is_called_off(row.envelope).await?;
        let changes = changes_for(brain, row, off).await;
        brain.parts.store.apply(changes).await?;
    }
    Ok(())
}

async fn changes_for(brain: &Brain, mut row: RunRow, off: bool) -> Vec<Change> {
    let (id, now) = (row.envelope, clock::wall());
    let detail: Detail = serde_json::from_value(row.detail.clone()).unwrap_or_default();
    let Some((pid, start)) = row.pid.zip(row.proc_start) else {
        let again = TaskState::new(TaskStatus::Delivered);
        let mut changes = give_back(id).to_vec();
        changes.extend(reports(id, None, (!detail.message).then_some(&again), now));
        return changes;
    };
    let end = orphan::stop(pid, start, GRACE).await;
    tracing::warn!(%id, pid, ?end, "a run of an earlier daemon was found");
    let transcript = row
        .session_id
        .and_then(|s| brain.registry.resolve(s))
        .and_then(|s| s.transcript.clone());
    let seen = match (detail.nonce, transcript) {
        (Some(nonce), Some(path)) => followed::holds(&path, nonce).await,
        _ => None,
    };
    if detail.message && seen == Some(false) {
        // Proof of non-delivery: the process is gone and its transcript never had the text.
        return give_back(id).to_vec();
    }
    row.finished = true;
    row.state = "interrupted".to_owned();
    let mut changes = vec![Change::UpdateRun(row)];
    let state = if off {
        TaskState::new(TaskStatus::Cancelled)
    } else {
        TaskState::because(TaskStatus::Interrupted, "daemon_died")
    };
    if seen == Some(true) {
        changes.extend(reports(id, Some(&Stage::Seen), None, now));
    }
    if !detail.message {
        changes.extend(reports(id, Some(&end_stage(&state)), Some(&state), now));
    } else if seen == Some(true) {
        changes.extend(reports(id, Some(&Stage::Done), None, now));
    }
    // A message that nothing tells about stays `handed_over` for its sender, and is not repeated.
    changes.push(Change::Finish(id));
    changes
}

/// The start of such a run counts: what kills its daemon again and again is not started for ever.
const fn give_back(id: EnvelopeId) -> [Change; 2] {
    [Change::LoseRun(id), Change::Requeue { id, hold: None }]
}

/// Hears the hook events that came while no daemon ran, and takes them off the spool.
pub(super) async fn spool(brain: &mut Brain) {
    let file = brain.parts.places.spool().join(SPOOL_FILE);
    let taken = file.with_extension("taken");
    let read = tokio::task::spawn_blocking(move || {
        // Renamed first: an event that comes meanwhile goes into a new file. A file left from a crash is read again;
        // hearing an event twice changes nothing.
        if !taken.exists() {
            std::fs::rename(&file, &taken).ok()?;
        }
        let text = std::fs::read_to_string(&taken).ok();
        std::fs::remove_file(&taken).ok()?;
        text
    });
    let Ok(Some(text)) = read.await else { return };
    for line in text.lines() {
        match serde_json::from_str::<HookCall>(line) {
            Ok(call) => brain.hear_late(&call),
            // A torn line of a full disk; the others count.
            Err(error) => tracing::warn!(%error, "a spooled hook event cannot be read"),
        }
    }
    let doubted = brain.registry.doubt_ownerless(clock::wall());
    brain.changed(doubted);
}
