//! An interactive session of the real CLI, driven through its terminal as a person would.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::SOON;
use super::claude::{ClaudeHome, LiveSession, claude_bin};
use super::fake_anthropic::{FakeAnthropic, Kind, Request};
use super::tmux::Tmux;

/// The flag without which the CLI starts in a mode that asks a server about each step.
const MODE_FLAG: &str = "--permission-mode";

/// How the prompt box shows a text of more than some 800 characters, without blanks.
const COLLAPSED: &str = "[Pastedtext#";

/// The longest prompt to be typed, in bytes: of more at once, the CLI takes each burst for a paste.
const MAX_TYPED: usize = 500;

/// One open session; dropping it closes its terminal.
#[derive(Debug)]
pub(crate) struct Interactive<'h> {
    home: &'h ClaudeHome,
    terminal: Tmux,
}

impl<'h> Interactive<'h> {
    /// Opens a session in a folder and waits until it takes prompts.
    ///
    /// # Panics
    /// When it does not in time, with the screen: a dialog may stand in the way.
    pub(crate) async fn start(home: &'h ClaudeHome, folder: &Path, args: &[&str]) -> Self {
        let session = Self::launch(home, folder, args).await;
        session.wait_until_ready().await;
        session
    }

    /// Opens a session without waiting, for tests of what may stand in its way.
    pub(crate) async fn launch(home: &'h ClaudeHome, folder: &Path, args: &[&str]) -> Self {
        let binary = claude_bin();
        let mut program: Vec<&OsStr> = vec![binary.as_os_str()];
        if !args.contains(&MODE_FLAG) {
            program.extend([OsStr::new(MODE_FLAG), OsStr::new("manual")]);
        }
        program.extend(args.iter().map(OsStr::new));
        let vars = home.vars().iter().cloned();
        let terminal = Tmux::start::<OsString>(folder, vars, &program).await;
        Self { home, terminal }
    }

    /// Waits until the prompt box is drawn and the session is registered as idle.
    pub(crate) async fn wait_until_ready(&self) {
        self.terminal
            .wait_for_screen(|screen| prompt_box(screen).is_some(), SOON)
            .await;
        self.wait_for_status("idle", SOON).await;
    }

    /// The terminal, for keys and screens.
    pub(crate) fn terminal(&self) -> &Tmux {
        &self.terminal
    }

    /// The CLI's process.
    pub(crate) fn pid(&self) -> i32 {
        self.terminal.program().pid()
    }

    /// Its entry in the registry of live sessions; `None` before it wrote one and after its end.
    pub(crate) fn live(&self) -> Option<LiveSession> {
        self.home
            .live_sessions()
            .into_iter()
            .find(|session| session.pid() == self.pid())
    }

    /// The session that it shows now.
    ///
    /// # Panics
    /// When it is not registered.
    pub(crate) fn session_id(&self) -> String {
        self.live()
            .expect("an open session is registered")
            .session_id()
            .to_owned()
    }

    /// Waits until the registry shows this status: `busy`, `idle` or `waiting`.
    ///
    /// # Panics
    /// When it does not in time.
    #[track_caller]
    pub(crate) fn wait_for_status(
        &self,
        status: &str,
        within: Duration,
    ) -> impl Future<Output = LiveSession> {
        let fits =
            move |session: &LiveSession| session.pid() == self.pid() && session.status() == status;
        self.home.wait_for_live(fits, within)
    }

    /// Types a prompt, and waits for its request and for the end of its turn.
    ///
    /// # Panics
    /// When a step does not happen in time.
    pub(crate) async fn ask(&self, api: &FakeAnthropic, prompt: &str) -> Arc<Request> {
        let (requests, turns) = (api.requests().len(), self.turns());
        self.type_prompt(prompt).await;
        let asked = |request: &Request| {
            request.number > requests && request.kind == Kind::Main && request.contains(prompt)
        };
        let request = api.wait_for(asked, SOON).await;
        self.wait_for_turns(turns + 1).await;
        request
    }

