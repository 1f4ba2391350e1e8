//! `task`: posts a task, and with `--wait` follows it to its end.
//!
//! Waiting listens to the task's events and takes each as a reason to look; what the hub answers to `GET /tasks/{id}` is
//! the truth. A stream that breaks is opened anew behind the last event, so that a hub's restart is only a pause.

use std::time::Duration;

use clap::Args;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep, timeout_at};

use super::long_running::runtime;
use super::producer::{ProducerArgs, failure, post};
use super::report::{Exit, Failure, note, say};
use super::send::{TargetArgs, accepted, text_of};
use super::{Global, duration_s};
use crate::daemon::http::{HttpError, ProducerHttp, Verb};
use crate::domain::{PermissionMode, TaskStatus, limits};

/// The waits between two looks while the hub is away.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// How long the hub may be away before waiting ends.
const AWAY: Duration = Duration::from_secs(15 * 60);
/// Longest step of a run that is shown, characters.
const SHOWN: usize = 100;

#[derive(Debug, Args)]
pub(super) struct TaskArgs {
    /// What to do; `-` reads it from standard input
    task: String,
    /// Wait for its end, print the result, and exit 0 only if it completed
    #[arg(long)]
    wait: bool,
    /// With `--wait`: give up waiting after this, such as `30m`; the task goes on
    #[arg(long, value_parser = duration_s, value_name = "TIME", requires = "wait")]
    wait_for: Option<i64>,
    #[command(flatten)]
    target: TargetArgs,
    /// JSON of your own that the hub keeps with the task
    #[arg(long, value_parser = parse_json, value_name = "JSON")]
    metadata: Option<Value>,
    #[command(flatten)]
    producer: ProducerArgs,
    // Last: its heading holds for all that follows.
    #[command(flatten)]
    options: OptionArgs,
}

/// Wishes for the run; each only narrows what the project's owner allows.
#[derive(Debug, Args)]
#[command(next_help_heading = "The run (each only narrows the project's policy)")]
struct OptionArgs {
    /// The model
    #[arg(long)]
    model: Option<String>,
    /// Model turns at most
    #[arg(long, value_name = "N")]
    max_turns: Option<u32>,
    /// Cost at most, US dollars
    #[arg(long, value_name = "USD")]
    max_budget_usd: Option<f64>,
    /// Wall-clock time at most, such as `10m`
    #[arg(long, value_parser = duration_s, value_name = "TIME")]
    timeout: Option<i64>,
    /// `manual`, `acceptEdits`, `plan` or `dontAsk`
    #[arg(long, value_parser = parse_mode, value_name = "MODE")]
    permission_mode: Option<PermissionMode>,
    /// A tool that may be used; may be repeated
    #[arg(long = "allowed-tool", value_name = "TOOL")]
    allowed_tools: Vec<String>,
    /// More context, fenced like the task
    #[arg(long, value_name = "TEXT")]
    append_context: Option<String>,
}

impl OptionArgs {
    fn fields(&self) -> Map<String, Value> {
        let tools = (!self.allowed_tools.is_empty()).then(|| json!(self.allowed_tools));
        let fields = [
            ("model", self.model.as_ref().map(|v| json!(v))),
            ("max_turns", self.max_turns.map(|v| json!(v))),
            ("max_budget_usd", self.max_budget_usd.map(|v| json!(v))),
            ("timeout_s", self.timeout.map(|v| json!(v))),
            ("permission_mode", self.permission_mode.map(|v| json!(v))),
            ("allowed_tools", tools),
            (
                "append_context",
                self.append_context.as_ref().map(|v| json!(v)),
            ),
        ];
        fields
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?)))
            .collect()
    }
}

fn parse_mode(text: &str) -> Result<PermissionMode, String> {
    serde_json::from_value(Value::from(text))
        .map_err(|_| "one of manual, acceptEdits, plan, dontAsk".to_owned())
}

fn parse_json(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|e| e.to_string())
}

pub(super) fn run(global: &Global, args: &TaskArgs) -> Result<Exit, Failure> {
    let mut body = args.target.fields();
    body.insert(
        "task".to_owned(),
        json!(text_of(&args.task, limits::MAX_TASK_BYTES)?),
    );
    let options = args.options.fields();
    if !options.is_empty() {
        body.insert("options".to_owned(), Value::Object(options));
    }
    if let Some(metadata) = &args.metadata {
        body.insert("metadata".to_owned(), metadata.clone());
    }
    let api = args.producer.open(global)?;
    runtime()?.block_on(async {
        let answer = post(&api, &["tasks"], &Value::Object(body)).await?;
        if !args.wait {
            accepted(global, "task", &answer)?;
            return Ok(Exit::Ok);
        }
        let id = answer["id"].as_str().unwrap_or_default().to_owned();
        note(format_args!(
            "task {id} on {}",
            answer["device"].as_str().unwrap_or("-")
        ));
        let task = wait(&api, &id, args.wait_for).await?;
        ended(global, &api, &task).await
    })
}

