//! Where the files of one installation lie.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use uuid::Uuid;

/// Looks up an environment variable; a function, so that tests and pure code need no process environment.
pub type Env<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The process's own environment, for [`Env`]; an empty variable counts as unset.
#[must_use]
pub fn process_env(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|v| !v.is_empty())
}

/// The longest path a Unix socket can have on every system, bytes (macOS: 104 with the final NUL).
const MAX_SOCKET_PATH: usize = 103;

/// Why no data folder can be named.
#[derive(Debug, thiserror::Error)]
pub enum PlacesError {
    /// Neither a flag nor the environment tells.
    #[error("no place for data: HOME is not set; give --data-dir or REMOTE_COLLAB_DATA_DIR")]
    NoHome,
    /// A relative path cannot be resolved.
    #[error("the data folder `{path}` cannot be made absolute: {source}")]
    Relative {
        /// The path as given.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// The data folder of one installation and everything that follows from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    root: PathBuf,
}

impl Places {
    /// The installation named by `flag` (`--data-dir`), else `REMOTE_COLLAB_DATA_DIR`, else `$XDG_DATA_HOME/remote-collab`,
    /// else `~/.local/share/remote-collab`; symbolic links are resolved if the folder exists, so that every spelling means the same.
    ///
    /// # Errors
    /// When no variable names a place, or the present folder is gone.
    pub fn resolve(flag: Option<&Path>, env: Env<'_>) -> Result<Self, PlacesError> {
        let named = flag
            .map(Path::to_path_buf)
            .or_else(|| env("REMOTE_COLLAB_DATA_DIR").map(PathBuf::from))
            .or_else(|| {
                env("XDG_DATA_HOME")
                    .map(PathBuf::from)
                    .filter(|p| p.is_absolute())
                    .map(|p| p.join("remote-collab"))
            })
            .or_else(|| {
                env("HOME")
                    .or_else(|| env("USERPROFILE"))
                    .map(|h| Path::new(&h).join(".local/share/remote-collab"))
            })
            .ok_or(PlacesError::NoHome)?;
        let root = match fs::canonicalize(&named) {
            Ok(real) => real,
            Err(_) => std::path::absolute(&named).map_err(|source| PlacesError::Relative {
                path: named.clone(),
                source,
            })?,
        };
        Ok(Self { root })
    }

    /// The data folder, absolute.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The daemon's folder.
    #[must_use]
    pub fn daemon(&self) -> PathBuf {
        self.root.join("daemon")
    }

    /// The hub's folder.
    #[must_use]
    pub fn hub(&self) -> PathBuf {
        self.root.join("hub")
    }

    /// The folder of hook events that the daemon has not read.
    #[must_use]
    pub fn spool(&self) -> PathBuf {
        self.root.join("daemon/spool")
    }

    /// The file in which the daemon notes the path of its socket.
    #[must_use]
    pub fn socket_note(&self) -> PathBuf {
        self.root.join("daemon/socket")
    }

    /// A short name of this installation: 16 hexadecimal digits, the same for the same folder.
    #[must_use]
    pub fn key(&self) -> String {
        let name = Uuid::new_v5(
            &Uuid::NAMESPACE_URL,
            self.root.as_os_str().as_encoded_bytes(),
        );
        let mut text = name.simple().to_string();
        text.truncate(16);
        text
    }

    /// Where the daemon is to listen: in `$XDG_RUNTIME_DIR/remote-collab/`, else in the data folder, else (that path being
    /// too long for a socket) in `/tmp/remote-collab-<uid>/`.
    #[must_use]
    pub fn socket(&self, env: Env<'_>) -> PathBuf {
        let name = format!("{}.sock", self.key());
        let fits = |p: &PathBuf| p.as_os_str().len() <= MAX_SOCKET_PATH;
        env("XDG_RUNTIME_DIR")
            .map(PathBuf::from)
            .filter(|p| p.is_absolute())
            .map(|p| p.join("remote-collab").join(&name))
            .filter(fits)
            .or_else(|| Some(self.root.join("daemon/run").join(&name)).filter(fits))
            .unwrap_or_else(|| {
                let uid = super::dial::own_uid().unwrap_or(0);
                PathBuf::from(format!("/tmp/remote-collab-{uid}")).join(name)
            })
    }

    /// Where the daemon listens: what it noted itself, else where it would listen by this environment.
    #[must_use]
    pub fn find_socket(&self, env: Env<'_>) -> PathBuf {
        match fs::read_to_string(self.socket_note()) {
            Ok(note) if Path::new(note.trim_end()).is_absolute() => note.trim_end().into(),
            _ => self.socket(env),
        }
    }

    /// Makes the daemon's folders, open to the owner alone.
    ///
    /// # Errors
    /// When a folder cannot be made, or belongs to somebody else.
    pub fn create_daemon_dirs(&self) -> io::Result<()> {
        private_dir(&self.root)?;
        private_dir(&self.daemon())?;
        private_dir(&self.spool())
    }

    /// Makes the hub's folder, open to the owner alone.
    ///
    /// # Errors
    /// When it cannot be made, or belongs to somebody else.
    pub fn create_hub_dir(&self) -> io::Result<()> {
        private_dir(&self.root)?;
        private_dir(&self.hub())
    }

