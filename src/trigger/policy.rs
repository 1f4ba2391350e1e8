//! Whether a run may start, and with what.
//!
//! The user's configuration is the ceiling. A producer's options can lower it and nothing else: limits by the smaller
//! number, the permission mode by the stricter, tool rules by the user's own rules that the producer also named (so no
//! rule of remote origin ever reaches the command line).
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use crate::claude::headless::{Conversation, Headless, ModelName, RunMode};
use crate::domain::{PermissionMode, RunOptions, SessionId, TaskState, TaskStatus, limits};

/// Waits before each further try to start a process, ms; the number of tries is their number and one.
pub const SPAWN_RETRY_MS: [u64; 5] = [500, 1_500, 4_000, 11_000, 30_000];

/// What the user allows runs of one project.
#[derive(Debug, Clone, PartialEq)]
pub struct ProjectRuns {
    /// The enabled folder, canonical.
    pub folder: PathBuf,
    /// The permission mode, and the widest that may be asked for.
    pub mode: RunMode,
    /// Tool rules that need no permission, in the user's words.
    pub allowed_tools: Vec<String>,
    /// The model of runs that ask for none.
    pub model: Option<ModelName>,
    /// Model turns at most.
    pub max_turns: u32,
    /// Cost at most, US dollars.
    pub max_budget_usd: f64,
    /// Wall-clock time at most, seconds.
    pub timeout_s: u64,
}

impl ProjectRuns {
    /// The defaults for this folder: what would ask a person is denied.
    #[must_use]
    pub fn new(folder: PathBuf) -> Self {
        Self {
            folder,
            mode: RunMode::Asked(PermissionMode::Manual),
            allowed_tools: Vec::new(),
            model: None,
            max_turns: limits::RUN_MAX_TURNS,
            max_budget_usd: limits::RUN_BUDGET_USD,
            timeout_s: limits::RUN_TIMEOUT_S,
        }
    }
}

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub struct RunRequest<'a> {
    /// The conversation: a new one, or one to resume.
    pub conversation: Conversation,
    /// Where it is to run, canonical: the project's folder, one below it, or its worktree.
    pub cwd: &'a Path,
    /// The folder that holds the project's worktrees, canonical, if it has any.
    pub worktrees: Option<&'a Path>,
    /// The producer's wishes.
    pub options: &'a RunOptions,
    /// How many agents the request passed through.
    pub hops: u8,
}

/// What runs now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// Sessions in which one of our runs works.
    pub sessions: BTreeSet<SessionId>,
    /// Sessions that another live process owns.
    pub live: BTreeSet<SessionId>,
    /// Runs at a time at most.
    pub cap: u32,
}

/// Why a run cannot start yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WaitReason {
    /// A live process owns the session: it has to go in there, never beside it.
    SessionLive,
    /// A run of ours works in the session.
    SessionRunning,
    /// All slots are taken.
    NoCapacity,
}

impl WaitReason {
    /// The reason as receipts and task states carry it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SessionLive => "session_live",
            Self::SessionRunning => "session_running",
            Self::NoCapacity => "no_capacity",
        }
    }
}

/// Why a run will never start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RefuseReason {
    /// The project is not enabled, or the folder is not in it.
    ProjectNotEnabled,
    /// It passed through too many agents.
    HopsExceeded,
    /// A wish makes no sense: no turns, no time, no positive budget, no model's name.
    BadOptions,
}

impl RefuseReason {
    /// The reason as receipts and task states carry it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ProjectNotEnabled => "project_not_enabled",
            Self::HopsExceeded => "hops_exceeded",
            Self::BadOptions => "bad_options",
        }
    }

    /// The task's state for it.
    #[must_use]
    pub fn task_state(self) -> TaskState {
        TaskState::because(TaskStatus::Rejected, self.as_str())
    }
}

/// A run that may start.
#[derive(Debug, Clone, PartialEq)]
pub struct RunPlan {
    /// The command's parts.
    pub headless: Headless,
    /// Where it runs.
    pub cwd: PathBuf,
    /// Wall-clock time at most, ms.
    pub timeout_ms: u64,
}

