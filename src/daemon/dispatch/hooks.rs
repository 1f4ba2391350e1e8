//! What a hook event means, and what the hook is answered.

use std::path::Path;

use tokio::sync::oneshot;
use uuid::Uuid;

use super::brain::Brain;
use super::followed::Followed;
use super::planning::reports;
use super::registry::{Origin, Owner, project_of};
use super::{Reply, Start};
use crate::claude::{
    HookEvent, HookInput, HookName, HookOutput, ProcessTable as _, StartSource, SystemProcesses,
    ancestors,
};
use crate::daemon::clock;
use crate::daemon::store::{Change, StoreError};
use crate::delivery::budget;
use crate::delivery::claims::{self, Boundary, Claim, ClaimParts, Queued, SessionView, Sign};
use crate::delivery::fence::{self, Letter};
use crate::delivery::planner::{At, Plan};
use crate::domain::{Activity, ClaimId, Door, Priority, SessionId, TaskState, TaskStatus};
use crate::local::{HookAnswer, HookCall};
use std::collections::BTreeSet;
use std::time::Duration;

/// After a hook handed mail over, the transcript is looked at this soon.
const SOON: Duration = Duration::from_millis(150);

impl Brain {
    /// Answers a hook.
    pub(super) async fn hook(
        &mut self,
        call: HookCall,
        peer_pid: Option<u32>,
        reply: oneshot::Sender<Reply>,
    ) {
        let answer = self.answer(&call, peer_pid).await;
        let (answer, claim) = answer.unwrap_or((Reply::Answer(HookAnswer::default()), None));
        // The hook gave up before it had its answer: nothing of it was printed.
        if reply.send(answer).is_err()
            && let Some(claim) = claim
        {
            self.sign(claim, Sign::OutputDiscarded).await;
        }
    }

    async fn answer(
        &mut self,
        call: &HookCall,
        peer_pid: Option<u32>,
    ) -> Option<(Reply, Option<ClaimId>)> {
        let input = HookInput::read(&call.input)
            .inspect_err(|error| tracing::warn!(%error, "a hook's input cannot be read"))
            .ok()?;
        // Inside a subagent: its parent's session, but not its parent's context.
        if input.agent_id.is_some() {
            return None;
        }
        let session = input.session_id?;
        let origin = self.origin(call, peer_pid, input.cwd.as_deref())?;
        self.heard(&input, &origin, session).await
    }

    /// Takes an event in that came while no daemon ran: nobody waits for an answer.
    pub(super) fn hear_late(&mut self, call: &HookCall) {
        let Ok(input) = HookInput::read(&call.input) else {
            return;
        };
        let at = call.at.map_or_else(clock::wall, crate::domain::WallMs);
        if input.agent_id.is_none()
            && let Some(origin) = self.origin(call, None, input.cwd.as_deref())
        {
            let changed = self.registry.hear(&input, &origin, at);
            self.changed(changed);
        }
    }

    /// Where an event comes from; `None` if it pretends to come from a process that the hook does not descend from.
    fn origin(&self, call: &HookCall, peer_pid: Option<u32>, cwd: Option<&Path>) -> Option<Origin> {
        if let (Some(peer), Some(claimed)) = (peer_pid, call.pid)
            && !ancestors(&SystemProcesses, peer)
                .iter()
                .any(|p| p.pid == claimed)
        {
            tracing::warn!(
                peer,
                claimed,
                "a hook event whose sender is no child of the session was ignored"
            );
            return None;
        }
        let owner = call
            .pid
            .and_then(|pid| SystemProcesses.look(pid))
            .and_then(|p| {
                Some(Owner {
                    pid: p.pid,
                    start: p.start.parse().ok()?,
                })
            });
        let enabled = self.projects.iter().map(|p| (&p.name, p.path.as_path()));
        let project = cwd.and_then(|cwd| project_of(cwd, enabled).cloned());
        Some(Origin {
            owner,
            entrypoint: call.entrypoint.clone(),
            attended: call.attended,
            messaging_socket: call.messaging_socket.clone(),
            run: call.run.clone(),
            project,
        })
    }

