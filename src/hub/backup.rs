//! `hub backup` and `hub restore`.
//!
//! A backup is one private file with the store and the signing keys: enough to be this hub again, and therefore to be
//! kept like a key. It is written beside its place and renamed into it whole; nothing is overwritten unasked.
//!
//! A restore needs the hub stopped, which the folder's lock decides. It checks the backup first; then it prepares the
//! new store and keys in `restoring/`, and only when that is complete and on disk does it move the old ones aside, into
//! `replaced-<time>/`, and the new ones into their place. A restore that was cut off in between is finished by the next
//! process that opens the folder, see [`finish`]; one that was cut off before is forgotten.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::HubError;
use super::clock::wall;
use super::lock::Home;
use super::problem::{ApiError, ApiResult};
use super::state::Hub;
use super::store::{StoreError, backup};
use crate::auth::keys::{check_private, make_private_dir};
use crate::domain::Code;

/// Where a restore prepares, within the hub's folder.
const RESTORING: &str = "restoring";
/// Says in there that all is complete; its text is the name of the folder for what is replaced.
const READY: &str = "ready";
/// What makes a hub, besides the files that SQLite lays beside the store.
const PARTS: [&str; 2] = ["hub.db", "keys"];
/// What belongs to the replaced store and must not stand beside the new one.
const BESIDE: [&str; 3] = ["hub.db-wal", "hub.db-shm", "life"];

impl Hub {
    /// Writes a backup of this hub, which goes on meanwhile → `{file, bytes, …}`.
    pub(crate) async fn backup(&self, file: &Path, force: bool) -> ApiResult<Value> {
        let refuse = |why: String| ApiError::field("file", why);
        let dir = file
            .parent()
            .filter(|d| file.is_absolute() && d.is_dir() && file.file_name().is_some())
            .ok_or_else(|| {
                refuse("must be an absolute path of a file in a folder that exists".to_owned())
            })?;
        match std::fs::symlink_metadata(file) {
            Ok(meta) if !meta.is_file() => {
                return Err(refuse(format!("{} is not a file", file.display())));
            }
            Ok(_) if !force => return Err(exists(file)),
            Ok(_) | Err(_) => {}
        }
        // Named temporary files are created with mode 0600.
        let temporary = tempfile::Builder::new()
            .prefix(".hub-backup-")
            .tempfile_in(dir)
            .map_err(|e| io(dir, &e))?;
        let keys = self.with_keys(crate::auth::HubKeys::export);
        let contents = self
            .store
            .backup(temporary.path(), move || keys, wall())
            .await
            .map_err(|e| told(&e))?;
        let placed = if force {
            temporary.persist(file)
        } else {
            temporary.persist_noclobber(file)
        };
        placed.map_err(|e| match e.error.kind() {
            std::io::ErrorKind::AlreadyExists => exists(file),
            _ => io(file, &e.error),
        })?;
        sync(dir).map_err(|e| io(dir, &e))?;
        let bytes = std::fs::metadata(file).map_or(0, |m| m.len());
        tracing::info!(file = %file.display(), bytes, "a backup was written");
        let mut answer = json!(contents);
        answer["file"] = json!(file);
        answer["bytes"] = json!(bytes);
        Ok(answer)
    }
}

fn exists(file: &Path) -> ApiError {
    ApiError::new(Code::Conflict, format!("{} exists", file.display()))
        .hint("choose another name, or overwrite it with --force")
}

/// The owner is told what the store says, with its path.
fn told(e: &StoreError) -> ApiError {
    let title = match e {
        StoreError::DiskFull => "the disk is full: no backup was written".to_owned(),
        other => format!("no backup was written: {other}"),
    };
    ApiError::new(e.code(), title)
}

fn io(path: &Path, e: &std::io::Error) -> ApiError {
    let code = match e.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Code::DiskFull,
        _ => Code::StoreUnavailable,
    };
    ApiError::new(
        code,
        format!("no backup was written: {}: {e}", path.display()),
    )
}

/// Makes the hub of this data folder the one of the backup, in a new life → `{hub_id, replaced, …}`.
///
/// # Errors
/// When the backup cannot be used, a hub runs in the folder, or a file cannot be written. The folder is then as it was.
pub fn restore(data_dir: &Path, file: &Path) -> Result<Value, HubError> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| HubError::DataDir { path, source }
    };
    let unreadable = |source| HubError::Backup {
        path: file.to_owned(),
        source,
    };
    // A pipe would keep its reader waiting for ever.
    if !std::fs::metadata(file).map_err(unreadable)?.is_file() {
        return Err(unreadable(std::io::Error::other("it is no regular file")));
    }
    let source = File::open(file).map_err(unreadable)?;
    check_private(&source, file)?;
    let contents = backup::check(file)?;
    let home = Home::open(data_dir)?;
    let dir = home.dir();
    let new = dir.join(RESTORING);
    let prepare = || -> Result<String, HubError> {
        make_private_dir(&new).map_err(at(&new))?;
        let store = new.join("hub.db");
        let mut copy = private(&store).map_err(at(&store))?;
        std::io::copy(&mut &source, &mut copy).map_err(at(&store))?;
        drop(copy);
        let keys = backup::unpack(&store)?;
        File::open(&store)
            .and_then(|f| f.sync_all())
            .map_err(at(&store))?;
        let key_dir = new.join("keys");
        make_private_dir(&key_dir).map_err(at(&key_dir))?;
        for (name, text) in keys {
            let path = key_dir.join(&name);
            if Path::new(&name).file_name() != Some(name.as_ref()) {
                return Err(StoreError::Foreign(format!("`{name}` is no key's name")).into());
            }
            private(&path)
                .and_then(|mut f| f.write_all(&text).and_then(|()| f.sync_all()))
                .map_err(at(&path))?;
        }
        crate::auth::HubKeys::open(&key_dir)?;
        sync(&key_dir).map_err(at(&key_dir))?;
        sync(&new).map_err(at(&new))?;
        let replaced = format!("replaced-{}", wall().0);
        let ready = new.join(READY);
        private(&ready)
            .and_then(|mut f| f.write_all(replaced.as_bytes()).and_then(|()| f.sync_all()))
            .map_err(at(&ready))?;
        sync(&new).map_err(at(&new))?;
        Ok(replaced)
    };
    let replaced = prepare().inspect_err(|_| {
        // Without its mark of completeness nobody takes it for a restore; the next opening clears it, too.
        drop(std::fs::remove_dir_all(&new));
    })?;
    finish(dir).map_err(at(dir))?;
    let replaced = dir.join(replaced);
    let mut answer = json!(contents);
    answer["data_dir"] = json!(data_dir);
    answer["replaced"] = json!(replaced.is_dir().then_some(replaced));
    Ok(answer)
}

