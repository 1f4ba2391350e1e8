//! The shell around the edits: read, compute, write in one step, and never over somebody else's change.
//!
//! The new content goes to a temporary file in the same folder and takes the old one's place by a rename, so that no reader sees
//! half a file and a full disk changes nothing. Right before, the file is read again: if another program wrote
//! in between, the edit is computed anew from what it wrote, a few times at most. On Linux the two files change
//! places in one step, so that what was replaced can be looked at once more, and put back if it was not what was
//! read. A link is followed, and its target is what gets replaced; mode and owner stay.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use super::edit::{Edit, SettingsError};
use crate::domain::WallMs;

/// Bytes of a settings file.
const MAX_FILE: u64 = 8 << 20;
/// Attempts against a concurrent writer.
const MAX_TRIES: u32 = 5;
/// Backups that are kept of one file.
const MAX_BACKUPS: usize = 10;

/// Why a settings file was left as it is.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Its content does not allow the edit.
    #[error("{path}: {source}")]
    Settings {
        /// The file.
        path: PathBuf,
        /// Why.
        source: SettingsError,
    },
    /// It may not be written.
    #[error(
        "{path} is read-only; make it writable, choose another scope with --scope, or load the hooks as a plugin"
    )]
    ReadOnly {
        /// The file.
        path: PathBuf,
    },
    /// It is too large, or no text.
    #[error("{path} is {what}; nothing was changed")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Another program kept writing it.
    #[error(
        "{path} was changed by another program {MAX_TRIES} times in a row; nothing was changed here: try again"
    )]
    Contended {
        /// The file.
        path: PathBuf,
    },
    /// The system refused.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Which of the CLI's settings files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The user's own, for every project: `settings.json` in the CLI's folder.
    User,
    /// The project's, shared with others: `.claude/settings.json`; paths of this machine do not belong there.
    Project,
    /// The project's on this machine: `.claude/settings.local.json`.
    Local,
}

impl Scope {
    /// The file, given the CLI's folder and the project's.
    #[must_use]
    pub fn file(self, config: &Path, project: &Path) -> PathBuf {
        match self {
            Self::User => config.join("settings.json"),
            Self::Project => project.join(".claude/settings.json"),
            Self::Local => project.join(".claude/settings.local.json"),
        }
    }
}

/// What was done to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// The file that was looked at: the target, if a link was named.
    pub path: PathBuf,
    /// What was done.
    pub edit: Edit,
    /// The copy of what stood there before, if the file was there and was changed.
    pub backup: Option<PathBuf>,
}

/// Applies an edit to the settings file at `path`; the edit sees the text, or `None` if there is no file. The content
/// before is kept in `backups` (made if missing) under the file's name and the date of `now`.
///
/// # Errors
/// See [`FileError`]; the file is untouched then.
pub fn apply(
    path: &Path,
    backups: Option<&Path>,
    now: WallMs,
    mut edit: impl FnMut(Option<&str>) -> Result<Edit, SettingsError>,
) -> Result<Applied, FileError> {
    let path = target(path)?;
    let io = |source: io::Error| match source.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            FileError::ReadOnly { path: path.clone() }
        }
        _ => FileError::Io {
            path: path.clone(),
            source,
        },
    };
    for _ in 0..MAX_TRIES {
        let before = read(&path)?;
        let edit = edit(before.as_deref()).map_err(|source| FileError::Settings {
            path: path.clone(),
            source,
        })?;
        let mut applied = Applied {
            path: path.clone(),
            edit,
            backup: None,
        };
        if applied.edit == Edit::Unchanged {
            return Ok(applied);
        }
        if let Some(before) = &before {
            if fs::metadata(&path).map_err(io)?.permissions().readonly() {
                return Err(FileError::ReadOnly { path });
            }
            applied.backup = backups
                .map(|dir| backup(dir, &path, before, now))
                .transpose()
                .map_err(io)?;
        }
        let done = match &applied.edit {
            Edit::Write(text) => replace(&path, before.as_deref(), text).map_err(io)?,
            Edit::Remove => {
                let same = read(&path)? == before;
                if same {
                    fs::remove_file(&path).map_err(io)?;
                }
                same
            }
            Edit::Unchanged => true,
        };
        if done {
            return Ok(applied);
        }
    }
    Err(FileError::Contended { path })
}

/// The file itself, where a link (or a chain of them) was named.
fn target(path: &Path) -> Result<PathBuf, FileError> {
    let mut path = path.to_path_buf();
    for _ in 0..40 {
        let Ok(link) = fs::read_link(&path) else {
            return Ok(path);
        };
        path = match path.parent() {
            Some(dir) => dir.join(link),
            None => link,
        };
    }
    Err(FileError::Unreadable {
        path,
        what: "a link that leads in a circle",
    })
}

