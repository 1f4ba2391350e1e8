//! What a hook may answer: per event only the JSON that the CLI was seen to accept.
//!
//! A wrong or missing `hookEventName` makes the CLI show "hook failed … validation", so the event's name is always
//! part of the answer, and an event that takes no context gets none.
//!
//! **Mail at `Stop`** goes as `additionalContext`, which continues the turn, and not as `decision: "block"`. Both
//! work; but a block reaches the model twice, the second time as a "blocking error", is shown to the user as one, and
//! leaves the result of a `-p` run empty once the CLI's loop protection ends it. Context arrives once, under its own
//! name, and the transcript records it as `rendered`, which is the evidence that it was seen.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::hook_event::HookName;

/// A person's answer to a permission request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The tool may run, this once.
    Allow,
    /// It may not; the text tells the model why.
    Deny(String),
}

/// An answer under construction.
#[derive(Debug, Clone, PartialEq)]
pub struct HookOutput {
    event: HookName,
    fields: Map<String, Value>,
}

impl HookOutput {
    /// An answer that says nothing yet.
    #[must_use]
    pub fn new(event: HookName) -> Self {
        Self {
            event,
            fields: Map::new(),
        }
    }

    /// An answer that gives the model this text; it says nothing if the event takes none.
    #[must_use]
    pub fn context(event: HookName, text: impl Into<String>) -> Self {
        let mut output = Self::new(event);
        if Self::takes_context(event) {
            output
                .fields
                .insert("additionalContext".to_owned(), Value::String(text.into()));
        }
        output
    }

    /// Whether the CLI passes additional context of this event on to the model.
    #[must_use]
    pub const fn takes_context(event: HookName) -> bool {
        matches!(
            event,
            HookName::SessionStart
                | HookName::UserPromptSubmit
                | HookName::PreToolUse
                | HookName::PostToolUse
                | HookName::PostToolUseFailure
                | HookName::Stop
        )
    }

    /// The answer with files to watch from now on, each absolute and present; ignored for events that arm no watch.
    #[must_use]
    pub fn watch<'a>(mut self, paths: impl IntoIterator<Item = &'a Path>) -> Self {
        if matches!(self.event, HookName::SessionStart | HookName::CwdChanged) {
            let paths: Vec<Value> = paths
                .into_iter()
                .filter_map(|p| p.to_str().map(Value::from))
                .collect();
            self.fields.insert("watchPaths".to_owned(), paths.into());
        }
        self
    }

    /// The answer with a person's decision; ignored for other events than `PermissionRequest`.
    #[must_use]
    pub fn decide(mut self, decision: &Decision) -> Self {
        if self.event == HookName::PermissionRequest {
            let decision = match decision {
                Decision::Allow => json!({"behavior": "allow"}),
                Decision::Deny(why) => json!({"behavior": "deny", "message": why}),
            };
            self.fields.insert("decision".to_owned(), decision);
        }
        self
    }

    /// The JSON to print, or `None` where there is nothing to say.
    #[must_use]
    pub fn into_json(mut self) -> Option<Value> {
        if self.fields.is_empty() {
            return None;
        }
        self.fields
            .insert("hookEventName".to_owned(), self.event.as_str().into());
        Some(json!({ "hookSpecificOutput": self.fields }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_answer_names_its_event_or_is_nothing() {
        for event in HookName::ALL {
            let output = HookOutput::context(*event, "t")
                .watch([Path::new("/w")])
                .decide(&Decision::Allow)
                .into_json();
            if let Some(json) = output {
                assert_eq!(json["hookSpecificOutput"]["hookEventName"], event.as_str());
                assert_eq!(json.as_object().map(Map::len), Some(1));
            }
            assert_eq!(HookOutput::new(*event).into_json(), None);
        }
        assert_eq!(
            HookOutput::context(HookName::SessionEnd, "t").into_json(),
            None
        );
    }

    #[test]
    fn a_stop_continues_by_context_and_never_by_a_block() {
        let json = HookOutput::context(HookName::Stop, "mail").into_json();
        assert_eq!(
            json,
            Some(
                json!({"hookSpecificOutput": {"hookEventName": "Stop", "additionalContext": "mail"}})
            )
        );
    }

    #[test]
    fn only_events_that_arm_a_watch_name_one() {
        let paths = [Path::new("/w/a.msg")];
        let json = HookOutput::context(HookName::SessionStart, "m")
            .watch(paths)
            .into_json();
        let fields = &json.unwrap()["hookSpecificOutput"];
        assert_eq!(fields["watchPaths"], json!(["/w/a.msg"]));
        assert_eq!(
            HookOutput::new(HookName::Notification)
                .watch(paths)
                .into_json(),
            None
        );
    }

    #[test]
    fn a_denial_carries_its_reason() {
        let json = HookOutput::new(HookName::PermissionRequest)
            .decide(&Decision::Deny("no".to_owned()))
            .into_json()
            .unwrap();
        assert_eq!(
            json["hookSpecificOutput"]["decision"],
            json!({"behavior": "deny", "message": "no"})
        );
    }
}
