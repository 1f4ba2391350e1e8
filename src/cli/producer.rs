//! What the commands of a producer share: which hub, which token, the call, and its failures as exit codes.
//!
//! The hub is that of `--hub`, else of the configuration, else the one that the daemon of this installation talks to, else
//! the one that this machine was enrolled at. The token never stands on a command line: it comes from a file, from the
//! environment, or, for the hub of `up` on this machine, from the file that `up` wrote.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use super::long_running::load_config;
use super::report::{Exit, Failure};
use super::up::TOKEN_FILE;
use super::{Global, daemon_client};
use crate::auth::{Token, crypto, keys::check_private};
use crate::config::HubUrl;
use crate::daemon::credentials::Credentials;
use crate::daemon::http::{HttpError, ProducerHttp, Verb};
use crate::daemon::way::Way;
use crate::domain::Code;
use crate::local::{Places, process_env};

/// The variable that holds a token.
const TOKEN_ENV: &str = "REMOTE_COLLAB_TOKEN";
/// How long the daemon may take to say which hub it talks to.
const ASK: Duration = Duration::from_secs(2);
/// Tries of a call that changes something; its idempotency key makes a repetition harmless.
const TRIES: u32 = 5;
/// The wait before the first repetition; doubled each time.
const AGAIN: Duration = Duration::from_millis(300);
/// The longest wait that a hub may ask for before a command gives up.
const LONGEST_WAIT_S: u64 = 30;

/// Which hub, and as whom.
#[derive(Debug, Args)]
pub(super) struct ProducerArgs {
    /// The hub [default: that of the configuration, the daemon, or `login`]
    #[arg(long, value_name = "URL")]
    hub: Option<HubUrl>,
    /// A file (0600) with the token [default: REMOTE_COLLAB_TOKEN, else what `up` made]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl ProducerArgs {
    /// The hub's API with the token.
    pub(super) fn open(&self, global: &Global) -> Result<ProducerHttp, Failure> {
        crypto::install();
        let places = global.places()?;
        let config = load_config(&[])?;
        let configured = self.hub.clone().or_else(|| config.remote_api.clone());
        let hub = match configured {
            Some(hub) => hub,
            None => hub_of(&places)?,
        };
        let token = self.token(&places, &hub)?;
        let way = Way::new(&config)
            .map_err(|e| Failure::of("the trusted certificates cannot be used", &e))?;
        ProducerHttp::new(&way, hub, token)
            .map_err(|e| Failure::of("no HTTP client could be set up", &e))
    }

    fn token(&self, places: &Places, hub: &HubUrl) -> Result<Token, Failure> {
        if let Some(file) = &self.token_file {
            return read_token(file);
        }
        if let Some(token) = process_env(TOKEN_ENV) {
            return parse(&token.to_string_lossy(), TOKEN_ENV);
        }
        let made_by_up = places.root().join(TOKEN_FILE);
        // It belongs to the hub on this machine and is shown to no other.
        if hub.is_loopback() && made_by_up.exists() {
            return read_token(&made_by_up);
        }
        Err(Failure::new("no token to call the hub with")
            .exit(Exit::NotAuthorised)
            .hint(format!(
                "`remote-collab hub token create --name NAME --trust run --scope tasks:write,tasks:read,messages:write` at the hub makes \
                 one; give it by `--token-file FILE` or {TOKEN_ENV}"
            )))
    }
}

/// The hub that this installation belongs to.
fn hub_of(places: &Places) -> Result<HubUrl, Failure> {
    // A daemon that is away, or old, tells nothing.
    let told = daemon_client(places).get::<Value>("/status", ASK).ok();
    let told = told.and_then(|s| s["link"]["hub"].as_str()?.parse().ok());
    if let Some(hub) = told {
        return Ok(hub);
    }
    let enrolled = Credentials::load(&places.daemon())
        .map_err(|e| Failure::of("the enrolment cannot be read", &e))?;
    enrolled.map(|c| c.enrolment.hub).ok_or_else(|| {
        Failure::new("no hub is known here")
            .exit(Exit::Usage)
            .hint("name it by `--hub URL`, or enrol this machine: `remote-collab login`")
    })
}

fn read_token(path: &Path) -> Result<Token, Failure> {
    let failed = |e: &dyn std::error::Error| {
        Failure::of(
            format!("the token in `{}` cannot be used", path.display()),
            e,
        )
        .exit(Exit::NotAuthorised)
    };
    let file = File::open(path).map_err(|e| failed(&e))?;
    check_private(&file, path).map_err(|e| failed(&e))?;
    let text = std::io::read_to_string(file).map_err(|e| failed(&e))?;
    parse(&text, &format!("`{}`", path.display()))
}

fn parse(text: &str, source: &str) -> Result<Token, Failure> {
    Token::parse(text.trim())
        .map_err(|e| Failure::of(format!("{source} holds no token"), &e).exit(Exit::NotAuthorised))
}

/// Reads something.
pub(super) async fn get(
    api: &ProducerHttp,
    path: &[&str],
    query: &[(&str, String)],
) -> Result<Value, Failure> {
    api.call(Verb::Get, path, query, None, None)
        .await
        .map_err(|e| failure(api, &e))
}

/// Changes something, once: the call is repeated with the same key where it is open whether it arrived.
pub(super) async fn post(
    api: &ProducerHttp,
    path: &[&str],
    body: &Value,
) -> Result<Value, Failure> {
    let key = uuid::Uuid::new_v4().to_string();
    let mut wait = AGAIN;
    let mut tries = 1;
    loop {
        let error = match api
            .call(Verb::Post, path, &[], Some(&key), Some(body))
            .await
        {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        let named = match &error {
            HttpError::Refused(p) if p.status == 429 || p.status >= 500 => p.retry_after_s,
            HttpError::Network(_) | HttpError::Edge(500..) => None,
            _ => return Err(failure(api, &error)),
        };
        if tries == TRIES || named.is_some_and(|s| s > LONGEST_WAIT_S) {
            return Err(failure(api, &error));
        }
        tokio::time::sleep(named.map_or(wait, Duration::from_secs)).await;
        wait *= 2;
        tries += 1;
    }
}

/// The failure of a call.
pub(super) fn failure(api: &ProducerHttp, e: &HttpError) -> Failure {
    match e {
        HttpError::Refused(problem) => {
            let exit = match problem.status {
                401 | 403 => Exit::NotAuthorised,
                400 | 413 => Exit::Usage,
                _ => Exit::Failed,
            };
            let mut failure = Failure::new(problem.title.clone()).exit(exit);
            // A single fault is the title already.
            if problem.errors.len() > 1 {
                let faults = problem.errors.iter();
                failure.causes = faults
                    .map(|f| format!("{} {}", f.pointer.trim_start_matches('/'), f.detail))
                    .collect();
            }
            if !problem.known.is_empty() {
                return failure.hint(format!("known are: {}", problem.known.join(", ")));
            }
            match &problem.detail {
                Some(detail) => failure.hint(detail.clone()),
                None if e.code() == Code::RateLimited => failure.hint("try again later"),
                None => failure,
            }
        }
        HttpError::Network(_) | HttpError::Edge(_) => {
            Failure::of(format!("the hub `{}` did not answer", api.hub()), e)
                .exit(Exit::NotConnected)
        }
        _ => Failure::of(format!("the hub `{}` could not be asked", api.hub()), e),
    }
}