    async fn heard(
        &mut self,
        input: &HookInput,
        origin: &Origin,
        session: SessionId,
    ) -> Option<(Reply, Option<ClaimId>)> {
        let now = clock::wall();
        // A session never heard of starts with whatever event comes first.
        let changed = self.registry.hear(input, origin, now);
        self.changed(changed);
        let event = input.event.name()?;
        match &input.event {
            HookEvent::SessionStart { source, .. } => {
                return self
                    .greeting(event, source, session)
                    .map(|s| (Reply::Start(s), None));
            }
            HookEvent::UserPromptSubmit { .. } => {
                if let Some(s) = self.registry.get_mut(session) {
                    s.continuations = 0;
                }
                // A new prompt is the end of the turn before, if an interruption hid it.
                self.follow_soon(SOON);
            }
            HookEvent::Stop {
                last_assistant_message,
                ..
            } => {
                self.turn_ended(session, last_assistant_message.as_deref())
                    .await;
            }
            HookEvent::StopFailure { .. } | HookEvent::SessionEnd { .. } => {
                self.follow_soon(SOON);
            }
            _ => {}
        }
        let boundary = self.boundary(&input.event, session)?;
        let claim = match self.claim(session, boundary, event).await {
            // A program of the user's was faster with one of the envelopes; the others still go.
            Err(StoreError::NotQueued(_)) => {
                self.resync().await;
                self.claim(session, boundary, event).await
            }
            claim => claim,
        };
        let claim = claim
            .inspect_err(|error| tracing::error!(%error, "mail cannot be claimed"))
            .ok()??;
        let answer = HookAnswer {
            output: claim.1,
            ..HookAnswer::default()
        };
        Some((Reply::Answer(answer), Some(claim.0)))
    }

    /// The memory that a starting session is to be given.
    fn greeting(
        &mut self,
        event: HookName,
        source: &StartSource,
        session: SessionId,
    ) -> Option<Start> {
        let project = self.registry.resolve(session)?.project.clone()?;
        if !self.project_config(&project).features.memory_injection {
            return None;
        }
        let s = self.registry.get_mut(session)?;
        if !s.is_new_start(clock::wall()) {
            return None;
        }
        let told = match source {
            StartSource::Resume => Some(s.told.clone()),
            StartSource::Startup
            | StartSource::Clear
            | StartSource::Compact
            | StartSource::Fork
            | StartSource::Other(_) => None,
        };
        Some(Start {
            event,
            session,
            project,
            told,
        })
    }

    fn boundary(&self, event: &HookEvent, session: SessionId) -> Option<Boundary> {
        Some(match event {
            HookEvent::PostToolUse { .. } | HookEvent::PostToolUseFailure { .. } => Boundary::Tool,
            HookEvent::Stop {
                stop_hook_active, ..
            } => Boundary::Stop {
                active: *stop_hook_active,
                continuations: self.registry.resolve(session)?.continuations,
            },
            HookEvent::UserPromptSubmit { .. } => Boundary::Prompt,
            _ => return None,
        })
    }

