//! `hub …`: run a hub, and what its owner does beside or without a running one.

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::long_running::runtime;
use super::report::{Exit, Failure, note, say};
use super::requests::data_dir_flag;
use super::system::{allow_many_files, stop_signal};
use super::{Global, duration_s};
use crate::auth::crypto;
use crate::delivery::fence::utc;
use crate::domain::{AccountId, Code, Trust, WallMs, limits};
use crate::hub::{
    self, AdminCall, AdminError, HubConfig, HubError, Limits, Rate, TlsFiles, WebhookConfig, admin,
};
use crate::telemetry;

/// Where a hub listens unless it is told otherwise.
const LISTEN: &str = "127.0.0.1:8787";

/// A token's life unless it is told otherwise, seconds: 90 days.
const TTL_S: i64 = 90 * 24 * 3600;

/// Open files that connections leave for the store, the logs and the admin socket.
const FILES_KEPT: u64 = 128;

#[derive(Debug, Subcommand)]
pub(super) enum HubCommand {
    /// Run the hub in the foreground
    Serve(ServeArgs),
    /// Make, list and call back tokens
    #[command(subcommand)]
    Token(TokenCommand),
    /// List and revoke devices
    #[command(subcommand)]
    Devices(DevicesCommand),
    /// List the projects of the devices, and say which device serves which
    #[command(subcommand)]
    Projects(ProjectsCommand),
    /// Make, list and delete accounts: tenants that do not see each other
    #[command(subcommand)]
    Account(AccountCommand),
    /// List and change the signing keys
    #[command(subcommand)]
    Keys(KeysCommand),
    /// Write store and signing keys into one file; the hub may run meanwhile
    Backup(BackupArgs),
    /// Make this hub the one of a backup; the hub has to be stopped
    Restore(RestoreArgs),
}

#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// Where to listen; port 0 picks a free one
    #[arg(long, default_value = LISTEN, value_name = "ADDR")]
    listen: SocketAddr,
    /// Speak TLS with this certificate (PEM, the intermediate ones after it); a renewed file is used without a restart
    #[arg(
        long,
        env = "REMOTE_COLLAB_TLS_CERT",
        requires = "tls_key",
        value_name = "FILE"
    )]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key (PEM), which only its owner can read
    #[arg(
        long,
        env = "REMOTE_COLLAB_TLS_KEY",
        requires = "tls_cert",
        value_name = "FILE"
    )]
    tls_key: Option<PathBuf>,
    /// A proxy that speaks TLS stands in front, and nothing else reaches this address: allow plain HTTP beyond loopback
    #[arg(long, conflicts_with = "tls_cert")]
    behind_tls_proxy: bool,
    /// Connections of one address (IPv6: of one /64) [default: 100; no limit from loopback or behind a proxy]
    #[arg(long, env = "REMOTE_COLLAB_MAX_CONNECTIONS_PER_ADDRESS", value_parser = clap::value_parser!(u32).range(1..=1_000_000), value_name = "N")]
    max_connections_per_address: Option<u32>,
    /// Let callbacks go to private addresses, and to this machine, there in clear text, too
    #[arg(long)]
    webhook_allow_private: bool,
    /// Connections in all
    #[arg(long, env = "REMOTE_COLLAB_MAX_CONNECTIONS", default_value_t = limits::CONNECTIONS, value_parser = clap::value_parser!(u32).range(1..=1_000_000), value_name = "N")]
    max_connections: u32,
    /// Requests per second that one token may make for long; ten times as many at once
    #[arg(long, env = "REMOTE_COLLAB_TOKEN_RATE", default_value_t = limits::TOKEN_RATE_PER_S, value_parser = clap::value_parser!(u32).range(1..=100_000), value_name = "N")]
    token_rate: u32,
}

impl ServeArgs {
    fn tls(&self) -> Option<TlsFiles> {
        let (cert, key) = (self.tls_cert.clone()?, self.tls_key.clone()?);
        Some(TlsFiles { cert, key })
    }

