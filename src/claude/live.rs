//! The CLI's own list of live sessions: `<config dir>/sessions/<pid>.json`, one file per process.
//!
//! The file follows the session at once: `status` its turns, `sessionId` a `/clear`. A killed process leaves its file
//! behind, and its pid can be given to another, so a file counts only if a process of that pid runs, started when the file says,
//! and is of the same user.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::process::ProcessTable;
use crate::domain::{Activity, SessionId, WallMs};

/// Files that are looked at.
const MAX_FILES: usize = 2_048;
/// Bytes of one file.
const MAX_BYTES: u64 = 64 << 10;

/// A session as the CLI lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveSession {
    /// Its process.
    pub pid: u32,
    /// When that process started, see [`super::Process::start`].
    pub proc_start: String,
    /// Its present id.
    pub session_id: SessionId,
    /// The folder it was opened in.
    pub cwd: Option<PathBuf>,
    /// `cli` for a terminal, `sdk-cli` for `-p` and IDEs.
    pub entrypoint: Option<String>,
    /// `interactive`, `bg`, …; a one-shot `-p` says `interactive` too.
    pub kind: Option<String>,
    /// What it does.
    pub activity: Activity,
    /// What a waiting session waits for, such as `permission prompt`.
    pub waiting_for: Option<String>,
    /// Its inbox.
    pub messaging_socket: Option<PathBuf>,
    /// Its name for people.
    pub name: Option<String>,
    /// The CLI's version.
    pub version: Option<String>,
    /// Since when it does what it does, Unix ms.
    pub since: Option<WallMs>,
}

impl LiveSession {
    /// Reads one file; `None` if it does not say which session and process it is about.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let v: Value = serde_json::from_slice(bytes).ok()?;
        let text = |key: &str| v.get(key)?.as_str().map(str::to_owned);
        let time = |key: &str| v.get(key)?.as_i64().map(WallMs);
        let proc_start = match v.get("procStart")? {
            Value::String(s) => s.clone(),
            Value::Number(n) => n.to_string(),
            _ => return None,
        };
        Some(Self {
            pid: v.get("pid")?.as_u64()?.try_into().ok()?,
            proc_start,
            session_id: text("sessionId")?.parse().ok()?,
            cwd: text("cwd").map(PathBuf::from),
            entrypoint: text("entrypoint"),
            kind: text("kind"),
            activity: match text("status").as_deref() {
                Some("busy") => Activity::Busy,
                Some("idle") => Activity::Idle,
                Some("waiting") => Activity::Waiting,
                _ => Activity::Unknown,
            },
            waiting_for: text("waitingFor"),
            messaging_socket: text("messagingSocketPath").map(PathBuf::from),
            name: text("name"),
            version: text("version"),
            since: time("statusUpdatedAt").or_else(|| time("updatedAt")),
        })
    }

    /// Whether a person sits at it, as far as the file tells.
    #[must_use]
    pub fn is_interactive(&self) -> bool {
        self.entrypoint.as_deref() == Some("cli")
    }
}

/// What a look at the list found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LiveScan {
    /// Live sessions, by pid.
    pub sessions: Vec<LiveSession>,
    /// Files of processes that are gone.
    pub stale: usize,
    /// Files that say too little, or are of another user's process.
    pub ignored: usize,
}

/// The CLI's folder: `CLAUDE_CONFIG_DIR`, else `~/.claude`.
#[must_use]
pub fn config_dir(env: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    env("CLAUDE_CONFIG_DIR")
        .filter(|v| !v.is_empty())
        .map(PathBuf::from)
        .or_else(|| env("HOME").map(|home| Path::new(&home).join(".claude")))
}

/// Lists the live sessions of user `uid` under the CLI's folder; none if it keeps no list.
///
/// # Errors
/// When the list is there and cannot be read.
pub fn live_sessions(config: &Path, uid: u32, table: &dyn ProcessTable) -> io::Result<LiveScan> {
    let mut scan = LiveScan::default();
    let dir = match fs::read_dir(config.join("sessions")) {
        Ok(dir) => dir,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(scan),
        Err(e) => return Err(e),
    };
    for entry in dir.take(MAX_FILES) {
        let path = entry?.path();
        let Some(pid) = pid_of(&path) else {
            continue;
        };
        let Some(process) = table.look(pid) else {
            scan.stale += 1;
            continue;
        };
        match read(&path).as_deref().and_then(LiveSession::parse) {
            Some(live) if live.pid == pid && process.uid == uid => {
                if process.start == live.proc_start {
                    scan.sessions.push(live);
                } else {
                    scan.stale += 1;
                }
            }
            _ => scan.ignored += 1,
        }
    }
    scan.sessions.sort_by_key(|s| s.pid);
    Ok(scan)
}