    /// How many turns of its session are over, by its transcript.
    pub(crate) fn turns(&self) -> usize {
        ended_turns(&self.home.transcript(&self.session_id()))
    }

    /// Waits until so many turns of its session are over, the `Stop` hooks with them.
    ///
    /// # Panics
    /// When they are not in time.
    pub(crate) async fn wait_for_turns(&self, turns: usize) {
        let enough = |entries: Vec<Value>| (ended_turns(&entries) >= turns).then_some(());
        self.home
            .wait_on_transcript(&self.session_id(), enough, SOON)
            .await;
    }

    /// Types a prompt and sends it off, a long one or several lines as a paste; a busy session queues it.
    ///
    /// # Panics
    /// When the prompt box does not take it, or does not let it go.
    pub(crate) async fn type_prompt(&self, prompt: &str) {
        let typed = squeeze(prompt);
        let tail: String = typed
            .chars()
            .skip(typed.chars().count().saturating_sub(30))
            .collect();
        let holds = |screen: &str| {
            prompt_box(screen).is_some_and(|text| text.ends_with(&tail) || text.contains(COLLAPSED))
        };
        if prompt.contains('\n') || prompt.len() > MAX_TYPED {
            self.terminal.paste(prompt).await;
        } else {
            self.terminal.type_text(prompt).await;
        }
        // Enter within the same burst of bytes would be taken for a line break of the text.
        self.terminal.wait_for_screen(holds, SOON).await;
        self.terminal.send_keys(&["Enter"]).await;
        self.terminal
            .wait_for_screen(|screen| !holds(screen), SOON)
            .await;
    }

    /// Waits until the screen shows a text, blanks and line breaks left aside.
    ///
    /// # Panics
    /// When it does not in time, with the screen.
    #[track_caller]
    pub(crate) fn wait_for_text(
        &self,
        text: &str,
        within: Duration,
    ) -> impl Future<Output = String> {
        let text = squeeze(text);
        self.terminal
            .wait_for_screen(move |screen| squeeze(screen).contains(&text), within)
    }

    /// Ends the session with `/exit` and returns the CLI's exit status.
    ///
    /// # Panics
    /// When it does not end in time.
    pub(crate) async fn exit(self) -> i32 {
        self.type_prompt("/exit").await;
        self.terminal.wait_until_ended(SOON).await
    }

    /// Sends a signal to the CLI and waits for its end; returns 128 and the signal's number if that did it.
    ///
    /// # Panics
    /// When it does not end in time.
    pub(crate) async fn kill(self, signal: Signal) -> i32 {
        self.terminal.program().signal(signal);
        self.terminal.wait_until_ended(SOON).await
    }

    /// Closes the terminal under the session, as a person closes a window, and waits for its end.
    ///
    /// # Panics
    /// When it does not end in time.
    pub(crate) async fn hang_up(mut self) {
        self.terminal.close();
        assert!(
            self.terminal.program().ended(SOON).await,
            "it does not end without its terminal"
        );
    }
}

/// How many turns a transcript tells the end of.
fn ended_turns(entries: &[Value]) -> usize {
    entries
        .iter()
        .filter(|entry| entry["subtype"] == "turn_duration")
        .count()
}

/// What stands in the prompt box, without blanks: between the last two rules on the screen.
fn prompt_box(screen: &str) -> Option<String> {
    let lines: Vec<&str> = screen.lines().collect();
    let is_rule = |line: &&str| line.starts_with("────");
    let below = lines.iter().rposition(is_rule)?;
    let above = lines[..below].iter().rposition(is_rule)?;
    Some(squeeze(lines[above + 1..below].concat().strip_prefix('❯')?))
}

/// A text without blanks, so that a wrapped line reads like a whole one.
fn squeeze(text: &str) -> String {
    text.split_whitespace().collect()
}
