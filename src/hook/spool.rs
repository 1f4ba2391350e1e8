//! Events of the time the daemon was away: `<data dir>/daemon/spool/hooks.jsonl`, one [`HookCall`] a line.
//!
//! Each line is one write to a file opened for appending, so that hooks of several sessions do not tear each other's.
//! Nothing is created but the file itself: without a spool folder there never was a daemon here.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;

use serde::Serialize;
use serde_json::value::RawValue;

use super::Head;
use crate::local::HookCall;

/// The spool's file name.
pub const SPOOL_FILE: &str = "hooks.jsonl";
/// Bytes at which the spool takes no more.
pub const MAX_SPOOL: u64 = 4 << 20;
/// Bytes of one line; of a larger event only its head is kept.
pub const MAX_LINE: usize = 64 << 10;

/// What is kept of an event that is too large.
#[derive(Serialize)]
struct Short<'a> {
    session_id: &'a serde_json::Value,
    hook_event_name: &'a serde_json::Value,
    transcript_path: Option<&'a RawValue>,
    cwd: Option<&'a RawValue>,
}

/// Whether the daemon would want to know of it later.
fn lasting(event: &str) -> bool {
    !matches!(
        event,
        "PreToolUse" | "PostToolUse" | "PostToolUseFailure" | "FileChanged" | "PermissionRequest"
    )
}

/// Keeps the event if it lasts and there is room; says nothing of failures.
pub(super) fn keep(dir: &Path, event: &str, call: &HookCall<&RawValue>, head: &Head<'_>) {
    if lasting(event)
        && let Some(line) = line(call, head)
    {
        drop(write(&dir.join(SPOOL_FILE), &line, true));
    }
}

fn line(call: &HookCall<&RawValue>, head: &Head<'_>) -> Option<Vec<u8>> {
    let mut line = serde_json::to_vec(call).ok()?;
    if line.len() >= MAX_LINE {
        let short = Short {
            session_id: &head.session_id,
            hook_event_name: &head.hook_event_name,
            transcript_path: head.transcript_path,
            cwd: head.cwd,
        };
        line = serde_json::to_vec(&HookCall {
            input: short,
            pid: call.pid,
            entrypoint: call.entrypoint.clone(),
            attended: call.attended,
            messaging_socket: call.messaging_socket.clone(),
            run: call.run.clone(),
            at: call.at,
        })
        .ok()?;
    }
    // The input is kept as it was read; a line break in it can only stand between tokens.
    for byte in &mut line {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
    line.push(b'\n');
    (line.len() <= MAX_LINE).then_some(line)
}

/// Writes a file that only its owner can read: anew, or one line at its end while it is below [`MAX_SPOOL`].
///
/// Anew means in place: a file that is emptied first is flushed by some file systems (ext4) as soon as it is closed, and
/// a hook would wait for the disk.
pub(super) fn write(path: &Path, bytes: &[u8], append: bool) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.create(true);
    if append {
        options.append(true);
    } else {
        options.write(true).truncate(false);
    }
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    let (old, new) = (file.metadata()?.len(), bytes.len() as u64);
    if append && old.saturating_add(new) > MAX_SPOOL {
        return Ok(());
    }
    file.write_all(bytes)?;
    if !append && old > new {
        file.set_len(new)?;
    }
    Ok(())
}

/// Makes a folder open to its owner alone, with its parents.
pub(super) fn create_dir(dir: &Path) -> io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)
}
