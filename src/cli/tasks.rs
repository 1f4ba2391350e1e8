//! `tasks`: what became of tasks, and what a producer does about them afterwards.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::Global;
use super::long_running::runtime;
use super::producer::{ProducerArgs, get, post};
use super::report::{Exit, Failure, say};
use super::task::{ended, status, wait, whole};
use crate::delivery::fence::utc;
use crate::domain::{EnvelopeId, WallMs};

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct TasksArgs {
    #[command(subcommand)]
    command: Option<TasksCommand>,
    #[command(flatten)]
    list: ListArgs,
}

#[derive(Debug, Args)]
struct ListArgs {
    /// Only of these statuses, such as `running,failed`
    #[arg(long, value_delimiter = ',', value_name = "STATUS")]
    status: Vec<String>,
    /// Only of this project
    #[arg(long, value_name = "NAME")]
    project: Option<String>,
    /// Only of this device
    #[arg(long, value_name = "ID")]
    device: Option<String>,
    /// How many, newest first
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000), value_name = "N")]
    limit: u32,
    #[command(flatten)]
    producer: ProducerArgs,
}

#[derive(Debug, Subcommand)]
enum TasksCommand {
    /// Show one task: status, receipts, attempts, replies, result
    Show(OneArgs),
    /// Wait for a task's end, print the result, and exit 0 only if it completed
    Wait(OneArgs),
    /// Print a result's whole text, however long it is
    Result(OneArgs),
    /// Cancel a task
    Cancel(OneArgs),
    /// Try a task again that has ended
    Retry(RetryArgs),
}

#[derive(Debug, Args)]
struct OneArgs {
    /// The task's id
    id: EnvelopeId,
    #[command(flatten)]
    producer: ProducerArgs,
}

#[derive(Debug, Args)]
struct RetryArgs {
    #[command(flatten)]
    one: OneArgs,
    /// Do it once more, also if it was completed
    #[arg(long)]
    force: bool,
}

pub(super) fn run(global: &Global, args: &TasksArgs) -> Result<Exit, Failure> {
    match &args.command {
        None => list(global, &args.list),
        Some(TasksCommand::Show(one)) => {
            let api = one.producer.open(global)?;
            let id = one.id.to_string();
            let task = runtime()?.block_on(get(&api, &["tasks", &id], &[]))?;
            if global.json {
                say(task)?;
            } else {
                say(show(&task))?;
            }
            Ok(Exit::Ok)
        }
        Some(TasksCommand::Wait(one)) => {
            let api = one.producer.open(global)?;
            runtime()?.block_on(async {
                let task = wait(&api, &one.id.to_string(), None).await?;
                ended(global, &api, &task).await
            })
        }
        Some(TasksCommand::Result(one)) => {
            let api = one.producer.open(global)?;
            let text = runtime()?.block_on(whole(&api, &one.id.to_string()))?;
            if global.json {
                say(json!({ "text": text }))?;
            } else {
                say(text)?;
            }
            Ok(Exit::Ok)
        }
        Some(TasksCommand::Cancel(one)) => change(global, one, "cancel", &json!({})),
        Some(TasksCommand::Retry(retry)) => {
            let body = if retry.force {
                json!({ "force": true })
            } else {
                json!({})
            };
            change(global, &retry.one, "retry", &body)
        }
    }
}

fn change(global: &Global, one: &OneArgs, verb: &str, body: &Value) -> Result<Exit, Failure> {
    let api = one.producer.open(global)?;
    let id = one.id.to_string();
    let answer = runtime()?.block_on(post(&api, &["tasks", &id, verb], body))?;
    if global.json {
        say(answer)?;
    } else {
        say(format_args!("{verb} {id}: {}", status(&answer)))?;
    }
    Ok(Exit::Ok)
}

/// Tasks in one answer of the hub at most.
const PAGE: u32 = 100;

