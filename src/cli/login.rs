//! `login`: this machine's key, known to a hub from now on.

use std::io::{IsTerminal as _, Read as _};
use std::time::Duration;

use clap::Args;
use serde::Deserialize;
use serde_json::{Value, json};

use super::long_running::{load_config, runtime};
use super::report::{Exit, Failure, say};
use super::system::node_name;
use super::{Global, daemon_client};
use crate::auth::{DeviceKey, Token, crypto};
use crate::config::HubUrl;
use crate::daemon::credentials::Credentials;
use crate::daemon::http::{HttpError, HubHttp};
use crate::daemon::way::Way;
use crate::domain::{Code, DeviceId};
use crate::local::ClientError;

/// Bytes of a token on standard input.
const MAX_TOKEN: u64 = 16 << 10;
/// How long a running daemon may take to hear of the new credentials.
const DEADLINE: Duration = Duration::from_secs(10);
/// How long a running daemon may take to move the device here.
const TAKE_OVER: Duration = Duration::from_secs(20);

#[derive(Debug, Args)]
pub(super) struct LoginArgs {
    /// The hub's address, such as `https://hub.example.org`
    #[arg(required_unless_present = "take_over")]
    url: Option<HubUrl>,
    /// Read the join token from standard input; it is given in no other way
    #[arg(long, required_unless_present = "take_over")]
    token_stdin: bool,
    /// This machine's name at the hub [default: the host's name]
    #[arg(long)]
    name: Option<String>,
    /// Move the enrolled device here: another machine or data folder that holds its key is shut out
    #[arg(long, conflicts_with_all = ["url", "token_stdin", "name"])]
    take_over: bool,
}

pub(super) fn run(global: &Global, args: &LoginArgs) -> Result<Exit, Failure> {
    match &args.url {
        Some(url) => enrol(global, url, args.name.as_deref()),
        None => take_over(global),
    }
}

/// The link as a daemon tells it.
#[derive(Debug, Deserialize)]
struct Told {
    link: Link,
}

#[derive(Debug, Deserialize)]
struct Link {
    state: String,
    cause: Option<String>,
    code: Option<String>,
    hint: Option<String>,
}

/// Moves the device to this installation: at once by a running daemon, else by the next one.
fn take_over(global: &Global) -> Result<Exit, Failure> {
    let places = global.places()?;
    let dir = places.daemon();
    let enrolled = Credentials::load(&dir)
        .map_err(|e| Failure::of("the device's credentials cannot be used", &e))?;
    let Some(credentials) = enrolled else {
        return Err(Failure::new("this machine is not enrolled at a hub")
            .hint("`remote-collab login URL --token-stdin < FILE` enrols it"));
    };
    let device = &credentials.enrolment.device;
    let body = json!({ "take_over": true });
    match daemon_client(&places).post::<_, Told>("/control/connect", &body, TAKE_OVER) {
        Ok(Told { link }) if link.code.is_some() => {
            let mut failure = Failure::new(format!("`{device}` was not moved here"));
            failure.causes.extend(link.cause);
            Err(match link.hint {
                Some(hint) => failure.hint(hint),
                None => failure,
            })
        }
        Ok(Told { link }) if link.state == "SYNCED" => done(
            global,
            device,
            true,
            &format!(
                "`{device}` is connected from here now; any other daemon with its key is shut out"
            ),
        ),
        Ok(Told { link }) => done(
            global,
            device,
            true,
            &format!(
                "`{device}` moves here with the next connection ({}: {})",
                link.state,
                link.cause.as_deref().unwrap_or("under way")
            ),
        ),
        Err(ClientError::NotRunning { .. }) => {
            Credentials::ask_take_over(&dir)
                .map_err(|e| Failure::of("the take-over could not be noted", &e))?;
            let next = format!("`{device}` moves here with the next `remote-collab daemon run`");
            done(global, device, false, &next)
        }
        Err(e) => Err(e.into()),
    }
}

fn done(global: &Global, device: &DeviceId, daemon: bool, words: &str) -> Result<Exit, Failure> {
    if global.json {
        say(json!({ "device": device, "daemon": daemon }))?;
    } else {
        say(words)?;
    }
    Ok(Exit::Ok)
}

fn enrol(global: &Global, url: &HubUrl, name: Option<&str>) -> Result<Exit, Failure> {
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
    let (runtime, name) = (runtime()?, name.map_or_else(host_name, str::to_owned));
    let enrolled = |key: &DeviceKey| runtime.block_on(http.enrol(url, &token, key.public(), &name));
    let enrolment = match enrolled(&key) {
        // The old key stays revoked; the machine comes back as a new device, with the queue that it has.
        Err(e) if e.code() == Code::DeviceRevoked => {
            let key = Credentials::replace_key(&dir)
                .map_err(|e| Failure::of("the revoked key could not be replaced", &e))?;
            enrolled(&key)
        }
        enrolled => enrolled,
    }
    .map_err(|e| refused(url, &e))?;
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
            "device": enrolment.device, "hub": url.to_string(), "account": enrolment.account, "daemon": connected,
        }))?;
    } else {
        say(format_args!(
            "enrolled as `{}` at {}",
            enrolment.device, url
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
        Code::NotConnected => {
            let failure = failure.exit(Exit::NotConnected);
            if failure.causes.iter().any(|c| c.contains("UnknownIssuer")) {
                failure.hint("a hub with a certificate of a private CA: name that CA's PEM file by SSL_CERT_FILE, or for good by the key `ca_file`")
            } else {
                failure
            }
        }
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
