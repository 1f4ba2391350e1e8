//! What requests say, field by field: the bodies and queries of the hub's calls, as named shapes with their JSON Schemas.
//!
//! A body is read by hand ([`super::super::body::Fields`]), so that every fault is named at once, into the struct that
//! describes it. Of a query the struct's fields are the parameters that [`super::Params`] knows.

use std::sync::LazyLock;

use schemars::{JsonSchema, SchemaGenerator};
use serde_json::Value;

use super::items::Common;
use crate::domain::{
    Activity, DeviceId, EnvelopeId, ProjectName, RunOptions, SessionId, TaskStatus,
};

/// A task to be done.
#[derive(Debug, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct TaskPost {
    /// What is to be done, in the producer's words; at most 256 KiB.
    #[schemars(length(max = 262_144), regex(pattern = r"\S"))]
    pub(crate) task: String,
    /// Where it goes and how.
    #[schemars(flatten)]
    pub(crate) common: Common,
    /// Wishes for the run; each only narrows the project's policy.
    pub(crate) options: Option<RunOptions>,
    /// The producer's own, given back with the task; at most 16 KiB.
    pub(crate) metadata: Option<Value>,
}

/// A message to be shown to a session.
#[derive(Debug, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct MessagePost {
    /// The text.
    #[schemars(length(max = 524_288), regex(pattern = r"\S"))]
    pub(crate) content: String,
    /// Where it goes and how.
    #[schemars(flatten)]
    pub(crate) common: Common,
    /// Whether an idle or closed session is woken for it; false when not said.
    pub(crate) wake: Option<bool>,
}

/// A wish to call a task off; it says nothing more.
#[derive(Debug, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct CancelPost {}

/// A new attempt of a task that ended.
#[derive(Debug, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct RetryPost {
    /// Whether one that was done is done once more; false when not said.
    pub(crate) force: Option<bool>,
    /// For how long the attempt is worth delivering, seconds; as the task's first one when not said.
    #[schemars(range(min = 1, max = 2_592_000))]
    pub(crate) expires_in_s: Option<i64>,
}

/// A decision about a project of a device.
#[derive(Debug, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct ApprovePost {
    /// The device: its id or its name; may be left out when only one announces the project.
    pub(crate) device: Option<String>,
}

/// A public key that wants to be a device.
#[derive(Debug, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct EnrollPost {
    /// The Ed25519 public key, base64url without padding.
    #[schemars(regex(pattern = r"^[A-Za-z0-9_-]{42}[AEIMQUYcgkosw048]$"))]
    pub(crate) public_key: String,
    /// The machine's name, as lists show it.
    #[schemars(
        length(min = 1, max = 100),
        regex(
            pattern = r"^[^\u0000-\u001F\u007F-\u009F]*[^\s\u0000-\u001F\u007F-\u009F][^\u0000-\u001F\u007F-\u009F]*$"
        )
    )]
    pub(crate) name: String,
    /// Its operating system.
    #[schemars(
        length(max = 200),
        regex(pattern = r"^[^\u0000-\u001F\u007F-\u009F]*$")
    )]
    pub(crate) os: Option<String>,
    /// The version of the program on it.
    #[schemars(
        length(max = 200),
        regex(pattern = r"^[^\u0000-\u001F\u007F-\u009F]*$")
    )]
    pub(crate) build: Option<String>,
}

/// What a session should know at its start; `summary` or `context` has to say something.
#[derive(Debug, JsonSchema)]
#[schemars(deny_unknown_fields)]
#[schemars(extend("anyOf" = [
    {"required": ["summary"], "properties": {"summary": {"type": "string", "minLength": 1}}},
    {"required": ["context"], "properties": {"context": {"type": "array", "minItems": 1}}},
]))]
pub(crate) struct MemoryPost {
    /// What happened, in prose.
    pub(crate) summary: Option<String>,
    /// Single things worth knowing, each text or an object.
    #[schemars(length(max = 10_000))]
    pub(crate) context: Option<Vec<Value>>,
    /// The project that also gets it; the session's own when not said.
    pub(crate) project: Option<ProjectName>,
}

/// What a session's folder holds.
#[derive(Debug, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct IndexPut {
    /// Files worth knowing.
    #[schemars(length(max = 10_000))]
    pub(crate) files: Option<Vec<Value>>,
    /// Names worth knowing.
    #[schemars(length(max = 10_000))]
    pub(crate) symbols: Option<Vec<Value>>,
    /// What changed of late.
    #[schemars(length(max = 10_000))]
    pub(crate) recent_changes: Option<Vec<Value>>,
}

/// Which tasks a list shows, and from where.
#[derive(Debug, JsonSchema)]
#[expect(dead_code, reason = "the fields are parameters, read by name")]
pub(crate) struct TaskQuery {
    /// Only those with one of these statuses, separated by commas.
    #[schemars(with = "Vec<TaskStatus>")]
    status: Option<Vec<TaskStatus>>,
    /// Only those of the attempt with this number, from 1.
    #[schemars(range(max = 4_294_967_295_u32))]
    attempt: Option<u32>,
    /// What every list takes.
    #[schemars(flatten)]
    common: ItemQuery,
}

/// Which messages a list shows, and from where.
#[derive(Debug, JsonSchema)]
#[expect(dead_code, reason = "the fields are parameters, read by name")]
pub(crate) struct MessageQuery {
    /// Only those whose last stage is one of these, separated by commas.
    #[schemars(with = "Vec<StageWord>")]
    status: Option<Vec<String>>,
    /// What every list takes.
    #[schemars(flatten)]
    common: ItemQuery,
}

