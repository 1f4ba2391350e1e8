//! `enable` and `disable`: a folder's hooks in the settings, and its place in the list of enabled projects.
//!
//! Both work without a daemon: the settings and the list are files. A running daemon is told, and `enable` then returns
//! once the hub knows the project, or says that it does not yet.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::long_running::{find_claude, load_config};
use super::report::{Exit, Failure, say};
use super::{Global, daemon_client};
use crate::claude::headless::ENV_RUN;
use crate::claude::settings::{self, Applied, CliVersion, Edit, Spec};
use crate::claude::{SystemProcesses, ancestors, config_dir};
use crate::config::read_project;
use crate::daemon::clock;
use crate::daemon::projects::Projects;
use crate::domain::ProjectName;
use crate::local::{ClientError, Places, process_env};

/// How long the daemon may take to tell the hub.
const DEADLINE: Duration = Duration::from_secs(15);

/// Which settings file the hooks stand in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Scope {
    /// All folders of this user.
    User,
    /// This folder, not shared with others.
    Local,
    /// This folder, in the file that is shared with others.
    Project,
}

#[derive(Debug, Args)]
pub(super) struct EnableArgs {
    /// The folder [default: the current one]
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Which settings file the hooks stand in
    #[arg(long, value_enum, default_value = "local")]
    scope: Scope,
    /// Touch no settings: the plugin brings the hooks
    #[arg(long, conflicts_with_all = ["scope", "dry_run"])]
    no_hooks: bool,
    /// The project's name [default: what its `.claude/remote-collab.json` says, else the git remote, else the folder's name]
    #[arg(long)]
    name: Option<ProjectName>,
    /// Show what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Args)]
pub(super) struct DisableArgs {
    /// The folder [default: the current one]
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Which settings file to clean [default: the folder's own two]
    #[arg(long, value_enum)]
    scope: Option<Scope>,
    /// Show what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// Rule 7: this is a person's decision.
fn refuse_claude() -> Result<(), Failure> {
    let marked = ["CLAUDECODE", ENV_RUN]
        .iter()
        .any(|name| process_env(name).is_some());
    let line = ancestors(&SystemProcesses, std::process::id());
    if marked || line.iter().any(|p| p.name == "claude") {
        return Err(
            Failure::new("enabling and disabling is for a person, not for Claude Code")
                .exit(Exit::NotAuthorised)
                .hint("run this command in a terminal of your own"),
        );
    }
    Ok(())
}

fn folder(dir: Option<&Path>) -> Result<PathBuf, Failure> {
    let dir = dir.unwrap_or(Path::new("."));
    dir.canonicalize()
        .ok()
        .filter(|d| d.is_dir())
        .ok_or_else(|| {
            Failure::new(format!("`{}` is not a folder", dir.display())).exit(Exit::Usage)
        })
}

fn settings_file(scope: Scope, dir: &Path) -> Result<PathBuf, Failure> {
    Ok(match scope {
        Scope::User => config_dir(process_env)
            .ok_or_else(|| Failure::new("HOME is not set").exit(Exit::Usage))?
            .join("settings.json"),
        Scope::Local => dir.join(".claude/settings.local.json"),
        Scope::Project => dir.join(".claude/settings.json"),
    })
}

/// The path under which this program is found again after an update: the entry of PATH that leads here, else the file itself.
fn own_program() -> Result<PathBuf, Failure> {
    let own = std::env::current_exe()
        .map_err(|e| Failure::of("the path of this program is not known", &e))?;
    let stable = process_env("PATH").and_then(|path| {
        std::env::split_paths(&path)
            .filter(|dir| dir.is_absolute())
            .map(|dir| dir.join("remote-collab"))
            .find(|p| p.canonicalize().is_ok_and(|p| p == own))
    });
    Ok(stable.unwrap_or(own))
}

fn backups(places: &Places) -> PathBuf {
    places.daemon().join("backups")
}

/// Applies an edit, or with `dry_run` only shows it.
fn edit(
    path: &Path,
    places: &Places,
    dry_run: bool,
    edit: impl Fn(Option<&str>) -> Result<Edit, settings::SettingsError>,
) -> Result<Option<Applied>, Failure> {
    let failed = |e: &dyn std::error::Error| {
        Failure::of("the settings were not changed", e)
            .hint("mend the file, or choose another scope with `--scope`")
    };
    if dry_run {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => Some(text),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
            Err(e) => return Err(failed(&e)),
        };
        let new = match edit(text.as_deref()).map_err(|e| failed(&e))? {
            Edit::Unchanged => text.clone(),
            Edit::Write(new) => Some(new),
            Edit::Remove => None,
        };
        let (old, new) = (text.unwrap_or_default(), new.unwrap_or_default());
        say(format_args!(
            "--- {0}\n+++ {0}\n{1}",
            path.display(),
            diff(&old, &new)
        ))?;
        return Ok(None);
    }
    places
        .create_daemon_dirs()
        .map_err(|e| Failure::of(format!("`{}` cannot be used", places.root().display()), &e))?;
    settings::apply(path, Some(&backups(places)), clock::wall(), edit)
        .map(Some)
        .map_err(|e| failed(&e))
}

/// The lines that differ, without context; both texts share a beginning and an end.
fn diff(old: &str, new: &str) -> String {
    let (a, b): (Vec<_>, Vec<_>) = (old.lines().collect(), new.lines().collect());
    let head = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
    let most = a.len().min(b.len()) - head;
    let tail = a
        .iter()
        .rev()
        .zip(b.iter().rev())
        .take(most)
        .take_while(|(x, y)| x == y)
        .count();
    let (gone, come) = (&a[head..a.len() - tail], &b[head..b.len() - tail]);
    if gone.is_empty() && come.is_empty() {
        return "(no change)".to_owned();
    }
    let range = |lines: usize| format!("{},{lines}", head + 1);
    let mut text = format!("@@ -{} +{} @@", range(gone.len()), range(come.len()));
    for (mark, lines) in [('-', gone), ('+', come)] {
        for line in lines {
            text.push_str(&format!("\n{mark}{line}"));
        }
    }
    text
}

pub(super) fn enable(global: &Global, args: &EnableArgs) -> Result<Exit, Failure> {
    refuse_claude()?;
    let places = global.places()?;
    let dir = folder(args.dir.as_deref())?;
    let loaded = load_config(&[])?;
    let applied = if args.no_hooks {
        places.create_daemon_dirs().map_err(|e| {
            Failure::of(format!("`{}` cannot be used", places.root().display()), &e)
        })?;
        None
    } else {
        let version = find_claude(&loaded)
            .version
            .as_deref()
            .and_then(CliVersion::parse);
        let spec = Spec::new(&own_program()?, places.root(), version, None)
            .map_err(|e| Failure::of("the hooks cannot be written", &e))?;
        let file = settings_file(args.scope, &dir)?;
        edit(&file, &places, args.dry_run, |text| {
            settings::enable(text, &spec)
        })?
    };
    if args.dry_run {
        return Ok(Exit::Ok);
    }
    let wanted = args
        .name
        .clone()
        .or_else(|| read_project(&dir, &loaded.policy).name);
    let (project, _) = Projects::new(places.daemon())
        .enable(&dir, wanted, clock::wall())
        .map_err(|e| Failure::of(format!("`{}` was not enabled", dir.display()), &e))?;
    let told = tell(
        &places,
        "enable",
        &json!({"path": project.path, "name": project.name}),
    )?;
    if global.json {
        say(json!({
            "project": project.name, "path": project.path, "hub": told,
            "settings": applied.as_ref().map(|a| &a.path),
            "changed": applied.as_ref().is_some_and(|a| a.edit != Edit::Unchanged),
            "backup": applied.as_ref().and_then(|a| a.backup.as_ref()),
        }))?;
        return Ok(Exit::Ok);
    }
    say(format_args!(
        "enabled `{}` in {}",
        project.name,
        project.path.display()
    ))?;
    if let Some(name) = args.name.as_ref().filter(|n| **n != project.name) {
        say(format_args!(
            "warning: it was enabled before and keeps its name; to call it `{name}`, disable it first"
        ))?;
    }
    if let Some(applied) = &applied {
        say_settings(args.scope, applied)?;
    }
    say(match told.as_str() {
        "known" => "the hub knows the project",
        "not_running" => "the daemon is not running; it will tell the hub when it starts",
        _ => "the hub does not know the project yet; the daemon will tell it when it is connected",
    })?;
    Ok(Exit::Ok)
}

/// Tells where the hooks stand now, and what is doubtful about that.
fn say_settings(scope: Scope, applied: &Applied) -> Result<(), Failure> {
    say(format_args!("hooks: {}", applied.path.display()))?;
    if let Some(backup) = &applied.backup {
        say(format_args!("backup: {}", backup.display()))?;
    }
    if scope == Scope::Project {
        say(
            "warning: this file is shared with others, but the hooks name paths of this machine; `--scope local` avoids that",
        )?;
    }
    match &applied.edit {
        Edit::Write(text) if !settings::loads(text) => say(
            "warning: Claude Code ignores a settings file with comments or trailing commas; take them out, or the hooks stay silent",
        ),
        _ => Ok(()),
    }
}

pub(super) fn disable(global: &Global, args: &DisableArgs) -> Result<Exit, Failure> {
    refuse_claude()?;
    let places = global.places()?;
    let dir = folder(args.dir.as_deref())?;
    let scopes = match args.scope {
        Some(scope) => vec![scope],
        None => vec![Scope::Local, Scope::Project],
    };
    let data_dir = places.root().to_string_lossy().into_owned();
    let mut changed = Vec::new();
    for scope in scopes {
        let file = settings_file(scope, &dir)?;
        let applied = edit(&file, &places, args.dry_run, |text| {
            settings::disable(text, &data_dir)
        })?;
        changed.extend(
            applied
                .filter(|a| a.edit != Edit::Unchanged)
                .map(|a| a.path),
        );
    }
    if args.dry_run {
        return Ok(Exit::Ok);
    }
    let path = dir.to_string_lossy().into_owned();
    let project = Projects::new(places.daemon())
        .disable(&path)
        .map_err(|e| Failure::of(format!("`{path}` was not disabled"), &e))?;
    if project.is_some() {
        tell(&places, "disable", &json!({"path": path}))?;
    }
    if global.json {
        say(
            json!({"project": project.as_ref().map(|p| &p.name), "path": path, "changed": changed}),
        )?;
        return Ok(Exit::Ok);
    }
    for file in &changed {
        say(format_args!("hooks removed: {}", file.display()))?;
    }
    match project {
        Some(p) => say(format_args!("disabled `{}`", p.name))?,
        None => say(format_args!("`{path}` was not enabled"))?,
    }
    Ok(Exit::Ok)
}

/// Tells a running daemon; `known`, `pending` or `not_running`.
fn tell(places: &Places, verb: &str, body: &Value) -> Result<String, Failure> {
    let answer =
        daemon_client(places).post::<_, Value>(&format!("/control/{verb}"), body, DEADLINE);
    match answer {
        Ok(answer) => Ok(answer["hub"].as_str().unwrap_or("pending").to_owned()),
        Err(ClientError::NotRunning { .. }) => Ok("not_running".to_owned()),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diff_shows_only_the_lines_that_differ() {
        assert_eq!(diff("a\nb\nc", "a\nx\ny\nc"), "@@ -2,1 +2,2 @@\n-b\n+x\n+y");
        assert_eq!(diff("", "a"), "@@ -1,0 +1,1 @@\n+a");
        assert_eq!(diff("a", "a"), "(no change)");
    }
}
