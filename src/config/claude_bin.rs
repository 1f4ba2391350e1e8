//! Finds the Claude Code CLI and asks it for its version.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long `claude --version` may take.
const VERSION_TIMEOUT: Duration = Duration::from_secs(10);

/// The CLI that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaudeBin {
    /// Its absolute path: under a service manager `PATH` is another one.
    pub path: PathBuf,
}

/// Why there is no CLI.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClaudeBinError {
    /// The configured path is no program.
    #[error("`claude_bin` is `{}`, which is no program; correct it, or remove it to use PATH", .0.display())]
    NotAProgram(PathBuf),
    /// `PATH` has none.
    #[error("no `claude` in PATH; install Claude Code, or set `claude_bin` to its absolute path")]
    NotFound,
    /// It does not say its version.
    #[error("`{} --version` failed: {detail}", path.display())]
    NoVersion {
        /// The program.
        path: PathBuf,
        /// What happened.
        detail: String,
    },
}

/// The configured CLI, else the first `claude` in `search` (the value of `PATH`), as an absolute path. Links are kept: an
/// update replaces what they point to.
///
/// # Errors
/// When there is none.
pub fn find_claude(
    configured: Option<&Path>,
    search: Option<&OsStr>,
) -> Result<ClaudeBin, ClaudeBinError> {
    if let Some(path) = configured {
        if !is_program(path) {
            return Err(ClaudeBinError::NotAProgram(path.to_owned()));
        }
        return Ok(ClaudeBin {
            path: path.to_owned(),
        });
    }
    let name = format!("claude{}", std::env::consts::EXE_SUFFIX);
    std::env::split_paths(search.unwrap_or_default())
        .filter(|dir| dir.is_absolute())
        .map(|dir| dir.join(&name))
        .find(|path| is_program(path))
        .map(|path| ClaudeBin { path })
        .ok_or(ClaudeBinError::NotFound)
}

impl ClaudeBin {
    /// The version as the program tells it (`2.1.332`); blocks, at most ten seconds.
    ///
    /// # Errors
    /// When it does not start, fails or takes too long.
    pub fn version(&self) -> Result<String, ClaudeBinError> {
        let failed = |detail: String| ClaudeBinError::NoVersion {
            path: self.path.clone(),
            detail,
        };
        let mut child = Command::new(&self.path)
            .arg("--version")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| failed(e.to_string()))?;
        let began = Instant::now();
        loop {
            match child.try_wait() {
                Ok(Some(_)) => break,
                Ok(None) if began.elapsed() < VERSION_TIMEOUT => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Ok(None) => {
                    // It may have ended in between; either way it is gone after this.
                    drop(child.kill());
                    drop(child.wait());
                    return Err(failed("no answer within 10 s".into()));
                }
                Err(e) => return Err(failed(e.to_string())),
            }
        }
        let output = child
            .wait_with_output()
            .map_err(|e| failed(e.to_string()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text.split_whitespace().next().unwrap_or_default();
        if !output.status.success() || !version.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(failed(format!("{}, `{}`", output.status, text.trim())));
        }
        Ok(version.to_owned())
    }
}

fn is_program(path: &Path) -> bool {
    let Ok(meta) = std::fs::metadata(path) else {
        return false;
    };
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        meta.is_file() && meta.permissions().mode() & 0o111 != 0
    }
    #[cfg(not(unix))]
    meta.is_file()
}
