//! `up`: hub and daemon in one process on loopback, ready to be tried.
//!
//! The first start makes keys, enrols this machine and writes a producer token (trust `run`) to a 0600 file; later starts
//! use what is there.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use clap::Args;
use serde_json::{Value, json};

use super::hub::{failure as admin_failure, start_failure};
use super::long_running::{listen_flags, load_config, runtime, start};
use super::report::{Exit, Failure, colour_out, say, say_styled, tame};
use super::requests::{data_dir_flag, own_name, requests};
use super::system::stop_signal;
use super::{Global, login::host_name};
use crate::auth::{Token, crypto};
use crate::config::HubUrl;
use crate::daemon::assembly::Whole;
use crate::daemon::clock::wall;
use crate::daemon::credentials::Credentials;
use crate::daemon::http::HubHttp;
use crate::daemon::projects::{Project, Projects};
use crate::daemon::store::EnvelopeState;
use crate::daemon::way::Way;
use crate::domain::{AccountId, Trust, WallMs};
use crate::hub::{self, AdminCall, HubConfig, HubError, HubHandle};
use crate::local::{Places, write_private};
use crate::telemetry;

/// Where the hub listens unless it is told otherwise.
const HUB_LISTEN: &str = "127.0.0.1:8787";
/// The producer token's file inside the data folder.
pub(super) const TOKEN_FILE: &str = "up.token";
/// All scopes but those of an owner.
const SCOPES: [&str; 6] = [
    "tasks:write",
    "tasks:read",
    "messages:write",
    "messages:read",
    "memory:read",
    "memory:write",
];
/// The producer token's life, seconds.
const TOKEN_TTL_S: i64 = 365 * 24 * 3600;
/// A token with less life left than this is replaced, ms.
const RENEW_MS: i64 = 7 * 24 * 3600 * 1000;

/// Envelopes of each state that are looked at for news.
const RECENT: u32 = 100;

#[derive(Debug, Args)]
pub(super) struct UpArgs {
    /// Where the hub listens; port 0 picks a free one
    #[arg(long, default_value = HUB_LISTEN, value_name = "ADDR")]
    hub_listen: SocketAddr,
    /// Where scripts reach the daemon on loopback; port 0 picks a free one [default: 127.0.0.1:9988]
    #[arg(long, value_name = "ADDR")]
    local_listen: Option<SocketAddr>,
}

pub(super) fn run(global: &Global, args: &UpArgs) -> Result<Exit, Failure> {
    telemetry::init("warn", telemetry::Format::default());
    crypto::install();
    let places = global.places()?;
    let mut config = load_config(&listen_flags(args.local_listen))?;
    runtime()?.block_on(async {
        let stop = stop_signal()?;
        let hub = hub::start(HubConfig {
            listen: args.hub_listen,
            ..HubConfig::local(places.root())
        })
        .await
        .map_err(|e| match &e {
            HubError::Bind { .. } => {
                start_failure(&e).hint("`--hub-listen 127.0.0.1:0` picks a free port")
            }
            _ => start_failure(&e),
        })?;
        let url: HubUrl = hub
            .url()
            .parse()
            .map_err(|e| Failure::of("the hub's own address cannot be read", &e))?;
        // The port may be another one than at enrolment.
        config.remote_api = Some(url.clone());
        let ready = async {
            let token = producer_token(&hub, &places).await?;
            enrol(&hub, &url, &places, &config).await?;
            Ok::<_, Failure>((token, start(places.clone(), config).await?))
        }
        .await;
        let (token, daemon) = match ready {
            Ok(ready) => ready,
            Err(e) => {
                hub.shutdown().await;
                return Err(e);
            }
        };
        tell_ready(global, &places, &hub, &token, &daemon)?;
        let ended = {
            let address = hub.url();
            let watching = watch(global, &places, &address, &daemon);
            tokio::pin!(watching);
            tokio::pin!(stop);
            tokio::select! {
                () = &mut stop => Ok(Exit::Ok),
                failed = &mut watching => failed,
            }
        };
        daemon.stop().await;
        hub.shutdown().await;
        ended
    })
}

/// The producer token for this machine, from its file or made anew.
async fn producer_token(hub: &HubHandle, places: &Places) -> Result<String, Failure> {
    let file = places.root().join(TOKEN_FILE);
    if let Some(token) = kept_token(&file, &hub.hub_id)? {
        return Ok(token);
    }
    let account = default_account()?;
    let call = AdminCall::CreateToken {
        name: "up".to_owned(),
        account,
        scopes: SCOPES.map(str::to_owned).to_vec(),
        trust: Trust::Run,
        ttl_s: TOKEN_TTL_S,
    };
    let answer = hub.admin(&call).await.map_err(admin_failure)?;
    let kept = json!({
        "hub": hub.hub_id, "token": answer["token"], "expires_at": answer["expires_at"],
    });
    let token = answer["token"].as_str().unwrap_or_default().to_owned();
    let io = |e: std::io::Error| Failure::of(format!("`{}` cannot be written", file.display()), &e);
    write_private(&file.with_extension("json"), kept.to_string().as_bytes()).map_err(io)?;
    write_private(&file, token.as_bytes()).map_err(io)?;
    Ok(token)
}

