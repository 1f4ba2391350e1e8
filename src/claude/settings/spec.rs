//! Which entries an installation wants, by the CLI's version.

use std::fmt;
use std::path::Path;

use serde::Serialize;

use crate::claude::HookName;

/// The first CLI version with `args` in command hooks. An older one would run our program without arguments, and what
/// that prints would go to the model.
const FIRST_WITH_ARGS: CliVersion = CliVersion(2, 1, 139);

/// A version of the CLI.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CliVersion(pub u32, pub u32, pub u32);

impl CliVersion {
    /// The version in what `claude --version` prints, such as `2.1.332 (Claude Code)`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let word = text.split_whitespace().next()?;
        let word = word.strip_prefix('v').unwrap_or(word);
        let mut parts = word.split(['-', '+']).next()?.splitn(3, '.');
        let mut number = || parts.next()?.parse().ok();
        Some(Self(number()?, number()?, number()?))
    }
}

impl fmt::Display for CliVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// Every event that we can use, with the first version that knows it; oldest first.
const SINCE: &[(HookName, CliVersion)] = &[
    (HookName::PreToolUse, CliVersion(1, 0, 38)),
    (HookName::PostToolUse, CliVersion(1, 0, 38)),
    (HookName::Notification, CliVersion(1, 0, 38)),
    (HookName::Stop, CliVersion(1, 0, 38)),
    (HookName::PreCompact, CliVersion(1, 0, 48)),
    (HookName::UserPromptSubmit, CliVersion(1, 0, 54)),
    (HookName::SessionStart, CliVersion(1, 0, 62)),
    (HookName::SessionEnd, CliVersion(1, 0, 85)),
    (HookName::PermissionRequest, CliVersion(2, 0, 45)),
    (HookName::PostToolUseFailure, CliVersion(2, 1, 27)),
    (HookName::PostCompact, CliVersion(2, 1, 76)),
    (HookName::StopFailure, CliVersion(2, 1, 78)),
    (HookName::CwdChanged, CliVersion(2, 1, 83)),
    (HookName::FileChanged, CliVersion(2, 1, 83)),
];

/// What an unknown version is taken to know: the events of before 2.0.
const CONSERVATIVE: CliVersion = CliVersion(1, 0, 85);

/// The events that a CLI of this version knows; an event unknown to it could void the whole file.
#[must_use]
pub fn events_known(version: Option<CliVersion>) -> Vec<HookName> {
    let version = version.unwrap_or(CONSERVATIVE);
    SINCE
        .iter()
        .filter(|(_, since)| *since <= version)
        .map(|(event, _)| *event)
        .collect()
}

/// Why an installation cannot be written down.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// The CLI does not know the exec form of hooks.
    #[error(
        "Claude Code {0} is too old: its hooks take no arguments; update it to {FIRST_WITH_ARGS} or later (`claude update`)"
    )]
    TooOld(CliVersion),
    /// A path cannot stand in JSON.
    #[error("`{0}` is not UTF-8 and cannot be written into settings; choose another place")]
    NotText(String),
    /// A path depends on the folder it is read from.
    #[error("`{0}` is not an absolute path")]
    NotAbsolute(String),
}

/// The entries that an installation wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    pub(super) data_dir: String,
    command: String,
    relay_s: Option<u32>,
    events: Vec<HookName>,
}

/// One hook as it stands in the settings; the order of fields is the order in the file.
#[derive(Debug, Serialize)]
pub(super) struct Entry<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    command: &'a str,
    args: Vec<String>,
    timeout: u32,
    #[serde(rename = "async", skip_serializing_if = "std::ops::Not::not")]
    in_background: bool,
    #[serde(rename = "asyncRewake", skip_serializing_if = "std::ops::Not::not")]
    rewakes: bool,
}

impl Spec {
    /// The entries of the installation at `data_dir`, run by the program at `command` (both absolute), for a CLI of this version. With
    /// `relay_s` permission requests wait so many seconds for a person.
    ///
    /// # Errors
    /// See [`SpecError`].
    pub fn new(
        command: &Path,
        data_dir: &Path,
        version: Option<CliVersion>,
        relay_s: Option<u32>,
    ) -> Result<Self, SpecError> {
        let text = |path: &Path| match path.to_str() {
            _ if !path.is_absolute() => Err(SpecError::NotAbsolute(path.display().to_string())),
            Some(text) => Ok(text.to_owned()),
            None => Err(SpecError::NotText(path.display().to_string())),
        };
        if let Some(old) = version.filter(|v| *v < FIRST_WITH_ARGS) {
            return Err(SpecError::TooOld(old));
        }
        let known = events_known(version);
        let wanted = |event: &&HookName| match event {
            HookName::PermissionRequest => relay_s.is_some(),
            HookName::PostCompact => false,
            _ => true,
        };
        Ok(Self {
            data_dir: text(data_dir)?,
            command: text(command)?,
            relay_s,
            events: HookName::ALL
                .iter()
                .filter(|event| known.contains(event))
                .filter(wanted)
                .copied()
                .collect(),
        })
    }

    /// The events, in the order they are written.
    #[must_use]
    pub fn events(&self) -> &[HookName] {
        &self.events
    }

    /// The entry of this event, with a note of what was made for it.
    pub(super) fn entry(&self, event: HookName, made: &str) -> Entry<'_> {
        let mut args = vec![
            "hook".to_owned(),
            "--data-dir".to_owned(),
            self.data_dir.clone(),
            "--made".to_owned(),
            made.to_owned(),
        ];
        let mut timeout = timeout(event);
        if let (HookName::PermissionRequest, Some(wait)) = (event, self.relay_s) {
            args.extend(["--wait".to_owned(), wait.to_string()]);
            timeout = wait.saturating_add(5);
        }
        Entry {
            kind: "command",
            command: &self.command,
            args,
            timeout,
            in_background: event == HookName::PreToolUse,
            rewakes: event == HookName::FileChanged,
        }
    }
}

/// Seconds after which the CLI gives up on a hook.
const fn timeout(event: HookName) -> u32 {
    match event {
        HookName::SessionStart
        | HookName::UserPromptSubmit
        | HookName::Stop
        | HookName::CwdChanged
        | HookName::FileChanged
        | HookName::PermissionRequest => 5,
        HookName::PreToolUse
        | HookName::PostToolUse
        | HookName::PostToolUseFailure
        | HookName::StopFailure
        | HookName::Notification => 2,
        HookName::PreCompact | HookName::PostCompact | HookName::SessionEnd => 10,
    }
}