fn list(global: &Global, args: &ListArgs) -> Result<Exit, Failure> {
    let api = args.producer.open(global)?;
    let mut filters = Vec::new();
    if !args.status.is_empty() {
        filters.push(("status", args.status.join(",")));
    }
    for (name, value) in [("project", &args.project), ("device", &args.device)] {
        filters.extend(value.clone().map(|v| (name, v)));
    }
    let (tasks, next) = runtime()?.block_on(async {
        let mut tasks: Vec<Value> = Vec::new();
        let mut next = None;
        loop {
            let left = args
                .limit
                .saturating_sub(u32::try_from(tasks.len()).unwrap_or(u32::MAX));
            let mut query = filters.clone();
            query.push(("limit", left.min(PAGE).to_string()));
            query.extend(next.take().map(|cursor| ("cursor", cursor)));
            let page = get(&api, &["tasks"], &query).await?;
            tasks.extend(page["tasks"].as_array().cloned().unwrap_or_default());
            next = page["next"].as_str().map(str::to_owned);
            // A page may be short: only the cursor tells the end.
            if next.is_none() || tasks.len() >= args.limit as usize {
                return Ok::<_, Failure>((tasks, next));
            }
        }
    })?;
    if global.json {
        say(json!({ "tasks": tasks, "next": next }))?;
        return Ok(Exit::Ok);
    }
    for task in &tasks {
        let word = |name: &str| task[name].as_str().unwrap_or("-");
        say(format_args!(
            "{}  {}  {}  {}  {}",
            word("id"),
            time(&task["created_at"]),
            word("device"),
            word("project"),
            status(task),
        ))?;
    }
    if tasks.is_empty() {
        say("no tasks")?;
    } else if next.is_some() {
        say(format_args!(
            "more follow; `--limit {}` shows them",
            args.limit.saturating_mul(2)
        ))?;
    }
    Ok(Exit::Ok)
}

fn time(value: &Value) -> String {
    value
        .as_i64()
        .map_or_else(|| "-".to_owned(), |ms| utc(WallMs(ms)))
}

/// A task for people: one fact a line.
fn show(task: &Value) -> String {
    let mut lines = vec![format!("status    {}", status(task))];
    for (label, name) in [
        ("device", "device"),
        ("project", "project"),
        ("session", "session_id"),
    ] {
        if let Some(value) = task[name].as_str() {
            lines.push(format!("{label:<10}{value}"));
        }
    }
    let from = &task["from"];
    lines.push(format!(
        "from      {} ({})",
        from["name"].as_str().unwrap_or("-"),
        from["trust"].as_str().unwrap_or("-")
    ));
    lines.push(format!("created   {}", time(&task["created_at"])));
    let list = |name: &str| task[name].as_array().cloned().unwrap_or_default();
    for receipt in list("receipts") {
        let stage = receipt["stage"].as_str().unwrap_or("-");
        let more = receipt["reason"].as_str().or(receipt["door"].as_str());
        let more = more.map(|m| format!(" ({m})")).unwrap_or_default();
        lines.push(format!("receipt   {}  {stage}{more}", time(&receipt["at"])));
    }
    for attempt in list("attempts") {
        lines.push(format!(
            "attempt   {}  created {}  started {}  ended {}",
            attempt["attempt"],
            time(&attempt["created_at"]),
            time(&attempt["started_at"]),
            time(&attempt["ended_at"]),
        ));
    }
    for reply in list("replies") {
        lines.push(format!(
            "reply     {}  {}",
            time(&reply["at"]),
            reply["content"]
                .as_str()
                .or(reply["text"].as_str())
                .unwrap_or("-")
        ));
    }
    let result = &task["result"];
    if result.is_object() {
        for (label, name) in [("turns", "num_turns"), ("cost", "cost_usd")] {
            if !result[name].is_null() {
                lines.push(format!("{label:<10}{}", result[name]));
            }
        }
        let text = result["text"].as_str().filter(|t| !t.is_empty());
        lines.push(format!("result    {}", text.unwrap_or("-")));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_shown_with_what_happened_to_it() {
        let shown = show(&json!({
            "status": "failed", "reason": "timeout", "device": "d", "project": "shop",
            "from": {"name": "ci", "trust": "run"}, "created_at": 0,
            "receipts": [{"stage": "claimed", "door": "headless", "at": 1000}],
            "attempts": [{"attempt": 1, "created_at": 0}],
            "replies": [], "result": {"text": "half of it", "num_turns": 3, "cost_usd": 0.25},
        }));
        for part in [
            "failed (timeout)",
            "shop",
            "ci (run)",
            "claimed (headless)",
            "1970-01-01T00:00:01Z",
            "half of it",
            "0.25",
        ] {
            assert!(shown.contains(part), "{part}\n{shown}");
        }
        let waits = json!({"status": "awaiting_approval", "reason": "awaiting_approval"});
        assert_eq!(status(&waits), "awaiting_approval");
    }
}