/// A stage without what belongs to it.
#[derive(Debug, JsonSchema)]
#[schemars(extend("enum" = super::lists::STAGES))]
pub(crate) struct StageWord(#[expect(dead_code, reason = "a schema only")] String);

/// What the lists of tasks and messages take alike.
#[derive(Debug, JsonSchema)]
#[expect(dead_code, reason = "the fields are parameters, read by name")]
pub(crate) struct ItemQuery {
    /// Only those of this device, by id.
    device: Option<String>,
    /// Only those addressed to this project.
    project: Option<String>,
    /// Only those addressed to this session, or done by it.
    session_id: Option<SessionId>,
    /// Only those of this sender.
    from: Option<String>,
    /// Only those accepted then or later, Unix ms.
    created_after: Option<i64>,
    /// Only those accepted before, Unix ms.
    created_before: Option<i64>,
    /// `newest` first when not said.
    order: Option<Order>,
    /// The `next` of the page before.
    #[schemars(regex(pattern = r"^[A-Za-z0-9_-]+$"))]
    cursor: Option<String>,
    /// How many at most; 50 when not said.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
}

/// Which devices a list shows, and from where.
#[derive(Debug, JsonSchema)]
#[expect(dead_code, reason = "the fields are parameters, read by name")]
pub(crate) struct DeviceQuery {
    /// Only those that are connected now, or only the others.
    online: Option<bool>,
    /// Only those that are revoked, or only the others.
    revoked: Option<bool>,
    /// Where the page begins.
    #[schemars(flatten)]
    place: PageQuery,
}

/// Which sessions a list shows, and from where.
#[derive(Debug, JsonSchema)]
#[expect(dead_code, reason = "the fields are parameters, read by name")]
pub(crate) struct SessionQuery {
    /// Only those of this device, by id.
    device: Option<String>,
    /// Only those of this project.
    project: Option<String>,
    /// Only those that do one of these, separated by commas.
    #[schemars(with = "Vec<Activity>")]
    activity: Option<Vec<Activity>>,
    /// Only those with a sign of life then or later, Unix ms.
    since: Option<i64>,
    /// Where the page begins.
    #[schemars(flatten)]
    place: PageQuery,
}

/// Which projects a list shows, and from where.
#[derive(Debug, JsonSchema)]
#[expect(dead_code, reason = "the fields are parameters, read by name")]
pub(crate) struct ProjectsQuery {
    /// Only those of this device, by id.
    device: Option<String>,
    /// Only those that the account lets their device serve, or only the others.
    approved: Option<bool>,
    /// Only those that are enabled on their device, or only the others.
    enabled: Option<bool>,
    /// Where the page begins.
    #[schemars(flatten)]
    place: PageQuery,
}

/// Where a page begins and how long it is.
#[derive(Debug, JsonSchema)]
#[expect(dead_code, reason = "the fields are parameters, read by name")]
pub(crate) struct PageQuery {
    /// The `next` of the page before.
    #[schemars(regex(pattern = r"^[A-Za-z0-9_-]+$"))]
    cursor: Option<String>,
    /// How many at most; 50 when not said.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
}

/// The direction of a list.
#[derive(Debug, JsonSchema)]
#[schemars(rename_all = "snake_case")]
#[expect(dead_code, reason = "a schema only")]
pub(crate) enum Order {
    /// Newest first.
    Newest,
    /// Oldest first.
    Oldest,
}

/// From where a stream of events begins.
#[derive(Debug, JsonSchema)]
#[expect(dead_code, reason = "the fields are parameters, read by name")]
pub(crate) struct PlaceQuery {
    /// `start` for the oldest event that is kept, or the `id` of an event to go on after; the present when not said.
    #[schemars(regex(pattern = r"^(start|[0-9a-f]{32}-[0-9]{1,18}-[0-9]{1,18})$"))]
    after: Option<String>,
}

/// Which events a stream tells, and from where.
#[derive(Debug, JsonSchema)]
#[expect(dead_code, reason = "the fields are parameters, read by name")]
pub(crate) struct EventQuery {
    /// Only these types, separated by commas; `task` and `message` are all of one family.
    #[schemars(with = "Vec<EventKind>")]
    kinds: Option<Vec<String>>,
    /// Only those of items that go to this device, by id.
    device: Option<DeviceId>,
    /// Only those of items that are addressed to this project.
    project: Option<ProjectName>,
    /// Only those about this task.
    task: Option<EnvelopeId>,
    /// Only those about this message; not beside `task`.
    message: Option<EnvelopeId>,
    /// Where it begins.
    #[schemars(flatten)]
    place: PlaceQuery,
}

/// A type of event, or a family.
#[derive(Debug, JsonSchema)]
#[schemars(extend("enum" = super::events::words()))]
pub(crate) struct EventKind(#[expect(dead_code, reason = "a schema only")] String);

/// Where to look when a session itself has nothing.
#[derive(Debug, JsonSchema)]
#[expect(dead_code, reason = "the fields are parameters, read by name")]
pub(crate) struct ProjectQuery {
    /// The project the session belongs to.
    project: Option<ProjectName>,
}

/// The names of a query's parameters: those that its struct describes.
pub(crate) type Names = LazyLock<Vec<String>>;

/// See [`Names`].
pub(crate) fn names<T: JsonSchema>() -> Vec<String> {
    let schema = T::json_schema(&mut SchemaGenerator::default());
    let properties = schema.get("properties").and_then(Value::as_object);
    properties
        .into_iter()
        .flatten()
        .map(|(k, _)| k.clone())
        .collect()
}
