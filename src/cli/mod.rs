//! The command line: what was typed, done, and told.
//!
//! `hook` comes first and past everything else: it must cost little more than starting a process. All other commands
//! are parsed by clap, end in a [`Failure`] or not, and tell it in one form. Data goes to standard output, everything
//! else to standard error.

mod config;
mod control;
mod enable;
mod hub;
mod list_messages;
mod login;
mod long_running;
mod producer;
mod report;
mod requests;
mod send;
mod status;
mod system;
mod task;
mod tasks;
mod up;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::local::{Client, ClientError, Places, process_env};

pub use report::{Exit, Failure};

/// Makes Claude Code remotely callable.
#[derive(Debug, Parser)]
#[command(name = "remote-collab", version, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// The flags of every command.
#[derive(Debug, Clone, Args)]
pub(crate) struct Global {
    /// Where this installation keeps its data; several live side by side [default: ~/.local/share/remote-collab]
    #[arg(
        long,
        global = true,
        env = "REMOTE_COLLAB_DATA_DIR",
        value_name = "DIR"
    )]
    data_dir: Option<PathBuf>,
    /// Print JSON for programs
    #[arg(long, global = true)]
    json: bool,
}

impl Global {
    /// The installation that the command is about.
    pub(crate) fn places(&self) -> Result<Places, Failure> {
        Places::resolve(self.data_dir.as_deref(), &process_env)
            .map_err(|e| Failure::of("no data folder", &e).exit(Exit::Usage))
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run hub and daemon together on this machine
    Up(up::UpArgs),
    /// Run and administer a hub
    #[command(subcommand)]
    Hub(hub::HubCommand),
    /// Enrol this machine at a hub; the join token comes on standard input
    Login(login::LoginArgs),
    /// Run the daemon
    #[command(subcommand)]
    Daemon(long_running::DaemonCommand),
    /// Let remote tasks and messages into this folder: add the hooks, tell the daemon
    Enable(enable::EnableArgs),
    /// Take this folder out again: remove the hooks, tell the daemon
    Disable(enable::DisableArgs),
    /// Show what the daemon does
    Status,
    /// Send a message to a session, a project or a device
    Send(send::SendArgs),
    /// Give a task to Claude Code on a device
    Task(Box<task::TaskArgs>),
    /// List tasks, look at one, cancel it, try it again
    Tasks(Box<tasks::TasksArgs>),
    /// List the messages that wait in this device's queue
    ListMessages(list_messages::ListMessagesArgs),
    /// Connect the daemon to its hub
    Connect,
    /// Disconnect the daemon from its hub
    Disconnect,
    /// Hold everything that arrives
    Pause,
    /// Go on after `pause`
    Resume,
    /// Show or check the configuration
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Answer a Claude Code hook; called by Claude Code
    #[command(hide = true)]
    Hook,
}

/// The whole program.
pub fn main(args: Vec<OsString>) -> ExitCode {
    if args.get(1).is_some_and(|a| a == "hook") {
        return crate::hook::main(args.into_iter().skip(2));
    }
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(e) => {
            // clap prints help and version to standard output, mistakes to standard error.
            let failed = e.use_stderr();
            return match e.print() {
                Ok(()) if !failed => ExitCode::SUCCESS,
                _ => ExitCode::from(Exit::Usage as u8),
            };
        }
    };
    match run(cli) {
        Ok(exit) => ExitCode::from(exit as u8),
        Err(failure) => {
            failure.print();
            ExitCode::from(failure.exit as u8)
        }
    }
}

fn run(cli: Cli) -> Result<Exit, Failure> {
    let global = &cli.global;
    match cli.command {
        Command::Up(args) => up::run(global, &args),
        Command::Hub(command) => hub::run(global, command),
        Command::Login(args) => login::run(global, &args),
        Command::Daemon(command) => long_running::daemon(global, command),
        Command::Enable(args) => enable::enable(global, &args),
        Command::Disable(args) => enable::disable(global, &args),
        Command::Status => status::run(global),
        Command::Send(args) => send::run(global, &args),
        Command::Task(args) => task::run(global, &args),
        Command::Tasks(args) => tasks::run(global, &args),
        Command::ListMessages(args) => list_messages::run(global, &args),
        Command::Config(command) => config::run(global, &command),
        Command::Connect => control::run(global, "connect"),
        Command::Disconnect => control::run(global, "disconnect"),
        Command::Pause => control::run(global, "pause"),
        Command::Resume => control::run(global, "resume"),
        Command::Hook => Ok(Exit::Ok),
    }
}

/// A time such as `90d`, `12h`, `30m`, `60s`, in seconds; for clap.
pub(crate) fn duration_s(text: &str) -> Result<i64, String> {
    let wrong = || "a number with a unit: `90d`, `12h`, `30m` or `60s`".to_owned();
    let unit = text.chars().next_back().ok_or_else(wrong)?;
    let seconds = match unit {
        'd' => 86_400,
        'h' => 3_600,
        'm' => 60,
        's' => 1,
        _ => return Err(wrong()),
    };
    let number: i64 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
    number
        .checked_mul(seconds)
        .filter(|n| *n > 0)
        .ok_or_else(wrong)
}

/// A client of this installation's daemon.
pub(crate) fn daemon_client(places: &Places) -> Client {
    Client::new(places.find_socket(&process_env))
}

impl From<ClientError> for Failure {
    fn from(e: ClientError) -> Self {
        let exit = match &e {
            ClientError::NotRunning { .. } => Exit::NotRunning,
            ClientError::WrongOwner { .. } => Exit::NotAuthorised,
            ClientError::Refused(p) if p.status == 401 || p.status == 403 => Exit::NotAuthorised,
            ClientError::Refused(p) if p.code == "not_connected" => Exit::NotConnected,
            _ => Exit::Failed,
        };
        let failure = Self::of("the daemon could not be asked", &e).exit(exit);
        match e {
            ClientError::NotRunning { .. } => failure.hint(
                "`remote-collab daemon run` starts it, `remote-collab up` starts it with a hub of its own",
            ),
            ClientError::Refused(p) => match p.detail {
                Some(detail) => failure.hint(detail),
                None => failure,
            },
            _ => failure,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_needs_a_number_and_a_unit() {
        assert_eq!(duration_s("90d"), Ok(7_776_000));
        for wrong in [
            "",
            "d",
            "90",
            "-1d",
            "0s",
            "1.5h",
            "9999999999999999d",
            "1é",
        ] {
            assert!(duration_s(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_command_line_is_well_formed() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }
}