    /// The limits of connections, where the process can open so many files: connections leave some for the rest. Behind a
    /// proxy all clients have its address.
    fn limits(&self, files: Option<u64>) -> Limits {
        let room = files.map_or(u64::MAX, |n| n.saturating_sub(FILES_KEPT).max(1));
        let total = self
            .max_connections
            .min(u32::try_from(room).unwrap_or(u32::MAX));
        if total < self.max_connections {
            tracing::warn!(
                "at most {total} connections: this process may not open more files (`ulimit -Hn`, LimitNOFILE=)"
            );
        }
        let behind = self.behind_tls_proxy.then_some(total);
        Limits {
            per_address: self.max_connections_per_address.or(behind),
            total,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(super) enum TokenCommand {
    /// Make a token and print it alone
    Create(CreateArgs),
    /// List the tokens that were made
    List(AccountArgs),
    /// Call a token back
    Revoke(NamedArgs),
    /// Replace the secret that signs a token's callbacks, and print the new one alone
    WebhookSecret(NamedArgs),
}

#[derive(Debug, Args)]
pub(super) struct CreateArgs {
    /// What receivers see as the sender
    #[arg(long)]
    name: String,
    /// What it may do, such as `tasks:write,tasks:read`; `devices:enroll` alone makes a join token: one device, one hour
    #[arg(long, value_delimiter = ',', required = true)]
    scope: Vec<String>,
    /// How far it is believed: `inform` (messages), `suggest` (tasks wait for a person), `run` (tasks run at once)
    #[arg(long, default_value = "suggest", value_parser = parse_trust)]
    trust: Trust,
    /// Its life, such as `90d`, `12h`
    #[arg(long, value_parser = duration_s)]
    ttl: Option<i64>,
    #[command(flatten)]
    account: AccountArgs,
}

#[derive(Debug, Args)]
pub(super) struct AccountArgs {
    /// The account
    #[arg(long, default_value = "default")]
    account: AccountId,
}

#[derive(Debug, Args)]
pub(super) struct NamedArgs {
    /// Its id or name
    which: String,
    #[command(flatten)]
    account: AccountArgs,
}

#[derive(Debug, Subcommand)]
pub(super) enum DevicesCommand {
    /// List the enrolled devices
    List(AccountArgs),
    /// Revoke a device for good
    Revoke(NamedArgs),
}

#[derive(Debug, Subcommand)]
pub(super) enum ProjectsCommand {
    /// List the projects that the devices enabled
    List(AccountArgs),
    /// Let a device serve a project: what names the project goes there
    Approve(ProjectArgs),
    /// Let a device serve a project no longer
    Unapprove(ProjectArgs),
}

#[derive(Debug, Args)]
pub(super) struct ProjectArgs {
    /// The project's name, or its absolute path on the device
    name: String,
    /// The device's id or name; needed only when several enabled the project
    #[arg(long)]
    device: Option<String>,
    #[command(flatten)]
    account: AccountArgs,
}

impl ProjectArgs {
    fn decided(self, approved: bool) -> AdminCall {
        AdminCall::DecideProject {
            account: self.account.account,
            project: self.name,
            device: self.device,
            approved,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(super) enum AccountCommand {
    /// Make an account
    Create(AccountName),
    /// List the accounts
    List,
    /// Delete an account with its devices, tokens, tasks, messages and memory, for good
    Delete(AccountName),
}

#[derive(Debug, Args)]
pub(super) struct AccountName {
    /// Its name
    name: AccountId,
}

#[derive(Debug, Args)]
pub(super) struct BackupArgs {
    /// The file to write, with mode 0600
    file: PathBuf,
    /// Overwrite the file if it exists
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Args)]
pub(super) struct RestoreArgs {
    /// The file that `hub backup` wrote
    file: PathBuf,
}

#[derive(Debug, Subcommand)]
pub(super) enum KeysCommand {
    /// List the signing keys, newest first
    List,
    /// Sign with a new key from now on; tokens of older keys stay valid
    Rotate,
}

fn parse_trust(text: &str) -> Result<Trust, String> {
    serde_json::from_value(Value::from(text)).map_err(|_| "one of inform, suggest, run".to_owned())
}

pub(super) fn run(global: &Global, command: HubCommand) -> Result<Exit, Failure> {
    let call = match command {
        HubCommand::Serve(args) => return serve(global, &args),
        HubCommand::Token(TokenCommand::Create(args)) => create(args),
        HubCommand::Token(TokenCommand::List(a)) => AdminCall::ListTokens { account: a.account },
        HubCommand::Token(TokenCommand::WebhookSecret(n)) => AdminCall::RenewWebhookSecret {
            account: n.account.account,
            token: n.which,
        },
        HubCommand::Token(TokenCommand::Revoke(n)) => AdminCall::RevokeToken {
            account: n.account.account,
            token: n.which,
        },
        HubCommand::Devices(DevicesCommand::List(a)) => {
            AdminCall::ListDevices { account: a.account }
        }
        HubCommand::Devices(DevicesCommand::Revoke(n)) => AdminCall::RevokeDevice {
            account: n.account.account,
            device: n.which,
        },
        HubCommand::Projects(ProjectsCommand::List(a)) => {
            AdminCall::ListProjects { account: a.account }
        }
        HubCommand::Projects(ProjectsCommand::Approve(a)) => a.decided(true),
        HubCommand::Projects(ProjectsCommand::Unapprove(a)) => a.decided(false),
        HubCommand::Account(AccountCommand::Create(a)) => {
            AdminCall::CreateAccount { account: a.name }
        }
        HubCommand::Account(AccountCommand::List) => AdminCall::ListAccounts,
        HubCommand::Account(AccountCommand::Delete(a)) => {
            AdminCall::DeleteAccount { account: a.name }
        }
        HubCommand::Backup(args) => AdminCall::Backup {
            file: absolute(&args.file)?,
            force: args.force,
        },
        HubCommand::Restore(args) => return restore(global, &args),
        HubCommand::Keys(KeysCommand::List) => AdminCall::ListKeys,
        HubCommand::Keys(KeysCommand::Rotate) => AdminCall::RotateKeys,
    };
    let places = global.places()?;
    let answer = runtime()?
        .block_on(admin::call(places.root(), &call))
        .map_err(failure)?;
    show(global, &call, &answer)?;
    Ok(Exit::Ok)
}

fn create(args: CreateArgs) -> AdminCall {
    let account = args.account.account;
    if args.scope == ["devices:enroll"] {
        return AdminCall::CreateJoin {
            name: args.name,
            account,
        };
    }
    AdminCall::CreateToken {
        name: args.name,
        account,
        scopes: args.scope,
        trust: args.trust,
        ttl_s: args.ttl.unwrap_or(TTL_S),
    }
}

/// Tokens go out alone, so that a shell can take them; lists one entry a line.
fn show(global: &Global, call: &AdminCall, answer: &Value) -> Result<(), Failure> {
    if global.json {
        return say(answer);
    }
    match call {
        AdminCall::CreateToken { account, .. } | AdminCall::CreateJoin { account, .. } => {
            say(answer["token"].as_str().unwrap_or_default())?;
            if answer["webhook_secret"].is_string() && std::io::stderr().is_terminal() {
                note(format_args!(
                    "to verify its callbacks: `remote-collab hub token webhook-secret {} --account {account}{}` prints a secret (with --json the first one comes with the token)",
                    answer["jti"].as_str().unwrap_or_default(),
                    data_dir_flag(&global.places()?)
                ));
            }
            Ok(())
        }
        AdminCall::RenewWebhookSecret { .. } => {
            say(answer["webhook_secret"].as_str().unwrap_or_default())
        }
        AdminCall::ListTokens { .. }
        | AdminCall::ListDevices { .. }
        | AdminCall::ListProjects { .. }
        | AdminCall::ListAccounts
        | AdminCall::ListKeys => {
            let lists = answer.as_object().into_iter().flat_map(|o| o.values());
            for item in lists.filter_map(Value::as_array).flatten() {
                let fields = item
                    .as_object()
                    .into_iter()
                    .flatten()
                    .map(|(k, v)| format!("{k}={}", field(k, v)));
                say(fields.collect::<Vec<_>>().join("  "))?;
            }
            Ok(())
        }
        AdminCall::RevokeToken { .. } => {
            say(format_args!("revoked {} token(s)", answer["revoked"]))
        }
        AdminCall::RevokeDevice { device, .. } => say(format_args!("revoked `{device}`")),
        AdminCall::DecideProject { approved, .. } => {
            let text = |name: &str| answer[name].as_str().unwrap_or_default();
            let (name, device) = (text("name"), text("device"));
            say(if *approved {
                format!("approved: `{device}` serves `{name}`")
            } else {
                format!("`{device}` serves `{name}` no longer")
            })
        }
        AdminCall::RotateKeys => say("a new key signs from now on"),
        AdminCall::CreateAccount { account } => say(format_args!("made the account `{account}`")),
        AdminCall::DeleteAccount { account } => say(format_args!(
            "deleted the account `{account}`: {} device(s), {} token(s), {} record(s)",
            answer["devices"], answer["tokens"], answer["records"]
        )),
        AdminCall::Backup { file, .. } => say(format_args!(
            "wrote {} ({} bytes): {}\nIt holds the signing keys: whoever reads it can be this hub.",
            file.display(),
            answer["bytes"],
            holds(answer)
        )),
    }
}

/// What a backup holds, for people.
fn holds(answer: &Value) -> String {
    format!(
        "{}, {} device(s), {} task(s) and message(s), {} signing key(s)",
        answer["hub_id"].as_str().unwrap_or_default(),
        answer["devices"],
        answer["items"],
        answer["keys"]
    )
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|e| Failure::of("no such path", &e).exit(Exit::Usage))
}

fn restore(global: &Global, args: &RestoreArgs) -> Result<Exit, Failure> {
    let (places, file) = (global.places()?, absolute(&args.file)?);
    let answer = hub::restore(places.root(), &file).map_err(|e| {
        let failure = Failure::of("nothing was restored", &e);
        match e {
            HubError::Held { .. } => {
                failure.hint("stop the hub first, then restore, then start it again")
            }
            _ => failure,
        }
    })?;
    if global.json {
        say(&answer)?;
        return Ok(Exit::Ok);
    }
    let made_at = answer["made_at"].as_i64().unwrap_or(0);
    say(format_args!(
        "restored what stood here at {}: {}",
        utc(WallMs(made_at)),
        holds(&answer)
    ))?;
    if let Some(replaced) = answer["replaced"].as_str() {
        say(format_args!("what stood here before is in {replaced}"))?;
    }
    Ok(Exit::Ok)
}

/// A field's value for people: times as dates, texts bare.
fn field(key: &str, value: &Value) -> String {
    let is_time = key.ends_with("_at") || key == "last_seen";
    match value {
        Value::Number(n) if is_time => n.as_i64().map_or_else(String::new, |ms| utc(WallMs(ms))),
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

/// The failure of a call of the hub's owner.
pub(super) fn failure(e: AdminError) -> Failure {
    match e {
        AdminError::Refused(problem) => {
            let mut failure = Failure::of("the hub refused", &*problem);
            if problem.known_code() == Some(Code::InvalidField) {
                failure = failure.exit(Exit::Usage);
            }
            let known = (!problem.known.is_empty())
                .then(|| format!("known are: {}", problem.known.join(", ")));
            let hints: Vec<String> = problem.detail.into_iter().chain(known).collect();
            if hints.is_empty() {
                failure
            } else {
                failure.hint(hints.join("; "))
            }
        }
        AdminError::Hub(e) => start_failure(&e),
        AdminError::Socket(text) => {
            let mut failure =
                Failure::new("the running hub could not be asked").exit(Exit::NotRunning);
            failure.causes.push(text);
            failure
        }
    }
}

/// The failure of a hub that does not start.
pub(super) fn start_failure(e: &HubError) -> Failure {
    let what = match e {
        HubError::NoStore { .. } => "there is nothing to look at",
        _ => "the hub did not start",
    };
    let failure = Failure::of(what, e);
    match e {
        HubError::Insecure { .. } | HubError::Tls(_) => failure.exit(Exit::Usage),
        HubError::NoStore { .. } => failure
            .exit(Exit::Usage)
            .hint("check --data-dir; `remote-collab hub serve` makes a hub there"),
        _ => failure,
    }
}

fn serve(global: &Global, args: &ServeArgs) -> Result<Exit, Failure> {
    telemetry::init("info", telemetry::Format::default());
    crypto::install();
    let places = global.places()?;
    let limits = args.limits(allow_many_files());
    let config = HubConfig {
        listen: args.listen,
        rate: Rate::per_second(args.token_rate),
        tls: args.tls(),
        behind_tls_proxy: args.behind_tls_proxy,
        connections: limits,
        webhooks: WebhookConfig {
            allow_private: args.webhook_allow_private,
            ..WebhookConfig::default()
        },
        ..HubConfig::local(places.root())
    };
    runtime()?.block_on(async {
        let stop = stop_signal()?;
        let hub = hub::start(config).await.map_err(|e| start_failure(&e))?;
        if global.json {
            say(json!({"hub": hub.url(), "data_dir": hub.data_dir}))?;
        } else {
            say(format_args!("hub: {}\ndata: {}", hub.url(), hub.data_dir.display()))?;
            say(format_args!(
                "next: `remote-collab hub token create --name my-laptop --scope devices:enroll{}` makes a join token for `login`",
                data_dir_flag(&places)
            ))?;
        }
        stop.await;
        // A second signal must not find a process that no longer listens to it: the shutdown itself is bounded.
        tokio::time::timeout(Duration::from_secs(30), hub.shutdown()).await.ok();
        Ok(Exit::Ok)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_shows_times_as_dates_and_numbers_as_they_are() {
        assert_eq!(field("last_seen", &json!(0)), "1970-01-01T00:00:00Z");
        assert_eq!(field("revoked_at", &Value::Null), "-");
        assert_eq!(field("capacity", &json!(2)), "2");
        assert_eq!(field("name", &json!("ci")), "ci");
    }
}
