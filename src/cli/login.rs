//! `login`: this machine's key, known to a hub from now on.

use std::io::{IsTerminal as _, Read as _};
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::long_running::{load_config, runtime};
use super::report::{Exit, Failure, say};
use super::system::node_name;
use super::{Global, daemon_client};
use crate::auth::{Token, crypto};
use crate::config::HubUrl;
use crate::daemon::credentials::Credentials;
use crate::daemon::http::{HttpError, HubHttp};
use crate::daemon::way::Way;
use crate::domain::Code;
use crate::local::ClientError;

/// Bytes of a token on standard input.
const MAX_TOKEN: u64 = 16 << 10;
/// How long a running daemon may take to hear of the new credentials.
const DEADLINE: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(super) struct LoginArgs {
    /// The hub's address, such as `https://hub.example.org`
    url: HubUrl,
    /// Read the join token from standard input; it is given in no other way
    #[arg(long, required = true)]
    token_stdin: bool,
    /// This machine's name at the hub [default: the host's name]
    #[arg(long)]
    name: Option<String>,
}

pub(super) fn run(global: &Global, args: &LoginArgs) -> Result<Exit, Failure> {
    crypto::install();
    let places = global.places()?;
    let token = read_token()?;
    let config = load_config(&[])?;
    places
        .create_daemon_dirs()
        .map_err(|e| Failure::of(format!("`{}` cannot be used", places.root().display()), &e))?;
    let dir = places.daemon();
    let key =
        Credentials::key(&dir).map_err(|e| Failure::of("the device's key cannot be used", &e))?;
    let way = Way::new(&config)
        .map_err(|e| Failure::of("the trusted certificates cannot be used", &e))?;
    let http = HubHttp::new(&way, dir.clone(), None)
        .map_err(|e| Failure::of("no HTTP client could be set up", &e))?;
    let name = args.name.clone().unwrap_or_else(host_name);
    let enrolment = runtime()?
        .block_on(http.enrol(&args.url, &token, key.public(), &name))
        .map_err(|e| refused(&args.url, &e))?;
    Credentials::save(&dir, &enrolment)
        .map_err(|e| Failure::of("the enrolment could not be stored", &e))?;
    let connected =
        match daemon_client(&places).post::<_, Value>("/control/connect", &json!({}), DEADLINE) {
            Ok(_) => true,
            Err(ClientError::NotRunning { .. }) => false,
            Err(e) => return Err(e.into()),
        };
    if global.json {
        say(json!({
            "device": enrolment.device, "hub": args.url.to_string(), "account": enrolment.account, "daemon": connected,
        }))?;
    } else {
        say(format_args!(
            "enrolled as `{}` at {}",
            enrolment.device, args.url
        ))?;
        say(if connected {
            "the running daemon connects now"
        } else {
            "next: `remote-collab daemon run`"
        })?;
    }
    Ok(Exit::Ok)
}

fn refused(url: &HubUrl, e: &HttpError) -> Failure {
    let failure = Failure::of(format!("`{url}` did not enrol this machine"), e);
    match e.code() {
        Code::TokenInvalid | Code::TokenExpired | Code::TokenUsed | Code::TokenRevoked | Code::ScopeMissing => failure
            .exit(Exit::NotAuthorised)
            .hint("make a new join token at the hub: `remote-collab hub token create --name NAME --scope devices:enroll`"),
        _ => failure,
    }
}

fn read_token() -> Result<Token, Failure> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        // Typed input would stand on the screen and in its history.
        return Err(Failure::new(
            "the join token is read from standard input, not from a terminal",
        )
        .exit(Exit::Usage)
        .hint("`remote-collab login URL --token-stdin < FILE`"));
    }
    let mut text = String::new();
    stdin
        .lock()
        .take(MAX_TOKEN)
        .read_to_string(&mut text)
        .map_err(|e| Failure::of("standard input cannot be read", &e))?;
    Token::parse(text.trim())
        .map_err(|e| Failure::of("standard input holds no token", &e).exit(Exit::NotAuthorised))
}

/// The host's name, made fit for the hub's list.
pub(super) fn host_name() -> String {
    let name: String = node_name()
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || "._-".contains(c) {
                c
            } else {
                '-'
            }
        })
        .take(64)
        .collect();
    if name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        name
    } else {
        "device".to_owned()
    }
}
