//! Reads a repository's name from its files; git itself is not needed, and nothing of the repository is run.

use std::path::{Path, PathBuf};

use crate::domain::ProjectName;

/// What the folder is called: `host/owner/repo` of its git remote (with the path below the repository's root), else the
/// folder's own name, else `project`.
pub(super) fn name_of(folder: &Path) -> ProjectName {
    remote_name(folder)
        .or_else(|| {
            let own = folder.file_name()?.to_string_lossy();
            ProjectName::new(clean(&own)).ok()
        })
        .or_else(|| ProjectName::new("project").ok())
        .unwrap_or_else(unreachable_name)
}

#[expect(clippy::expect_used, reason = "a constant that the rule allows")]
fn unreachable_name() -> ProjectName {
    ProjectName::new("project").expect("`project` is a name")
}

fn remote_name(folder: &Path) -> Option<ProjectName> {
    let root = folder.ancestors().find(|d| d.join(".git").exists())?;
    let config = std::fs::read_to_string(common_dir(&root.join(".git"))?.join("config")).ok()?;
    let mut name = shorten(&remote_url(&config)?)?;
    for part in folder.strip_prefix(root).ok()?.components() {
        name.push('/');
        name.push_str(&part.as_os_str().to_string_lossy());
    }
    ProjectName::new(clean(&name)).ok()
}

/// The folder that holds `config`: `.git` itself, or what a worktree's or submodule's `.git` file leads to.
fn common_dir(dot_git: &Path) -> Option<PathBuf> {
    let git_dir = if dot_git.is_dir() {
        dot_git.to_owned()
    } else {
        let text = std::fs::read_to_string(dot_git).ok()?;
        let target = text.trim().strip_prefix("gitdir:")?.trim();
        dot_git.parent()?.join(target)
    };
    Some(match std::fs::read_to_string(git_dir.join("commondir")) {
        Ok(common) => git_dir.join(common.trim()),
        Err(_) => git_dir,
    })
}

/// The URL of `origin`, else of the first remote.
fn remote_url(config: &str) -> Option<String> {
    let mut remote = None;
    let mut first = None;
    for line in config.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix('[') {
            remote = section
                .split_once('"')
                .filter(|(kind, _)| kind.trim() == "remote")
                .and_then(|(_, rest)| rest.split_once('"'))
                .map(|(name, _)| name.to_owned());
        } else if let (Some(name), Some((key, value))) = (&remote, line.split_once('='))
            && key.trim().eq_ignore_ascii_case("url")
        {
            let url = value.trim().trim_matches('"').to_owned();
            if name == "origin" {
                return Some(url);
            }
            first.get_or_insert(url);
        }
    }
    first
}

/// `host/owner/repo` of a remote's URL, without credentials and port; `None` for a local path.
fn shorten(url: &str) -> Option<String> {
    let (host, path) = match url.split_once("://") {
        Some(("file", _)) => return None,
        Some((_, rest)) => rest.split_once('/')?,
        // scp form: `user@host:path`; a slash before the colon means a path.
        None => url
            .split_once(':')
            .filter(|(h, _)| !h.contains('/') && h.len() > 1)?,
    };
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    let host = host.split(':').next().filter(|h| !h.is_empty())?;
    let path = path.trim_matches('/');
    let path = path.strip_suffix(".git").unwrap_or(path);
    (!path.is_empty()).then(|| format!("{}/{path}", host.to_lowercase()))
}

/// The text without what a name cannot hold.
fn clean(text: &str) -> String {
    let text: String = text
        .chars()
        .map(|c| if c.is_control() || c == '\\' { '_' } else { c })
        .take(200)
        .collect();
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remotes_are_named_by_host_owner_and_repository_without_credentials() {
        for (url, name) in [
            ("git@github.com:acme/shop.git", Some("github.com/acme/shop")),
            (
                "ssh://git@GitHub.com:22/acme/shop.git",
                Some("github.com/acme/shop"),
            ),
            (
                "https://user:secret@git.example/a/b/c/",
                Some("git.example/a/b/c"),
            ),
            ("https://git.example/a/b.git/", Some("git.example/a/b")),
            ("git.example:a/b", Some("git.example/a/b")),
            ("/srv/git/shop.git", None),
            ("../shop", None),
            ("file:///srv/git/shop.git", None),
            ("C:/repos/shop", None),
        ] {
            assert_eq!(shorten(url).as_deref(), name, "{url}");
        }
    }

    #[test]
    fn origin_wins_over_other_remotes_and_the_first_stands_in_for_it() {
        let two = "[core]\n bare = false\n[remote \"up\"]\n url = https://h/u/r\n[remote \"origin\"]\n\turl = https://h/o/r\n";
        assert_eq!(remote_url(two).as_deref(), Some("https://h/o/r"));
        let one =
            "[remote \"up\"]\n fetch = x\n url = \"https://h/u/r\"\n[branch \"main\"]\n url = no\n";
        assert_eq!(remote_url(one).as_deref(), Some("https://h/u/r"));
        assert_eq!(remote_url("[core]\nurl = no\n"), None);
    }

    #[test]
    fn a_worktree_and_a_subfolder_are_named_after_the_repository() {
        let dir = tempfile::tempdir().unwrap();
        let main = dir.path().join("main/.git");
        std::fs::create_dir_all(main.join("worktrees/wt")).unwrap();
        std::fs::write(
            main.join("config"),
            "[remote \"origin\"]\nurl = https://h/o/r\n",
        )
        .unwrap();
        std::fs::write(main.join("worktrees/wt/commondir"), "../..\n").unwrap();
        let tree = dir.path().join("wt");
        std::fs::create_dir_all(tree.join("sub")).unwrap();
        let link = format!("gitdir: {}\n", main.join("worktrees/wt").display());
        std::fs::write(tree.join(".git"), link).unwrap();
        assert_eq!(name_of(&tree).as_str(), "h/o/r");
        assert_eq!(name_of(&tree.join("sub")).as_str(), "h/o/r/sub");
        let plain = dir.path().join("plain");
        std::fs::create_dir(&plain).unwrap();
        assert_eq!(name_of(&plain).as_str(), "plain");
        assert_eq!(name_of(Path::new("/")).as_str(), "project");
    }
}
