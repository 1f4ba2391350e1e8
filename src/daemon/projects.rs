//! Which folders the user enabled, under which names.
//!
//! `projects.json` in the daemon's folder is the truth: `enable` writes it whether or not a daemon runs, the daemon
//! reads it whenever it needs to know. Writers hold a lock file and replace the file as a whole, so a reader sees the
//! state before or after and nothing in between. A name is bound once, at `enable`, and does not move with a remote.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::domain::{ProjectInfo, ProjectName, WallMs};
use crate::local::write_private;

use super::git;
use super::lock::{Lock, LockError};

const FILE: &str = "projects.json";
const LOCK: &str = "projects.lock";

/// Why the list of projects cannot be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum ProjectsError {
    /// The folder is no folder.
    #[error("`{}` is no folder that can be enabled: {source}", path.display())]
    Folder {
        /// The folder as given.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The list cannot be read or written.
    #[error("cannot use `{}`: {source}", path.display())]
    Io {
        /// The list's file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The list is damaged.
    #[error("`{}` is damaged: {detail}; move it away and enable the projects again", path.display())]
    Damaged {
        /// The list's file.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
    /// The name belongs to another folder.
    #[error("the name `{name}` belongs to `{}`; give this folder another one", path.display())]
    NameTaken {
        /// The name.
        name: ProjectName,
        /// The folder that has it.
        path: PathBuf,
    },
    /// The list cannot be locked.
    #[error(transparent)]
    Lock(#[from] LockError),
}

/// An enabled folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Project {
    /// Its name, bound when it was enabled.
    pub name: ProjectName,
    /// Its canonical path.
    pub path: PathBuf,
    /// When it was enabled, Unix ms.
    pub enabled_at: WallMs,
}

impl Project {
    /// The project as the hub's directory shows it.
    #[must_use]
    pub fn info(&self, enabled: bool) -> ProjectInfo {
        ProjectInfo {
            name: self.name.clone(),
            path: self.path.to_string_lossy().into_owned(),
            enabled,
        }
    }
}

#[derive(Default, Serialize, Deserialize)]
struct File {
    projects: Vec<Project>,
}

/// The list of one installation.
#[derive(Debug, Clone)]
pub struct Projects {
    dir: PathBuf,
}

impl Projects {
    /// The list in the daemon's folder `dir`.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// The enabled projects, by name; empty if there is no list yet.
    ///
    /// # Errors
    /// When the list cannot be read.
    pub fn list(&self) -> Result<Vec<Project>, ProjectsError> {
        let path = self.dir.join(FILE);
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(ProjectsError::Io { path, source }),
        };
        let mut file: File = serde_json::from_slice(&text).map_err(|e| ProjectsError::Damaged {
            path,
            detail: e.to_string(),
        })?;
        file.projects.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(file.projects)
    }

    /// Enables a folder; gives its entry and whether it is new. The name is `display`, else what git or the folder tells;
    /// one that is found and taken gets a number.
    ///
    /// # Errors
    /// When the folder does not exist, `display` belongs to another folder, or the list cannot be changed.
    pub fn enable(
        &self,
        folder: &Path,
        display: Option<ProjectName>,
        now: WallMs,
    ) -> Result<(Project, bool), ProjectsError> {
        let path = canonical_folder(folder)?;
        let _lock = Lock::wait(&self.dir.join(LOCK))?;
        let mut projects = self.list()?;
        if let Some(known) = projects.iter().find(|p| p.path == path) {
            return Ok((known.clone(), false));
        }
        let holder = |name: &ProjectName| projects.iter().find(|p| p.name == *name);
        let name = match display {
            Some(name) => match holder(&name) {
                None => name,
                Some(p) => {
                    return Err(ProjectsError::NameTaken {
                        name,
                        path: p.path.clone(),
                    });
                }
            },
            None => free_name(&git::name_of(&path), |name| holder(name).is_some()),
        };
        let project = Project {
            name,
            path,
            enabled_at: now,
        };
        projects.push(project.clone());
        self.write(projects)?;
        Ok((project, true))
    }

    /// Disables the project of this folder or name; gives its entry if it was enabled.
    ///
    /// # Errors
    /// When the list cannot be changed.
    pub fn disable(&self, which: &str) -> Result<Option<Project>, ProjectsError> {
        let path = std::fs::canonicalize(which).unwrap_or_else(|_| PathBuf::from(which));
        let _lock = Lock::wait(&self.dir.join(LOCK))?;
        let mut projects = self.list()?;
        let at = projects
            .iter()
            .position(|p| p.path == path)
            .or_else(|| projects.iter().position(|p| p.name.as_str() == which));
        let Some(at) = at else { return Ok(None) };
        let gone = projects.remove(at);
        self.write(projects)?;
        Ok(Some(gone))
    }

    /// The project that a working directory belongs to: the deepest enabled folder above it. `cwd` is resolved first, so a
    /// link does not lead out of a project nor into one.
    ///
    /// # Errors
    /// When the list cannot be read.
    pub fn of_cwd(&self, cwd: &Path) -> Result<Option<Project>, ProjectsError> {
        let cwd = std::fs::canonicalize(cwd).unwrap_or_else(|_| cwd.to_owned());
        let deepest = self
            .list()?
            .into_iter()
            .filter(|p| cwd.starts_with(&p.path))
            .max_by_key(|p| p.path.components().count());
        Ok(deepest)
    }

    /// The project of this name, if it is enabled.
    ///
    /// # Errors
    /// When the list cannot be read.
    pub fn by_name(&self, name: &ProjectName) -> Result<Option<Project>, ProjectsError> {
        Ok(self.list()?.into_iter().find(|p| p.name == *name))
    }

    fn write(&self, projects: Vec<Project>) -> Result<(), ProjectsError> {
        let path = self.dir.join(FILE);
        let json = serde_json::to_vec_pretty(&File { projects }).unwrap_or_default();
        write_private(&path, &json).map_err(|source| ProjectsError::Io { path, source })
    }
}

fn canonical_folder(folder: &Path) -> Result<PathBuf, ProjectsError> {
    let failed = |source| ProjectsError::Folder {
        path: folder.to_owned(),
        source,
    };
    let path = std::fs::canonicalize(folder).map_err(failed)?;
    if !path.is_dir() {
        return Err(failed(ErrorKind::NotADirectory.into()));
    }
    Ok(path)
}

fn free_name(found: &ProjectName, taken: impl Fn(&ProjectName) -> bool) -> ProjectName {
    if !taken(found) {
        return found.clone();
    }
    let short: String = found.as_str().chars().take(180).collect();
    (2u32..)
        .filter_map(|n| ProjectName::new(format!("{short}~{n}")).ok())
        .find(|name| !taken(name))
        .unwrap_or_else(|| found.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(dir: &Path) -> Projects {
        Projects::new(dir)
    }

    #[test]
    fn a_folder_keeps_the_name_it_was_enabled_under() {
        let dir = tempfile::tempdir().unwrap();
        let repo = dir.path().join("repo");
        std::fs::create_dir_all(repo.join(".git")).unwrap();
        let config = |url: &str| {
            let text = format!("[remote \"origin\"]\n\turl = {url}\n");
            std::fs::write(repo.join(".git/config"), text).unwrap();
        };
        config("git@github.com:acme/shop.git");
        let projects = list(dir.path());
        let (first, new) = projects.enable(&repo, None, WallMs(1)).unwrap();
        assert_eq!((first.name.as_str(), new), ("github.com/acme/shop", true));
        config("https://elsewhere.example/x/y");
        let (again, new) = projects.enable(&repo, None, WallMs(2)).unwrap();
        assert_eq!((again, new), (first, false));
    }

    #[test]
    fn a_second_clone_gets_a_number_and_a_chosen_name_is_never_shared() {
        let dir = tempfile::tempdir().unwrap();
        let projects = list(dir.path());
        let folder = |p: &str| {
            let path = dir.path().join(p).join("shop");
            std::fs::create_dir_all(&path).unwrap();
            path
        };
        let name = |p: &str| projects.enable(&folder(p), None, WallMs(1)).unwrap().0.name;
        assert_eq!(name("a").as_str(), "shop");
        assert_eq!(name("b").as_str(), "shop~2");
        let chosen = ProjectName::new("shop").unwrap();
        assert!(matches!(
            projects.enable(&folder("c"), Some(chosen), WallMs(1)),
            Err(ProjectsError::NameTaken { .. })
        ));
    }

    #[test]
    fn a_working_directory_belongs_to_its_deepest_enabled_folder() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("outer/inner");
        std::fs::create_dir_all(inner.join("src")).unwrap();
        let projects = list(dir.path());
        for folder in [inner.parent().unwrap(), &inner] {
            projects.enable(folder, None, WallMs(1)).unwrap();
        }
        let of = |p: &Path| {
            let found = projects.of_cwd(p).unwrap();
            found.map(|p| p.name.as_str().to_owned())
        };
        assert_eq!(of(&inner.join("src")).as_deref(), Some("inner"));
        assert_eq!(of(&dir.path().join("outer")).as_deref(), Some("outer"));
        assert_eq!(of(dir.path()), None);
        std::fs::create_dir(dir.path().join("outer-2")).unwrap();
        assert_eq!(of(&dir.path().join("outer-2")), None);
    }

    #[cfg(unix)]
    #[test]
    fn a_link_leads_neither_out_of_a_project_nor_into_one() {
        let dir = tempfile::tempdir().unwrap();
        let (inside, outside) = (dir.path().join("in"), dir.path().join("out"));
        for folder in [&inside, &outside] {
            std::fs::create_dir(folder).unwrap();
        }
        std::os::unix::fs::symlink(&outside, inside.join("link")).unwrap();
        let projects = list(dir.path());
        projects.enable(&inside, None, WallMs(1)).unwrap();
        assert_eq!(projects.of_cwd(&inside.join("link")).unwrap(), None);
    }

    #[test]
    fn disabling_one_project_leaves_the_others_and_works_by_path_and_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let projects = list(dir.path());
        for name in ["a", "b", "c"] {
            let path = dir.path().join(name);
            std::fs::create_dir(&path).unwrap();
            projects.enable(&path, None, WallMs(1)).unwrap();
        }
        assert!(projects.disable("a").unwrap().is_some());
        let path = dir.path().join("b");
        assert!(projects.disable(path.to_str().unwrap()).unwrap().is_some());
        assert!(projects.disable("nothing").unwrap().is_none());
        let left = projects.list().unwrap();
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].name.as_str(), "c");
    }

    #[test]
    fn concurrent_enables_lose_nothing_and_a_damaged_list_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let projects = list(dir.path());
        std::thread::scope(|scope| {
            for n in 0..8 {
                let (projects, path) = (projects.clone(), dir.path().join(format!("p{n}")));
                scope.spawn(move || {
                    std::fs::create_dir(&path).unwrap();
                    projects.enable(&path, None, WallMs(1)).unwrap();
                });
            }
        });
        assert_eq!(projects.list().unwrap().len(), 8);
        std::fs::write(dir.path().join(FILE), "{").unwrap();
        let lost = projects.enable(dir.path(), None, WallMs(1));
        assert!(matches!(lost, Err(ProjectsError::Damaged { .. })));
        assert_eq!(std::fs::read(dir.path().join(FILE)).unwrap(), b"{");
    }
}