    /// Makes the folder of `socket`, open to the owner alone, before the daemon binds.
    ///
    /// # Errors
    /// When it cannot be made, or belongs to somebody else.
    pub fn create_socket_dir(socket: &Path) -> io::Result<()> {
        match socket.parent() {
            Some(dir) => private_dir(dir),
            None => Ok(()),
        }
    }

    /// Notes where the daemon listens, after it has bound.
    ///
    /// # Errors
    /// When the note cannot be written.
    pub fn note_socket(&self, socket: &Path) -> io::Result<()> {
        write_private(&self.socket_note(), socket.as_os_str().as_encoded_bytes())
    }
}

/// Makes a folder (and its parents) with mode 0700, or checks that the existing one is a real folder of ours and
/// takes the rights of others away.
fn private_dir(dir: &Path) -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)?;
        let meta = fs::symlink_metadata(dir)?;
        if !meta.is_dir() || Some(meta.uid()) != super::dial::own_uid() {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("{} is not a folder of this user", dir.display()),
            ));
        }
        if meta.mode() & 0o077 != 0 {
            fs::set_permissions(dir, fs::Permissions::from_mode(0o700))?;
        }
        Ok(())
    }
    #[cfg(not(unix))]
    fs::create_dir_all(dir)
}

/// Replaces a file by one that only its owner can read, atomically: a temporary file in the same folder, then a rename.
///
/// # Errors
/// When the folder is missing or not writable.
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    let mut tmp = tempfile::NamedTempFile::new_in(dir)?;
    tmp.write_all(bytes)?;
    tmp.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env<'a>(vars: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
        |k| vars.iter().find(|(n, _)| *n == k).map(|(_, v)| v.into())
    }

    #[test]
    fn the_flag_wins_over_the_environment_and_that_over_the_home() {
        let all = env(&[
            ("HOME", "/h"),
            ("XDG_DATA_HOME", "/x"),
            ("REMOTE_COLLAB_DATA_DIR", "/r"),
        ]);
        let root = |flag: Option<&str>, e: Env<'_>| {
            Places::resolve(flag.map(Path::new), e)
                .unwrap()
                .root()
                .to_path_buf()
        };
        assert_eq!(root(Some("/f"), &all), Path::new("/f"));
        assert_eq!(root(None, &all), Path::new("/r"));
        let xdg = env(&[("HOME", "/h"), ("XDG_DATA_HOME", "/x")]);
        assert_eq!(root(None, &xdg), Path::new("/x/remote-collab"));
        let home = env(&[("HOME", "/h"), ("XDG_DATA_HOME", "relative")]);
        assert_eq!(
            root(None, &home),
            Path::new("/h/.local/share/remote-collab")
        );
        assert!(matches!(
            Places::resolve(None, &env(&[])),
            Err(PlacesError::NoHome)
        ));
    }

    #[test]
    fn a_socket_path_always_fits_a_socket() {
        let places = Places {
            root: format!("/{}", "long/".repeat(40)).into(),
        };
        let runtime = env(&[("XDG_RUNTIME_DIR", "/run/user/1000")]);
        assert!(
            places
                .socket(&runtime)
                .starts_with("/run/user/1000/remote-collab")
        );
        let deep = "/d".repeat(60);
        for vars in [vec![], vec![("XDG_RUNTIME_DIR", deep.as_str())]] {
            let path = places.socket(&env(&vars));
            assert!(path.starts_with("/tmp"), "{path:?}");
            assert!(path.as_os_str().len() <= MAX_SOCKET_PATH);
        }
    }

    #[test]
    fn two_installations_have_two_sockets() {
        let runtime = env(&[("XDG_RUNTIME_DIR", "/run/user/1")]);
        let of = |r: &str| Places { root: r.into() }.socket(&runtime);
        assert_ne!(of("/a"), of("/b"));
        assert_eq!(of("/a"), of("/a"));
    }

    #[cfg(unix)]
    #[test]
    fn the_daemons_note_is_found_under_any_environment_and_folders_are_private() {
        use std::os::unix::fs::PermissionsExt as _;
        let tmp = tempfile::tempdir().unwrap();
        let places = Places::resolve(Some(&tmp.path().join("d")), &env(&[])).unwrap();
        places.create_daemon_dirs().unwrap();
        let mode = |p: &Path| fs::metadata(p).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(places.root()), 0o700);
        assert_eq!(mode(&places.spool()), 0o700);
        places.note_socket(Path::new("/run/x.sock")).unwrap();
        assert_eq!(mode(&places.socket_note()), 0o600);
        let other = env(&[("XDG_RUNTIME_DIR", "/elsewhere")]);
        assert_eq!(places.find_socket(&other), Path::new("/run/x.sock"));
    }

    #[cfg(unix)]
    #[test]
    fn a_link_in_the_place_of_a_private_folder_is_refused() {
        let tmp = tempfile::tempdir().unwrap();
        let link = tmp.path().join("run");
        std::os::unix::fs::symlink("/usr", &link).unwrap();
        assert!(Places::create_socket_dir(&link.join("x.sock")).is_err());
    }
}