/// The token in the file, if it is this hub's and lives on for a while.
fn kept_token(file: &Path, hub: &str) -> Result<Option<String>, Failure> {
    let Ok(note) = std::fs::read(file.with_extension("json")) else {
        return Ok(None);
    };
    let Ok(opened) = std::fs::File::open(file) else {
        return Ok(None);
    };
    crate::auth::keys::check_private(&opened, file).map_err(|e| {
        Failure::of("the producer token is exposed", &e)
            .hint("remove the file; `up` makes a new one")
    })?;
    let note: Value = serde_json::from_slice(&note).unwrap_or_default();
    let expires = note["expires_at"].as_i64().unwrap_or(0);
    let text = std::io::read_to_string(opened).unwrap_or_default();
    let good = note["hub"] == hub && note["token"] == text && expires > wall().0 + RENEW_MS;
    Ok(good.then_some(text))
}

fn default_account() -> Result<AccountId, Failure> {
    AccountId::new("default").map_err(|e| Failure::of("no default account", &e))
}

/// Enrols this machine at the hub of this process, unless it is already.
async fn enrol(
    hub: &HubHandle,
    url: &HubUrl,
    places: &Places,
    config: &crate::config::DaemonConfig,
) -> Result<(), Failure> {
    places
        .create_daemon_dirs()
        .map_err(|e| Failure::of(format!("`{}` cannot be used", places.root().display()), &e))?;
    let dir = places.daemon();
    let failed = |e: &dyn std::error::Error| Failure::of("this machine could not be enrolled", e);
    if let Some(known) = Credentials::load(&dir).map_err(|e| failed(&e))?
        && known.enrolment.hub_id == hub.hub_id
    {
        return Ok(());
    }
    let call = AdminCall::CreateJoin {
        name: "up".to_owned(),
        account: default_account()?,
    };
    let join = hub.admin(&call).await.map_err(admin_failure)?;
    let join = Token::parse(join["token"].as_str().unwrap_or_default()).map_err(|e| failed(&e))?;
    let key = Credentials::key(&dir).map_err(|e| failed(&e))?;
    let way = Way::new(config).map_err(|e| failed(&e))?;
    let http = HubHttp::new(&way, dir.clone(), None).map_err(|e| failed(&e))?;
    let enrolment = http
        .enrol(url, &join, key.public(), &host_name())
        .await
        .map_err(|e| failed(&e))?;
    Credentials::save(&dir, &enrolment).map_err(|e| failed(&e))
}

fn tell_ready(
    global: &Global,
    places: &Places,
    hub: &HubHandle,
    token: &str,
    daemon: &Whole,
) -> Result<(), Failure> {
    let listeners = daemon.handle.listeners();
    let local = listeners.loopback.map(|a| format!("http://{a}"));
    if global.json {
        return say(json!({
            "hub": hub.url(), "local": local, "token": token,
            "local_token": daemon.handle.local_token(), "data_dir": places.root(),
        }));
    }
    let file = places.root().join(TOKEN_FILE);
    say(format_args!("hub     {}", hub.url()))?;
    match (&local, &listeners.loopback_error) {
        (Some(url), _) => say(format_args!("local   {url}"))?,
        (None, error) => say(format_args!(
            "local   off ({})",
            error.as_deref().unwrap_or("-")
        ))?,
    }
    say(format_args!("data    {}", places.root().display()))?;
    let claude = daemon.claude();
    match &claude.path {
        Some(path) => say(format_args!(
            "claude  {} {}",
            claude.version.as_deref().unwrap_or("(version unknown)"),
            path.display()
        ))?,
        None => say(format_args!(
            "claude  not found: tasks wait until it is installed and this command restarted ({})",
            claude.problem.as_deref().unwrap_or("not on PATH")
        ))?,
    }
    let projects = projects(places)?;
    for p in &projects {
        say(format_args!("project {} {}", p.name, p.path.display()))?;
    }
    if projects.is_empty() {
        say(format_args!(
            "project none yet: in a project's folder run  {} enable{}",
            own_name(),
            data_dir_flag(places)
        ))?;
    }
    let first = projects.first().map(|p| p.name.to_string());
    say(requests(&hub.url(), &file, first.as_deref()))
}

fn projects(places: &Places) -> Result<Vec<Project>, Failure> {
    Projects::new(places.daemon())
        .list()
        .map_err(|e| Failure::of("the list of projects cannot be read", &e))
}

