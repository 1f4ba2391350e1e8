//! Into the session: which door an envelope takes, who holds it meanwhile, and what the model gets to read.
//!
//! Everything here is a decision, hence a pure function of state, input and time; the daemon carries the rows and bytes.
//!
//! ```text
//! queue row ──> planner::plan ──> Hooks | Inbox | Doorbell | Headless | Hold{reason} | refusal
//!                                   │
//!                 a hook event ──> claims::select ──> Claim (nonce) ──> fence::batch ──> text
//!                                                       │
//!           transcript, hook events, time ──> Claim::on ──> receipts, and back to the queue only on proof
//! ```
//!
//! | file | decides |
//! |---|---|
//! | `snapshot` | nothing: what the planner is told about sessions, projects and the user's wishes |
//! | `reason` | nothing: the stable words for waiting and refusing |
//! | `planner` | the table of DESIGN section 6, total |
//! | `claims` | what a claim becomes at each sign, and which envelopes the next one takes |
//! | `budget` | how long a text is, and where it may be cut |
//! | `fence` | how remote text is shown to the model |
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod budget;
pub mod claims;
pub mod fence;
pub mod planner;
mod reason;
mod snapshot;

pub use reason::Reason;
pub use snapshot::{
    Approval, ApprovalState, Block, DoorState, Doors, Features, Policy, ProjectPolicy,
    SessionSnapshot, Tree, Workspace,
};
