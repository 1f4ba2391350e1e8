//! A project's own file: it comes with the repository, so it may only make things stricter.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::{Approval, FILE, Policy, read_file};
use crate::domain::ProjectName;

/// A key of a project's file that has no effect, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ignored {
    /// The key; empty if it is about the whole file.
    pub key: String,
    /// Why it has no effect.
    pub why: String,
}

/// What a project's file says.
#[derive(Debug, Clone, PartialEq)]
pub struct ProjectFile {
    /// The project's display name.
    pub name: Option<ProjectName>,
    /// The narrowed policy.
    pub policy: Policy,
    /// What had no effect.
    pub ignored: Vec<Ignored>,
}

/// Narrows `base` by the file of the project in `root`.
#[must_use]
pub fn read_project(root: &Path, base: &Policy) -> ProjectFile {
    match read_file(&root.join(FILE)) {
        Ok(value) => narrow(value.unwrap_or(Value::Null), base),
        Err(problem) => ProjectFile {
            name: None,
            policy: base.clone(),
            ignored: vec![Ignored {
                key: String::new(),
                why: problem.to_string(),
            }],
        },
    }
}

fn narrow(value: Value, base: &Policy) -> ProjectFile {
    let mut out = ProjectFile {
        name: None,
        policy: base.clone(),
        ignored: Vec::new(),
    };
    let mut leaves = Vec::new();
    flatten(String::new(), value, &mut leaves);
    for (key, value) in leaves {
        if let Err(why) = take(&mut out, &key, &value) {
            out.ignored.push(Ignored {
                key,
                why: why.to_owned(),
            });
        }
    }
    out
}

fn flatten(at: String, value: Value, leaves: &mut Vec<(String, Value)>) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                let path = if at.is_empty() {
                    name
                } else {
                    format!("{at}.{name}")
                };
                flatten(path, value, leaves);
            }
        }
        Value::Null => {}
        value => leaves.push((at, value)),
    }
}

fn take(out: &mut ProjectFile, key: &str, value: &Value) -> Result<(), &'static str> {
    let policy = &mut out.policy;
    match key {
        "name" => {
            let name = value.as_str().and_then(|s| ProjectName::new(s).ok());
            out.name = Some(name.ok_or("not a project's name")?);
        }
        "features.memory_injection" => off(value, &mut policy.features.memory_injection)?,
        "features.message_notification" => off(value, &mut policy.features.message_notification)?,
        "features.remote_task_execution" => {
            off(value, &mut policy.features.remote_task_execution)?;
        }
        "approval" if value == "always" => policy.approval = Approval::Always,
        "approval" => return Err("a project can only ask for `always`"),
        "runs.concurrent" => lower(value.as_u64(), &mut policy.runs.concurrent)?,
        "runs.max_turns" => lower(value.as_u64(), &mut policy.runs.max_turns)?,
        "runs.timeout" => {
            let time = match value {
                Value::String(s) => super::duration::parse(s),
                v => v.as_u64().map(Duration::from_secs),
            };
            let time = time.filter(|t| !t.is_zero()).ok_or("not a time")?;
            if time > policy.runs.timeout {
                return Err("a project can only lower limits");
            }
            policy.runs.timeout = time;
        }
        "runs.max_budget_usd" => {
            let usd = value.as_f64().filter(|v| *v > 0.0).ok_or("not an amount")?;
            if usd > policy.runs.max_budget_usd {
                return Err("a project can only lower limits");
            }
            policy.runs.max_budget_usd = usd;
        }
        _ => return Err("a project's file has no say in this; set it in your own file"),
    }
    Ok(())
}

fn off(value: &Value, flag: &mut bool) -> Result<(), &'static str> {
    match value {
        Value::Bool(false) => *flag = false,
        Value::Bool(true) if *flag => {}
        _ => return Err("a project can only switch features off"),
    }
    Ok(())
}

fn lower(value: Option<u64>, limit: &mut u32) -> Result<(), &'static str> {
    let n = value
        .and_then(|v| u32::try_from(v).ok())
        .filter(|v| *v > 0)
        .ok_or("not a number from 1 up")?;
    if n > *limit {
        return Err("a project can only lower limits");
    }
    *limit = n;
    Ok(())
}