/// Whether a run may start.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// Now, like this.
    Start(Box<RunPlan>),
    /// Not yet.
    Wait(WaitReason),
    /// Never.
    Refuse(RefuseReason),
}

/// Decides about a run; `project` is `None` where the user enabled none.
#[must_use]
pub fn decide(
    request: RunRequest<'_>,
    project: Option<&ProjectRuns>,
    running: &Running,
) -> Decision {
    if request.hops > limits::MAX_HOPS {
        return Decision::Refuse(RefuseReason::HopsExceeded);
    }
    let Some(project) = project.filter(|p| {
        let mut folders = request.worktrees.into_iter().chain([p.folder.as_path()]);
        folders.any(|f| is_within(request.cwd, f))
    }) else {
        return Decision::Refuse(RefuseReason::ProjectNotEnabled);
    };
    let Some(plan) = narrow(request, project) else {
        return Decision::Refuse(RefuseReason::BadOptions);
    };
    let (Conversation::New(session) | Conversation::Resume(session)) = request.conversation;
    if running.live.contains(&session) {
        Decision::Wait(WaitReason::SessionLive)
    } else if running.sessions.contains(&session) {
        Decision::Wait(WaitReason::SessionRunning)
    } else if running.sessions.len() >= running.cap as usize {
        Decision::Wait(WaitReason::NoCapacity)
    } else {
        Decision::Start(Box::new(plan))
    }
}

/// Whether `path` is `folder` or below it; both have to be absolute and plain (no `..`), as canonical paths are.
fn is_within(path: &Path, folder: &Path) -> bool {
    let plain = |p: &Path| {
        p.is_absolute()
            && p.components()
                .all(|c| !matches!(c, Component::ParentDir | Component::CurDir))
    };
    plain(path) && plain(folder) && folder.parent().is_some() && path.starts_with(folder)
}

/// The user's policy, lowered by the producer's wishes; `None` if a wish makes no sense.
fn narrow(request: RunRequest<'_>, project: &ProjectRuns) -> Option<RunPlan> {
    let o = request.options;
    let model = match &o.model {
        Some(name) => Some(ModelName::new(name).ok()?),
        None => project.model.clone(),
    };
    let max_turns = o
        .max_turns
        .map_or(project.max_turns, |n| n.min(project.max_turns));
    let max_budget_usd = match o.max_budget_usd {
        Some(n) if n.is_finite() && n > 0.0 => n.min(project.max_budget_usd),
        Some(_) => return None,
        None => project.max_budget_usd,
    };
    let timeout_s = o
        .timeout_s
        .map_or(project.timeout_s, |n| n.min(project.timeout_s));
    if max_turns == 0 || timeout_s == 0 {
        return None;
    }
    let mut mode = match o.permission_mode.map(RunMode::Asked) {
        Some(asked) if width(asked) <= width(project.mode) => asked,
        _ => project.mode,
    };
    let allowed_tools = match &o.allowed_tools {
        None => project.allowed_tools.clone(),
        Some(asked) => {
            // In bypass mode a list of tools restricts nothing; a producer who sends one wants it to.
            if mode == RunMode::Bypass {
                mode = RunMode::Asked(PermissionMode::DontAsk);
            }
            let both = project.allowed_tools.iter().filter(|t| asked.contains(t));
            both.cloned().collect()
        }
    };
    Some(RunPlan {
        headless: Headless {
            conversation: request.conversation,
            mode,
            allowed_tools,
            model,
            max_turns,
            max_budget_usd,
        },
        cwd: request.cwd.to_owned(),
        timeout_ms: timeout_s.saturating_mul(1000),
    })
}