/// Tells which projects came and went since `known`, and with the first one the requests for it.
fn tell_projects(
    places: &Places,
    hub: &str,
    known: &mut Option<Vec<Project>>,
) -> Result<(), Failure> {
    let now = projects(places)?;
    let Some(before) = known.replace(now.clone()) else {
        return Ok(());
    };
    let at = time_of_day(wall());
    for p in now.iter().filter(|p| !before.contains(p)) {
        say(format_args!(
            "{at}  project {}  enabled  {}",
            p.name,
            p.path.display()
        ))?;
    }
    for p in before.iter().filter(|p| !now.contains(p)) {
        say(format_args!("{at}  project {}  disabled", p.name))?;
    }
    match now.first() {
        Some(p) if before.is_empty() => {
            let name = p.name.to_string();
            say(requests(hub, &places.root().join(TOKEN_FILE), Some(&name)))
        }
        _ => Ok(()),
    }
}

/// Shows what happens until the daemon ends by itself.
async fn watch(
    global: &Global,
    places: &Places,
    hub: &str,
    daemon: &Whole,
) -> Result<Exit, Failure> {
    let mut link = daemon.handle.link().status();
    let mut view = daemon.dispatcher.view();
    let mut news = daemon.handle.store().version();
    let mut shown: BTreeMap<String, String> = BTreeMap::new();
    let mut state = "";
    let mut known = None;
    let colour = colour_out();
    loop {
        if !global.json {
            let now = link.borrow_and_update().clone();
            if now.state != state {
                state = now.state;
                let lost = matches!(state, "DISCONNECTED" | "RECONNECTING");
                let why = now.cause.filter(|_| lost);
                let why = why.map(|c| format!("  {}", tame(&c))).unwrap_or_default();
                let mark = if colour { "\x1b[1m" } else { "" };
                let off = if colour { "\x1b[0m" } else { "" };
                say_styled(format_args!(
                    "{}  link {mark}{state}{off}{why}",
                    time_of_day(wall())
                ))?;
            }
            let sessions = view.borrow_and_update().sessions.clone();
            for s in sessions {
                let activity = format!("{:?}", s.activity).to_lowercase();
                let line = format!("session {}  {activity}", s.session_id);
                tell(&mut shown, &format!("s{}", s.session_id), line)?;
            }
            news.mark_unchanged();
            tell_projects(places, hub, &mut known)?;
            let rows = daemon
                .recent(RECENT)
                .await
                .map_err(|e| Failure::of("the queue cannot be read", &e))?;
            for row in rows {
                let hold = row
                    .hold_reason
                    .map(|r| format!(" ({r})"))
                    .unwrap_or_default();
                let kind = serde_json::to_value(&row.envelope.kind).unwrap_or_default();
                let line = format!(
                    "{} {}  from {}  {}{hold}",
                    kind.as_str().unwrap_or("?"),
                    row.envelope.id,
                    row.envelope.from.name,
                    state_word(row.state),
                );
                tell(&mut shown, &row.envelope.id.to_string(), line)?;
            }
        }
        let changed = tokio::select! {
            r = link.changed() => r.is_ok(),
            r = view.changed() => r.is_ok(),
            r = news.changed() => r.is_ok(),
        };
        if !changed {
            return Err(Failure::new("the daemon ended by itself; its log says why"));
        }
    }
}

fn tell(shown: &mut BTreeMap<String, String>, key: &str, line: String) -> Result<(), Failure> {
    if shown.get(key) == Some(&line) {
        return Ok(());
    }
    say(format_args!("{}  {line}", time_of_day(wall())))?;
    if shown.len() > 2_000 {
        shown.pop_first();
    }
    shown.insert(key.to_owned(), line);
    Ok(())
}

/// Where an envelope stands, for people.
const fn state_word(state: EnvelopeState) -> &'static str {
    match state {
        EnvelopeState::Queued => "waits",
        EnvelopeState::Claimed => "on its way",
        EnvelopeState::Terminal => "done",
    }
}

/// The time of day in UTC.
fn time_of_day(at: WallMs) -> String {
    let s = at.0.div_euclid(1000).rem_euclid(86_400);
    format!("{:02}:{:02}:{:02}Z", s / 3600, s / 60 % 60, s % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_of_another_hub_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(TOKEN_FILE);
        assert!(kept_token(&file, "h").unwrap().is_none());
        let note = json!({"hub": "h", "token": "t", "expires_at": i64::MAX});
        write_private(&file.with_extension("json"), note.to_string().as_bytes()).unwrap();
        write_private(&file, b"t").unwrap();
        assert_eq!(kept_token(&file, "h").unwrap().as_deref(), Some("t"));
        assert!(kept_token(&file, "other").unwrap().is_none());
    }
}
