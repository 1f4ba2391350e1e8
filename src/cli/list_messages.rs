//! `list-messages`: what waits in this device's queue; looking takes nothing.

use std::time::Duration;

use clap::Args;
use serde_json::Value;

use super::report::{Exit, Failure, say};
use super::{Global, daemon_client};
use crate::delivery::fence::utc;
use crate::domain::{SessionId, WallMs};

const DEADLINE: Duration = Duration::from_secs(5);
/// Longest part of a message that is shown, characters.
const SHOWN: usize = 100;

#[derive(Debug, Args)]
pub(super) struct ListMessagesArgs {
    /// Only what this session would get
    #[arg(long, value_name = "ID")]
    session: Option<SessionId>,
    /// How many at most
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100), value_name = "N")]
    limit: u32,
}

pub(super) fn run(global: &Global, args: &ListMessagesArgs) -> Result<Exit, Failure> {
    let session = args.session.map(|id| format!("&session={id}"));
    let path = format!(
        "/messages?peek=1&limit={}{}",
        args.limit,
        session.unwrap_or_default()
    );
    let answer: Value = daemon_client(&global.places()?).get(&path, DEADLINE)?;
    if global.json {
        say(&answer)?;
        return Ok(Exit::Ok);
    }
    let messages = answer["messages"].as_array().cloned().unwrap_or_default();
    for message in &messages {
        say(line(message))?;
    }
    if messages.is_empty() {
        say("no messages wait")?;
    }
    Ok(Exit::Ok)
}

/// A message in one line; what its sender wrote is kept from moving the cursor of a terminal.
fn line(message: &Value) -> String {
    let word = |name: &str| message[name].as_str().unwrap_or("-");
    let at = message["timestamp"].as_i64();
    let at = at.map_or_else(|| "-".to_owned(), |ms| utc(WallMs(ms)));
    let content = word("content");
    let mut shown: String = content
        .chars()
        .take(SHOWN)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    if content.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    let held = message["held"].as_str();
    let held = held.map(|r| format!("  [{r}]")).unwrap_or_default();
    format!(
        "{}  {at}  {} ({})  {shown}{held}",
        word("id"),
        word("from"),
        word("trust")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_message_cannot_write_on_the_terminal_and_is_cut_between_characters() {
        let long = format!("\u{1b}[2J\n{}", "好".repeat(200));
        let shown = line(&json!({
            "id": "i", "content": long, "from": "ci", "trust": "inform", "timestamp": 0, "held": "no_session",
        }));
        assert!(!shown.chars().any(char::is_control), "{shown:?}");
        assert!(shown.contains("好…  [no_session]"), "{shown}");
    }
}