    /// Claims what this boundary hands over, makes the claim durable, and gives the text.
    async fn claim(
        &mut self,
        id: SessionId,
        boundary: Boundary,
        event: HookName,
    ) -> Result<Option<(ClaimId, Option<serde_json::Value>)>, StoreError> {
        if !self.mail.values().any(|m| !m.taken) {
            return Ok(None);
        }
        let queue = self.waiting(id, boundary);
        if queue.is_empty() {
            return Ok(None);
        }
        let Some(session) = self.registry.resolve(id) else {
            return Ok(None);
        };
        let view = SessionView {
            one_shot: session.one_shot(),
            own_run: session.run.is_some(),
            subagent: false,
        };
        let open: BTreeSet<Priority> = self
            .claims
            .values()
            .filter(|f| f.claim.session == id && f.claim.state.is_open())
            .flat_map(|f| f.claim.lanes.iter().copied())
            .collect();
        let selection = claims::select(&queue, view, &open, boundary, budget::BATCH_UNITS);
        if selection.take.is_empty() {
            return Ok(None);
        }
        let transcript = session.transcript.clone();
        let ids = selection.take.iter().map(|(id, _)| *id).collect();
        let rows = self.parts.store.envelopes(ids).await?;
        let letters: Vec<_> = rows
            .iter()
            .filter_map(|row| Letter::of(&row.envelope))
            .collect();
        let offset = transcript
            .as_ref()
            .and_then(|p| std::fs::metadata(p).ok())
            .map_or(0, |m| m.len());
        let now = clock::wall();
        let parts = ClaimParts {
            id: ClaimId(Uuid::new_v4()),
            door: Door::Hooks,
            session: id,
            batch: selection.take.clone(),
            transcript: transcript.map(|p| p.to_string_lossy().into_owned()),
            offset,
        };
        let (mut claim, opened) = Claim::open(parts, true, now);
        // Durable before it is printed: a crash in between costs a look into the transcript, not a repeat.
        let handed = claim.on(Sign::HandedOver { busy: true }, now);
        let text = fence::batch(&letters, claim.id, selection.rest);
        let mut changes = vec![Change::OpenClaim(Followed::row(&claim, None, now))];
        for stage in opened.receipts.iter().chain(&handed.receipts) {
            for envelope in &claim.envelopes {
                changes.extend(reports(*envelope, Some(stage), None, now));
            }
        }
        for envelope in &claim.envelopes {
            if self
                .mail
                .get(envelope)
                .is_some_and(super::mail::Mail::is_task)
            {
                let running = TaskState::new(TaskStatus::Running);
                changes.extend(reports(*envelope, None, Some(&running), now));
            }
        }
        self.parts.store.apply(changes).await?;
        for envelope in &claim.envelopes {
            if let Some(mail) = self.mail.get_mut(envelope) {
                mail.taken = true;
            }
        }
        let claim_id = claim.id;
        self.claims.insert(claim_id, Followed::new(claim, now));
        if let (Boundary::Stop { .. }, Some(s)) = (boundary, self.registry.get_mut(id)) {
            // Context at `Stop` continues the turn.
            s.continuations += 1;
            s.activity = Activity::Busy;
            s.idle_since = None;
        }
        self.touch(id);
        self.follow_soon(SOON);
        Ok(Some((
            claim_id,
            HookOutput::context(event, text).into_json(),
        )))
    }

    /// The mail that this boundary of this session may take, in order of arrival.
    fn waiting(&self, id: SessionId, boundary: Boundary) -> Vec<Queued> {
        let now = clock::wall();
        let policy = self.policy();
        // A turn's end is still the turn; a prompt begins one.
        let scene = self.scene(&policy, Some((id, now)));
        let mut queue: Vec<_> = self
            .mail
            .values()
            .filter(|m| !m.taken)
            .filter(|m| {
                let named = m
                    .head
                    .to
                    .session_id
                    .map(|s| self.registry.resolve(s).map(|s| s.id));
                named.is_none_or(|s| s == Some(id))
            })
            .filter(|m| match self.plan(&m.head, &policy, &scene, now) {
                Plan::Hooks { session, at } => session == id && reaches(boundary, at),
                Plan::Inbox { session } | Plan::Doorbell { session } => session == id,
                _ => false,
            })
            .collect();
        queue.sort_by_key(|m| m.ord);
        queue
            .into_iter()
            .map(|m| Queued {
                id: m.head.id,
                lane: m.head.priority,
                by_id: m.head.to.session_id.is_some(),
                length: m.units,
            })
            .collect()
    }

    /// The session's turn ended: what was seen in it is done.
    async fn turn_ended(&mut self, session: SessionId, last: Option<&str>) {
        self.follow_session(session).await;
        let ids: Vec<_> = self
            .claims
            .iter_mut()
            .filter(|(_, f)| f.claim.session == session)
            .map(|(id, f)| {
                f.ended(last);
                *id
            })
            .collect();
        for id in ids {
            // A turn that ends by itself has answered what stands in it, even if the file does not show that yet.
            if self.claims.get(&id).is_some_and(Followed::is_pending) {
                let turn_ended = true;
                self.sign(id, Sign::EvidenceSeen { turn_ended }).await;
            }
            self.sign(id, Sign::TurnEnded).await;
        }
        self.follow_soon(SOON);
    }
}

/// Whether a boundary hands over what may go at `at` at the earliest.
const fn reaches(boundary: Boundary, at: At) -> bool {
    match boundary {
        Boundary::Tool => matches!(at, At::NextTool),
        Boundary::Stop { .. } => matches!(at, At::NextTool | At::TurnEnd),
        Boundary::Prompt => true,
    }
}