/// How much a mode lets pass without a person: `plan` < `manual`, `dontAsk` < `acceptEdits` < bypass.
const fn width(mode: RunMode) -> u8 {
    match mode {
        RunMode::Asked(PermissionMode::Plan) => 0,
        RunMode::Asked(PermissionMode::Manual | PermissionMode::DontAsk) => 1,
        RunMode::Asked(PermissionMode::AcceptEdits) => 2,
        RunMode::Bypass => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MODES: [RunMode; 5] = [
        RunMode::Asked(PermissionMode::Plan),
        RunMode::Asked(PermissionMode::Manual),
        RunMode::Asked(PermissionMode::DontAsk),
        RunMode::Asked(PermissionMode::AcceptEdits),
        RunMode::Bypass,
    ];
    const SESSION: SessionId = SessionId::from_u128(7);

    fn project() -> ProjectRuns {
        ProjectRuns {
            mode: RunMode::Asked(PermissionMode::AcceptEdits),
            allowed_tools: vec!["Read".into(), "Bash(git log *)".into()],
            ..ProjectRuns::new(PathBuf::from("/home/u/shop"))
        }
    }

    fn idle() -> Running {
        Running {
            sessions: BTreeSet::new(),
            live: BTreeSet::new(),
            cap: 2,
        }
    }

    fn ask<'a>(options: &'a RunOptions, cwd: &'a str) -> RunRequest<'a> {
        RunRequest {
            conversation: Conversation::Resume(SESSION),
            cwd: Path::new(cwd),
            worktrees: Some(Path::new("/data/worktrees/shop")),
            options,
            hops: 0,
        }
    }

    fn start(options: &RunOptions, project: &ProjectRuns) -> RunPlan {
        match decide(ask(options, "/home/u/shop"), Some(project), &idle()) {
            Decision::Start(plan) => *plan,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_run_without_wishes_has_the_projects_policy() {
        let plan = start(&RunOptions::default(), &project());
        assert_eq!(plan.headless.mode, project().mode);
        assert_eq!(plan.headless.allowed_tools, project().allowed_tools);
        assert_eq!(plan.headless.max_turns, 50);
        assert_eq!(plan.timeout_ms, 1_800_000);
    }

    #[test]
    fn wishes_lower_and_never_raise() {
        let wish = |turns, usd, seconds| RunOptions {
            max_turns: Some(turns),
            max_budget_usd: Some(usd),
            timeout_s: Some(seconds),
            allowed_tools: Some(vec!["Bash".into(), "Read".into()]),
            ..RunOptions::default()
        };
        let low = start(&wish(3, 0.5, 60), &project());
        assert_eq!((low.headless.max_turns, low.timeout_ms), (3, 60_000));
        assert!((low.headless.max_budget_usd - 0.5).abs() < f64::EPSILON);
        assert_eq!(low.headless.allowed_tools, ["Read"]);
        let high = start(&wish(u32::MAX, 1e9, u64::MAX), &project());
        assert_eq!((high.headless.max_turns, high.timeout_ms), (50, 1_800_000));
        assert!((high.headless.max_budget_usd - 5.0).abs() < f64::EPSILON);
    }

    #[test]
    fn the_permission_mode_is_never_wider_than_the_projects() {
        for (p, of_project) in MODES.into_iter().enumerate() {
            for asked in MODES.into_iter().take(4) {
                let RunMode::Asked(mode) = asked else {
                    unreachable!()
                };
                let options = RunOptions {
                    permission_mode: Some(mode),
                    ..RunOptions::default()
                };
                let project = ProjectRuns {
                    mode: of_project,
                    ..project()
                };
                let got = start(&options, &project).headless.mode;
                assert!(width(got) <= width(of_project), "{p}");
                if width(asked) <= width(of_project) {
                    assert_eq!(got, asked);
                }
            }
        }
    }

    #[test]
    fn a_tool_list_ends_bypass() {
        let options = RunOptions {
            allowed_tools: Some(vec!["Read".into()]),
            ..RunOptions::default()
        };
        let project = ProjectRuns {
            mode: RunMode::Bypass,
            ..project()
        };
        let plan = start(&options, &project);
        assert_eq!(plan.headless.mode, RunMode::Asked(PermissionMode::DontAsk));
        assert_eq!(plan.headless.allowed_tools, ["Read"]);
    }

    #[test]
    fn senseless_wishes_are_refused() {
        let none = RunOptions::default();
        for options in [
            RunOptions {
                max_turns: Some(0),
                ..none.clone()
            },
            RunOptions {
                timeout_s: Some(0),
                ..none.clone()
            },
            RunOptions {
                max_budget_usd: Some(f64::NAN),
                ..none.clone()
            },
            RunOptions {
                max_budget_usd: Some(-1.0),
                ..none.clone()
            },
            RunOptions {
                model: Some("--x".into()),
                ..none.clone()
            },
        ] {
            let got = decide(ask(&options, "/home/u/shop"), Some(&project()), &idle());
            assert_eq!(got, Decision::Refuse(RefuseReason::BadOptions));
        }
    }

    #[test]
    fn runs_start_only_in_enabled_folders() {
        let o = RunOptions::default();
        let project = project();
        for good in ["/home/u/shop", "/home/u/shop/a/b", "/data/worktrees/shop/1"] {
            let got = decide(ask(&o, good), Some(&project), &idle());
            assert!(matches!(got, Decision::Start(_)), "{good}");
        }
        let refused = Decision::Refuse(RefuseReason::ProjectNotEnabled);
        for bad in [
            "/home/u",
            "/home/u/shop2",
            "/home/u/shop/../x",
            "shop",
            "",
            "/",
        ] {
            assert_eq!(
                decide(ask(&o, bad), Some(&project), &idle()),
                refused,
                "{bad}"
            );
        }
        assert_eq!(decide(ask(&o, "/home/u/shop"), None, &idle()), refused);
        let root = ProjectRuns::new(PathBuf::from("/"));
        assert_eq!(decide(ask(&o, "/etc"), Some(&root), &idle()), refused);
    }

    #[test]
    fn one_run_per_session_and_none_beside_a_live_process() {
        let o = RunOptions::default();
        let decide_with = |running: &Running| {
            let request = ask(&o, "/home/u/shop");
            decide(request, Some(&project()), running)
        };
        let mut running = idle();
        running.sessions.insert(SESSION);
        assert_eq!(
            decide_with(&running),
            Decision::Wait(WaitReason::SessionRunning)
        );
        running.live.insert(SESSION);
        assert_eq!(
            decide_with(&running),
            Decision::Wait(WaitReason::SessionLive)
        );
        let mut full = idle();
        full.sessions = (1..=2).map(SessionId::from_u128).collect();
        assert_eq!(decide_with(&full), Decision::Wait(WaitReason::NoCapacity));
    }

    #[test]
    fn a_request_that_went_through_too_many_agents_is_refused() {
        let o = RunOptions::default();
        for (hops, refused) in [(4, false), (5, true)] {
            let request = RunRequest {
                hops,
                ..ask(&o, "/home/u/shop")
            };
            let got = decide(request, Some(&project()), &idle());
            let want = Decision::Refuse(RefuseReason::HopsExceeded);
            assert_eq!(got == want, refused);
        }
    }

    proptest! {
        #[test]
        fn no_wish_widens_the_policy(
            turns in any::<Option<u32>>(), usd in any::<Option<f64>>(), seconds in any::<Option<u64>>(),
            tools in any::<Option<Vec<String>>>(), mode in 0..5_usize, asked in 0..5_usize,
        ) {
            let project = ProjectRuns { mode: MODES[mode], ..project() };
            let options = RunOptions {
                max_turns: turns, max_budget_usd: usd, timeout_s: seconds, allowed_tools: tools,
                permission_mode: match MODES[asked] { RunMode::Asked(m) => Some(m), RunMode::Bypass => None },
                ..RunOptions::default()
            };
            if let Decision::Start(plan) = decide(ask(&options, "/home/u/shop"), Some(&project), &idle()) {
                let h = plan.headless;
                prop_assert!(h.max_turns <= project.max_turns && h.max_budget_usd <= project.max_budget_usd);
                prop_assert!(plan.timeout_ms <= project.timeout_s * 1000 && width(h.mode) <= width(project.mode));
                prop_assert!(h.allowed_tools.iter().all(|t| project.allowed_tools.contains(t)));
                prop_assert!(h.args().is_ok());
            }
        }
    }
}