/// Follows a task to its end.
pub(super) async fn wait(
    api: &ProducerHttp,
    id: &str,
    wait_for_s: Option<i64>,
) -> Result<Value, Failure> {
    let follower = Follower {
        api,
        id,
        after: None,
        told: String::new(),
    };
    let Some(seconds) = wait_for_s else {
        return follower.follow().await;
    };
    let until = Instant::now() + Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    match timeout_at(until, follower.follow()).await {
        Ok(ended) => ended,
        Err(_) => Err(
            Failure::new(format!("the task {id} has not ended in time")).hint(format!(
                "it goes on; `remote-collab tasks show {id}` tells how far it came"
            )),
        ),
    }
}

struct Follower<'a> {
    api: &'a ProducerHttp,
    id: &'a str,
    /// The last event that was seen.
    after: Option<String>,
    /// What was told last.
    told: String,
}

impl Follower<'_> {
    async fn follow(mut self) -> Result<Value, Failure> {
        let (mut pause, mut away_since) = (FIRST_WAIT, None);
        loop {
            match self.look_and_listen().await {
                Ok(Some(task)) => return Ok(task),
                // The stream ended in order: there is something to look at.
                Ok(None) => {
                    away_since = None;
                    pause = FIRST_WAIT;
                }
                Err(e) if is_passing(&e) => {
                    let since: &mut Instant = away_since.get_or_insert_with(Instant::now);
                    if since.elapsed() > AWAY {
                        return Err(failure(self.api, &e));
                    }
                    self.tell(format!("the hub is away ({e}); waiting"));
                    pause = (pause * 2).min(LONGEST_WAIT);
                }
                Err(e) => return Err(failure(self.api, &e)),
            }
            sleep(pause).await;
        }
    }

    /// Reads the task, then its events until one may have ended it or the stream ends.
    async fn look_and_listen(&mut self) -> Result<Option<Value>, HttpError> {
        // Opened before the look, so that nothing falls between the two.
        let path = ["tasks", self.id, "events"];
        let mut events = self.api.events(&path, self.after.as_deref()).await?;
        if let Some(task) = self.look().await? {
            return Ok(Some(task));
        }
        while let Some(event) = events.next().await? {
            self.after = event.id.or(self.after.take());
            let data: Value = serde_json::from_str(&event.data).unwrap_or_default();
            match event.kind.as_str() {
                "task.progress" => {
                    if let Some(text) = progress(&data) {
                        self.tell(text);
                    }
                }
                // What moves the task, or may have moved it unseen.
                "task.status" | "task.attempt" | "snapshot" | "reset" | "end" => {
                    if let Some(task) = self.look().await? {
                        return Ok(Some(task));
                    }
                }
                _ => {}
            }
        }
        self.look().await
    }

    /// The task, if it has ended.
    async fn look(&mut self) -> Result<Option<Value>, HttpError> {
        let path = ["tasks", self.id];
        let task = self.api.call(Verb::Get, &path, &[], None, None).await?;
        self.tell(status(&task));
        Ok(is_over(&task).then_some(task))
    }

    fn tell(&mut self, text: String) {
        if text != self.told {
            note(format_args!("{text}"));
            self.told = text;
        }
    }
}

/// Whether a failure may pass by itself.
fn is_passing(e: &HttpError) -> bool {
    match e {
        HttpError::Network(_) => true,
        HttpError::Edge(status) => *status >= 500,
        HttpError::Refused(p) => p.status == 429 || p.status >= 500,
        _ => false,
    }
}

fn is_over(task: &Value) -> bool {
    let status: Option<TaskStatus> = serde_json::from_value(task["status"].clone()).ok();
    status.is_some_and(TaskStatus::is_terminal)
}

/// Where a task stands, for people.
pub(super) fn status(task: &Value) -> String {
    let status = task["status"].as_str().unwrap_or("-");
    match task["reason"].as_str() {
        Some(reason) if reason != status => format!("{status} ({reason})"),
        _ => status.to_owned(),
    }
}

/// A step of a run in one line.
fn progress(data: &Value) -> Option<String> {
    let text = data["text"].as_str()?;
    let line = text.lines().find(|l| !l.trim().is_empty())?;
    let mut shown: String = line.chars().take(SHOWN).collect();
    if shown.len() < line.len() {
        shown.push('…');
    }
    Some(shown)
}

/// Tells the end: the result on standard output, the exit code by status.
pub(super) async fn ended(
    global: &Global,
    api: &ProducerHttp,
    task: &Value,
) -> Result<Exit, Failure> {
    let completed = task["status"] == TaskStatus::Completed.as_str();
    if global.json {
        say(task)?;
    } else if let Some(text) = task["result"]["text"].as_str().filter(|t| !t.is_empty()) {
        if task["result"]["truncated"] == true {
            let id = task["id"].as_str().unwrap_or_default();
            say(whole(api, id).await?)?;
        } else {
            say(text)?;
        }
    }
    if completed {
        return Ok(Exit::Ok);
    }
    if global.json {
        return Ok(Exit::Failed);
    }
    let id = task["id"].as_str().unwrap_or_default();
    Err(
        Failure::new(format!("the task {id} ended as {}", status(task)))
            .hint(format!("`remote-collab tasks retry {id}` tries it again")),
    )
}

/// The whole text of a result that is shown cut.
pub(super) async fn whole(api: &ProducerHttp, id: &str) -> Result<String, Failure> {
    api.text(&["tasks", id, "result"])
        .await
        .map_err(|e| failure(api, &e))
}