/// Brings a restore that was cut off to its end, or forgets one that had not become complete. The caller holds the lock.
/// Every step can be repeated: a part that is not in `restoring/` any more stands in its place.
pub(super) fn finish(dir: &Path) -> std::io::Result<()> {
    let new = dir.join(RESTORING);
    if !new.is_dir() {
        return Ok(());
    }
    let replaced = match std::fs::read_to_string(new.join(READY)) {
        Ok(name) if name.starts_with("replaced-") && !name.contains('/') => dir.join(name),
        Ok(_) => return std::fs::remove_dir_all(&new),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return std::fs::remove_dir_all(&new),
        Err(e) => return Err(e),
    };
    let moved = |from: PathBuf, to: PathBuf| match std::fs::rename(from, to) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    };
    let there = |name: &str| dir.join(name).exists();
    if PARTS.iter().chain(&BESIDE).any(|name| there(name)) && new.join(PARTS[0]).exists() {
        make_private_dir(&replaced)?;
        for name in BESIDE {
            moved(dir.join(name), replaced.join(name))?;
        }
    }
    for name in PARTS {
        if !new.join(name).exists() {
            continue;
        }
        if there(name) {
            make_private_dir(&replaced)?;
            moved(dir.join(name), replaced.join(name))?;
        }
        moved(new.join(name), dir.join(name))?;
    }
    sync(dir)?;
    std::fs::remove_dir_all(&new)?;
    sync(dir)
}

fn private(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.create_new(true).write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

fn sync(dir: &Path) -> std::io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The folder of a hub with `old` parts, and a complete restore of `new` ones.
    fn cut_off(dir: &Path) {
        let new = dir.join(RESTORING);
        for (at, text) in [(dir, "old"), (&*new, "new")] {
            std::fs::create_dir_all(at.join("keys")).unwrap();
            std::fs::write(at.join("hub.db"), text).unwrap();
            std::fs::write(at.join("keys/000001.pem"), text).unwrap();
        }
        for name in BESIDE {
            std::fs::write(dir.join(name), "old").unwrap();
        }
        std::fs::write(new.join(READY), "replaced-7").unwrap();
    }

    fn is_whole(dir: &Path) {
        let read = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
        assert_eq!(
            (read("hub.db"), read("keys/000001.pem")),
            ("new".into(), "new".into())
        );
        assert_eq!(read("replaced-7/hub.db"), "old");
        assert_eq!(read("replaced-7/keys/000001.pem"), "old");
        for name in BESIDE {
            assert!(!dir.join(name).exists());
            assert_eq!(read(&format!("replaced-7/{name}")), "old");
        }
        assert!(!dir.join(RESTORING).exists());
    }

    #[test]
    fn a_restore_that_was_cut_off_anywhere_is_finished() {
        let steps: [&[(&str, &str)]; 6] = [
            &[],
            &[("hub.db-wal", "replaced-7/hub.db-wal")],
            &[("hub.db", "replaced-7/hub.db")],
            &[("restoring/hub.db", "hub.db")],
            &[("keys", "replaced-7/keys")],
            &[("restoring/keys", "keys")],
        ];
        for done in 0..=steps.len() {
            let dir = tempfile::tempdir().unwrap();
            cut_off(dir.path());
            std::fs::create_dir(dir.path().join("replaced-7")).unwrap();
            if done > 2 {
                for name in BESIDE {
                    let to = dir.path().join("replaced-7").join(name);
                    std::fs::rename(dir.path().join(name), to).unwrap();
                }
            }
            for (from, to) in steps[..done].iter().flat_map(|s| s.iter()) {
                let (from, to) = (dir.path().join(from), dir.path().join(to));
                if from.exists() {
                    std::fs::rename(from, to).unwrap();
                }
            }
            finish(dir.path()).unwrap();
            is_whole(dir.path());
            finish(dir.path()).unwrap();
            is_whole(dir.path());
        }
    }

    #[test]
    fn a_restore_that_never_became_complete_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        cut_off(dir.path());
        std::fs::remove_file(dir.path().join("restoring/ready")).unwrap();
        finish(dir.path()).unwrap();
        assert_eq!(
            std::fs::read_to_string(dir.path().join("hub.db")).unwrap(),
            "old"
        );
        assert!(!dir.path().join(RESTORING).exists());
        assert!(!dir.path().join("replaced-7").exists());
    }
}