/// The live session of this process, which hooks name in `CLAUDE_PID`.
#[must_use]
pub fn live_session(
    config: &Path,
    uid: u32,
    pid: u32,
    table: &dyn ProcessTable,
) -> Option<LiveSession> {
    let process = table.look(pid)?;
    let live = LiveSession::parse(&read(&config.join(format!("sessions/{pid}.json")))?)?;
    (live.pid == pid && process.uid == uid && process.start == live.proc_start).then_some(live)
}

fn pid_of(path: &Path) -> Option<u32> {
    if path.extension()? != "json" {
        return None;
    }
    path.file_stem()?.to_str()?.parse().ok()
}

fn read(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = fs::File::open(path).ok()?;
    file.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::process::Process;
    use super::*;
    use serde_json::json;

    #[derive(Debug)]
    struct Table(Vec<(u32, &'static str, u32)>);

    impl ProcessTable for Table {
        fn look(&self, pid: u32) -> Option<Process> {
            let (pid, start, uid) = *self.0.iter().find(|p| p.0 == pid)?;
            Some(Process {
                pid,
                parent: 1,
                start: start.to_owned(),
                uid,
                name: "claude".to_owned(),
            })
        }
    }

    fn entry(pid: u32, start: &str) -> Value {
        json!({"pid": pid, "procStart": start, "sessionId": SessionId::from_u128(pid.into()),
            "status": "waiting", "waitingFor": "permission prompt", "entrypoint": "cli", "kind": "interactive",
            "cwd": "/p", "messagingSocketPath": "/run/x.sock", "statusUpdatedAt": 5, "new": [1]})
    }

    #[test]
    fn only_the_same_process_of_the_same_user_is_a_live_session() {
        let dir = tempfile::tempdir().unwrap();
        let sessions = dir.path().join("sessions");
        fs::create_dir(&sessions).unwrap();
        for (pid, start) in [(10, "7"), (11, "7"), (12, "7"), (13, "7")] {
            fs::write(
                sessions.join(format!("{pid}.json")),
                entry(pid, start).to_string(),
            )
            .unwrap();
        }
        fs::write(sessions.join("14.json"), entry(99, "7").to_string()).unwrap();
        fs::write(sessions.join("15.json"), "{ torn").unwrap();
        fs::write(sessions.join("notes.txt"), "x").unwrap();
        let all = [
            (10, "7", 1),
            (11, "8", 1),
            (13, "7", 2),
            (14, "7", 1),
            (15, "7", 1),
        ];
        let table = Table(all.to_vec());
        let scan = live_sessions(dir.path(), 1, &table).unwrap();
        assert_eq!(scan.sessions.len(), 1);
        assert_eq!((scan.stale, scan.ignored), (2, 3));
        let live = &scan.sessions[0];
        assert_eq!((live.pid, live.activity), (10, Activity::Waiting));
        assert!(live.is_interactive());
        assert_eq!(live_session(dir.path(), 1, 10, &table).as_ref(), Some(live));
        assert_eq!(live_session(dir.path(), 1, 11, &table), None);
    }

    #[test]
    fn no_list_means_no_sessions() {
        let dir = tempfile::tempdir().unwrap();
        let scan = live_sessions(dir.path(), 1, &Table(vec![])).unwrap();
        assert_eq!(scan, LiveScan::default());
    }

    #[test]
    fn an_entry_without_its_process_or_session_is_no_session() {
        for key in ["pid", "procStart", "sessionId"] {
            let mut v = entry(3, "1");
            v.as_object_mut().unwrap().remove(key);
            assert_eq!(LiveSession::parse(v.to_string().as_bytes()), None, "{key}");
        }
        let mut v = entry(3, "1");
        v["status"] = "dreaming".into();
        let live = LiveSession::parse(v.to_string().as_bytes()).unwrap();
        assert_eq!(live.activity, Activity::Unknown);
    }

    #[test]
    fn the_clis_folder_can_be_moved() {
        let env = |k: &str| match k {
            "CLAUDE_CONFIG_DIR" => Some("/c".into()),
            _ => Some(OsString::from("/h")),
        };
        assert_eq!(config_dir(env), Some("/c".into()));
        let home = |k: &str| (k == "HOME").then(|| "/h".into());
        assert_eq!(config_dir(home), Some("/h/.claude".into()));
    }
}
