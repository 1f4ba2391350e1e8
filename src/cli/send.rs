//! `send` and the target flags that it shares with `task`.

use std::io::{IsTerminal as _, Read as _};

use clap::Args;
use serde_json::{Map, Value, json};

use super::long_running::runtime;
use super::producer::{ProducerArgs, post};
use super::report::{Exit, Failure, say};
use super::{Global, duration_s};
use crate::domain::{Priority, SessionId, limits};

/// Where it goes, how urgent it is, how long it lives.
#[derive(Debug, Args)]
pub(super) struct TargetArgs {
    /// The session
    #[arg(long, value_name = "ID")]
    session: Option<SessionId>,
    /// The project: its name, or its absolute path on a device
    #[arg(long, value_name = "NAME")]
    project: Option<String>,
    /// The device: its id or name
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// `urgent`, `normal` or `low` [default: normal]
    #[arg(long, value_parser = parse_priority)]
    priority: Option<Priority>,
    /// How long it may wait to be delivered, such as `2h`
    #[arg(long, value_parser = duration_s, value_name = "TIME")]
    expires: Option<i64>,
    /// Who is called back about it, by Standard Webhooks
    #[arg(long, value_name = "URL")]
    callback_url: Option<String>,
}

impl TargetArgs {
    /// The fields of the request's body.
    pub(super) fn fields(&self) -> Map<String, Value> {
        let fields = [
            ("session_id", self.session.map(|v| json!(v))),
            ("project", self.project.as_ref().map(|v| json!(v))),
            ("device", self.device.as_ref().map(|v| json!(v))),
            ("priority", self.priority.map(|v| json!(v))),
            ("expires_in_s", self.expires.map(|v| json!(v))),
            ("callback_url", self.callback_url.as_ref().map(|v| json!(v))),
        ];
        fields
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?)))
            .collect()
    }
}

fn parse_priority(text: &str) -> Result<Priority, String> {
    serde_json::from_value(Value::from(text)).map_err(|_| "one of urgent, normal, low".to_owned())
}

#[derive(Debug, Args)]
pub(super) struct SendArgs {
    /// The message; `-` reads it from standard input
    content: String,
    /// Leave it for the session's next turn instead of waking an idle session
    #[arg(long)]
    no_wake: bool,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    producer: ProducerArgs,
}

pub(super) fn run(global: &Global, args: &SendArgs) -> Result<Exit, Failure> {
    let content = text_of(&args.content, limits::MAX_ENVELOPE_BYTES)?;
    let mut body = args.target.fields();
    body.insert("content".to_owned(), json!(content));
    if args.no_wake {
        body.insert("wake".to_owned(), json!(false));
    }
    let api = args.producer.open(global)?;
    let answer = runtime()?.block_on(post(&api, &["messages"], &Value::Object(body)))?;
    accepted(global, "message", &answer)?;
    Ok(Exit::Ok)
}

/// Tells that the hub took it.
pub(super) fn accepted(global: &Global, what: &str, answer: &Value) -> Result<(), Failure> {
    if global.json {
        return say(answer);
    }
    let word = |name: &str| answer[name].as_str().unwrap_or("-").to_owned();
    say(format_args!(
        "{what} {}  {}  on {}",
        word("id"),
        word("status"),
        word("device")
    ))
}

/// The text itself, or standard input for `-`; bounded.
pub(super) fn text_of(argument: &str, most: usize) -> Result<String, Failure> {
    if argument != "-" {
        return Ok(argument.to_owned());
    }
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        // Data goes to standard error: nobody else could tell why nothing happens.
        eprint_hint();
    }
    let mut text = String::new();
    let most_read = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    stdin
        .lock()
        .take(most_read)
        .read_to_string(&mut text)
        .map_err(|e| Failure::of("standard input cannot be read as text", &e).exit(Exit::Usage))?;
    if text.len() > most {
        return Err(
            Failure::new(format!("standard input is longer than {most} bytes")).exit(Exit::Usage),
        );
    }
    Ok(text)
}

fn eprint_hint() {
    use std::io::Write as _;
    // Nobody is left to tell when standard error is gone.
    drop(writeln!(
        std::io::stderr(),
        "reading from the terminal; end with Ctrl-D"
    ));
}