fn read(path: &Path) -> Result<Option<String>, FileError> {
    let unreadable = |what| FileError::Unreadable {
        path: path.to_path_buf(),
        what,
    };
    let io = |source| FileError::Io {
        path: path.to_path_buf(),
        source,
    };
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(io(e)),
    };
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1)
        .read_to_end(&mut bytes)
        .map_err(io)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(unreadable("too large for a settings file"));
    }
    String::from_utf8(bytes)
        .map(Some)
        .map_err(|_| unreadable("not UTF-8"))
}

/// Puts `text` into the place of `before`; false if something else stands there by now.
fn replace(path: &Path, before: Option<&str>, text: &str) -> io::Result<bool> {
    let dir = path.parent().unwrap_or(Path::new("."));
    if before.is_none() {
        fs::create_dir_all(dir)?;
    }
    let mut tmp = new_file(dir)?;
    tmp.write_all(text.as_bytes())?;
    if before.is_some() {
        keep_owner(path, tmp.as_file())?;
    }
    tmp.as_file().sync_all()?;
    match before {
        None => match tmp.persist_noclobber(path) {
            Ok(_) => Ok(true),
            Err(e) if e.error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(e) => Err(e.error),
        },
        Some(before) => {
            if fs::read(path).ok().as_deref() != Some(before.as_bytes()) {
                return Ok(false);
            }
            swap(tmp, path, before)
        }
    }
}

/// Puts the new file into the old one's place; false, with the old one back, if that had changed in the meantime.
fn swap(new: tempfile::NamedTempFile, path: &Path, before: &str) -> io::Result<bool> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        let exchange = || renameat_with(CWD, new.path(), CWD, path, RenameFlags::EXCHANGE);
        // A file system without this step gets the plain rename below.
        if exchange().is_ok() {
            let same = fs::read(new.path()).ok().as_deref() == Some(before.as_bytes());
            if !same {
                exchange()?;
            }
            return Ok(same);
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = before;
    new.persist(path)?;
    Ok(true)
}

/// A temporary file with the rights that a new file of the user would get.
fn new_file(dir: &Path) -> io::Result<tempfile::NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".settings-").suffix(".tmp");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(dir)
}

/// Gives the new file the old one's mode, and its owner where that is possible.
fn keep_owner(old: &Path, new: &fs::File) -> io::Result<()> {
    let meta = fs::metadata(old)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        let now = new.metadata()?;
        if (now.uid(), now.gid()) != (meta.uid(), meta.gid()) {
            // Without the right to it the file is the user's all the same.
            drop(std::os::unix::fs::fchown(
                new,
                Some(meta.uid()),
                Some(meta.gid()),
            ));
        }
    }
    new.set_permissions(meta.permissions())
}

/// Keeps a copy; the same content is not kept twice in a second, and only the newest few stay.
fn backup(dir: &Path, path: &Path, text: &str, now: WallMs) -> io::Result<PathBuf> {
    fs::create_dir_all(dir)?;
    let flat: String = path
        .to_string_lossy()
        .chars()
        .map(|c| {
            if c.is_alphanumeric() || c == '.' {
                c
            } else {
                '-'
            }
        })
        .collect();
    // Names of long paths are cut at the front: their end tells more.
    let skip = flat.chars().count().saturating_sub(60);
    let name: String = flat.chars().skip(skip).collect();
    let file = dir.join(format!("{name}.{}.bak", stamp(now)));
    let mut tmp = tempfile::NamedTempFile::new_in(dir)?;
    tmp.write_all(text.as_bytes())?;
    tmp.persist(&file)?;
    let mut old: Vec<PathBuf> = fs::read_dir(dir)?
        .filter_map(|e| Some(e.ok()?.path()))
        .filter(|p| {
            let n = p.file_name().map(|n| n.to_string_lossy().into_owned());
            n.is_some_and(|n| n.starts_with(&format!("{name}.")) && n.ends_with(".bak"))
        })
        .collect();
    old.sort();
    for extra in old.iter().rev().skip(MAX_BACKUPS) {
        drop(fs::remove_file(extra));
    }
    Ok(file)
}

/// UTC date and time as `20261130T160501Z`.
fn stamp(now: WallMs) -> String {
    let seconds = now.0.div_euclid(1000);
    let (days, of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days since 0000-03-01, in eras of 400 years: the civil calendar from the day count.
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + i64::from(month <= 2);
    let (h, m, s) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}{month:02}{day:02}T{h:02}{m:02}{s:02}Z")
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
