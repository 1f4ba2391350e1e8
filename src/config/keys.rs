//! Every key, with its default and unit: for `config show`, for the reference, and to find misspelt ones.

/// One key of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// The key, with dots between the levels.
    pub path: &'static str,
    /// Its default as it would stand in the file.
    pub default: &'static str,
    /// What it means, with its unit.
    pub meaning: &'static str,
}

impl Key {
    /// The environment variable of the key.
    #[must_use]
    pub fn env(&self) -> String {
        let name = self.path.to_uppercase().replace('.', "_");
        format!("REMOTE_COLLAB_{name}")
    }
}

macro_rules! keys {
    ($($path:literal = $default:literal, $meaning:literal;)*) => {
        /// Every key.
        pub const KEYS: &[Key] = &[$(Key { path: $path, default: $default, meaning: $meaning },)*];
    };
}

keys! {
    "remote_api" = "null", "the hub's URL, if not the one of `login`";
    "local_api" = "\"http://127.0.0.1:9988\"", "where scripts reach the daemon on loopback; port 0 picks a free one";
    "session_id" = "\"auto\"", "a session that unaddressed mail prefers, or `auto`";
    "poll_interval" = "\"10s\"", "where WebSockets are blocked: how soon one is tried again beside the polls (doubling, 16 times that at most), and how often mail is asked for where polls may not wait";
    "idle_threshold" = "\"60s\"", "quiet time before a closed session is resumed headless";
    "approval" = "\"by_trust\"", "`by_trust`: the sender's trust decides which tasks wait for a person; `always`: all do";
    "claude_bin" = "null", "the Claude Code CLI, if not the first `claude` of PATH";
    "ca_file" = "null", "PEM certificates trusted beside the system's, for a hub with a private CA";
    "proxy" = "null", "`none`, or the http(s) proxy to the hub, which opens tunnels by CONNECT; else `HTTPS_PROXY`, `ALL_PROXY`";
    "features.memory_injection" = "true", "memory at a session's start";
    "features.message_notification" = "true", "messages into sessions; off holds them";
    "features.remote_task_execution" = "true", "tasks; off holds them";
    "doors.inbox" = "true", "lines to a session's own socket, where a probe proved it";
    "doors.doorbell" = "true", "the watched file that wakes an idle session";
    "doors.headless" = "true", "`claude -p` when no live process owns the session";
    "doors.channel" = "false", "the MCP server's channel";
    "runs.concurrent" = "2", "runs at a time";
    "runs.timeout" = "\"30m\"", "wall clock of a run";
    "runs.max_turns" = "50", "model turns of a run";
    "runs.max_budget_usd" = "5.0", "cost of a run, US dollars";
    "runs.permission_mode" = "\"acceptEdits\"", "`manual`, `acceptEdits`, `plan`, `dontAsk` or `bypassPermissions`";
    "runs.allowed_tools" = "[]", "tools that need no permission, as `--allowedTools` takes them";
    "runs.model" = "null", "the model of runs, if not the CLI's default";
    "runs.env_file" = "null", "a file (0600) of NAME=value lines for the children's environment";
    "runs.workspace" = "\"same\"", "`same`: in the project's folder; `worktree`: in a git worktree of its own";
    "memory.tokens" = "2000", "memory given at a session's start, tokens at most";
}

/// Below `projects.<name>.`: the keys that may differ between projects.
pub(super) const PER_PROJECT: &[&str] = &["approval", "features.", "runs."];

/// The key that was probably meant.
pub(super) fn nearest(wrong: &str) -> Option<&'static str> {
    KEYS.iter()
        .map(|k| (distance(wrong, k.path), k.path))
        .min()
        .filter(|(d, _)| *d <= 3)
        .map(|(_, path)| path)
}

/// Edits between two short texts.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut left_above = row.first().copied().unwrap_or(0);
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
        for (j, y) in b.iter().enumerate() {
            let above = row.get(j + 1).copied().unwrap_or(0);
            let left = row.get(j).copied().unwrap_or(0);
            let best = (left_above + usize::from(x != *y))
                .min(above + 1)
                .min(left + 1);
            if let Some(cell) = row.get_mut(j + 1) {
                *cell = best;
            }
            left_above = above;
        }
    }
    row.last().copied().unwrap_or(0)
}
