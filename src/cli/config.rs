//! `config`: what is in force and where it comes from, and what is wrong with it.

use std::path::Path;

use clap::Subcommand;
use serde_json::{Value, json};

use super::Global;
use super::report::{Exit, Failure, say};
use crate::config::{self, ConfigError, DaemonConfig, Ignored, Sources, explain, read_project};
use crate::local::process_env;

#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// Show every key: its value, and which file or variable set it
    Show,
    /// Check the configuration: all problems at once, each with what to do
    Check,
}

pub(super) fn run(global: &Global, command: &ConfigCommand) -> Result<Exit, Failure> {
    let file = process_env("HOME").map(|home| Path::new(&home).join(config::FILE));
    let sources = Sources {
        file: file.as_deref(),
        env: &process_env,
        flags: &[],
    };
    let loaded = DaemonConfig::load(sources);
    let here = std::env::current_dir().ok();
    // The user's own file may lie in the folder that is looked at: then it is no project's.
    let project = here.filter(|dir| file.as_deref() != Some(dir.join(config::FILE).as_path()));
    let ignored = match (&loaded, &project) {
        (Ok(config), Some(root)) => read_project(root, &config.policy).ignored,
        _ => Vec::new(),
    };
    match command {
        ConfigCommand::Show => show(global, sources, &ignored)?,
        ConfigCommand::Check => check(global, loaded.as_ref().err(), &ignored)?,
    }
    match loaded {
        Ok(_) => Ok(Exit::Ok),
        // What is wrong stands on standard output already.
        Err(_) if global.json => Ok(Exit::Usage),
        Err(e) => Err(unusable(&e)),
    }
}

/// The failure of a configuration that cannot be used.
pub(super) fn unusable(e: &ConfigError) -> Failure {
    let mut failure = Failure::new("the configuration cannot be used").exit(Exit::Usage);
    failure.causes = e.0.iter().map(ToString::to_string).collect();
    failure
}

fn show(global: &Global, sources: Sources<'_>, ignored: &[Ignored]) -> Result<(), Failure> {
    let all = explain(sources);
    if global.json {
        let keys: Vec<Value> = all
            .iter()
            .map(|e| json!({"key": e.key, "value": e.value, "source": e.source}))
            .collect();
        return say(json!({ "keys": keys, "ignored": pairs(ignored) }));
    }
    for e in &all {
        let source = e.source.as_deref().unwrap_or("default");
        say(format_args!(
            "{:<32} {:<26} {source}",
            e.key,
            e.value.to_string()
        ))?;
    }
    tell_ignored(ignored)
}

fn check(global: &Global, error: Option<&ConfigError>, ignored: &[Ignored]) -> Result<(), Failure> {
    if global.json {
        let problems: Vec<Value> = error
            .into_iter()
            .flat_map(|e| &e.0)
            .map(|p| json!({"key": p.key, "source": p.source, "what": p.what, "hint": p.hint}))
            .collect();
        return say(json!({
            "ok": problems.is_empty(), "problems": problems, "ignored": pairs(ignored),
        }));
    }
    tell_ignored(ignored)?;
    if error.is_none() {
        say("the configuration is good")?;
    }
    Ok(())
}

fn pairs(ignored: &[Ignored]) -> Vec<Value> {
    ignored
        .iter()
        .map(|i| json!({"key": i.key, "why": i.why}))
        .collect()
}

fn tell_ignored(ignored: &[Ignored]) -> Result<(), Failure> {
    for i in ignored {
        say(format_args!(
            "ignored in this project's file: `{}`: {}",
            i.key, i.why
        ))?;
    }
    Ok(())
}
