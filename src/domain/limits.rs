//! The numbers of the contract: every queue, wait and size has one here. Sizes in bytes, times in milliseconds, unless a name says otherwise.

/// Time for a connection to come up, DNS to TLS.
pub const CONNECT_TIMEOUT_MS: u64 = 10_000;
/// Time from the connection to `synced`'s first frame.
pub const HANDSHAKE_TIMEOUT_MS: u64 = 10_000;
/// Interval of pings, both ways.
pub const HEARTBEAT_MS: u64 = 20_000;
/// Silence after which a peer is dead: two missed heartbeats and a margin.
pub const HEARTBEAT_DEAD_MS: u64 = 45_000;
/// Life of a connect JWT, seconds.
pub const CONNECT_JWT_S: u64 = 60;
/// Time after which a device renews its authentication in band, seconds.
pub const AUTH_EXPIRES_S: u64 = 15 * 60;
/// SYNCED time after which the count of failed attempts starts anew.
pub const STABLE_AFTER_MS: u64 = 60_000;
/// Envelopes in flight to a device.
pub const WINDOW_ENVELOPES: u32 = 256;
/// Bytes in flight to a device.
pub const WINDOW_BYTES: u64 = 4 << 20;
/// Largest frame on the link.
pub const MAX_FRAME_BYTES: usize = 1 << 20;
/// Largest encoded envelope.
pub const MAX_ENVELOPE_BYTES: usize = 512 << 10;
/// Longest task text.
pub const MAX_TASK_BYTES: usize = 256 << 10;
/// Longest result text that can be uploaded.
pub const MAX_RESULT_BYTES: usize = 16 << 20;
/// Longest piece of such an upload.
pub const RESULT_CHUNK_BYTES: usize = 512 << 10;
/// Envelopes in a mailbox.
pub const MAILBOX_ENVELOPES: u64 = 10_000;
/// Bytes in a mailbox.
pub const MAILBOX_BYTES: u64 = 256 << 20;
/// Events in an account's log; the oldest make room.
pub const EVENTS_KEPT: u64 = 50_000;
/// Life of an event in the log.
pub const EVENTS_KEPT_MS: i64 = 7 * 24 * 3600 * 1000;
/// Life of an undelivered message.
pub const MESSAGE_TTL_MS: i64 = 7 * 24 * 3600 * 1000;
/// Life of an undelivered task.
pub const TASK_TTL_MS: i64 = 24 * 3600 * 1000;
/// Lease of a claim on an idle session.
pub const CLAIM_LEASE_MS: u64 = 30_000;
/// Lease of a claim on a busy session; evidence extends it.
pub const CLAIM_LEASE_BUSY_MS: u64 = 60_000;
/// A hook's whole time, its wait for the daemon included.
pub const HOOK_DEADLINE_MS: u64 = 300;
/// A `SessionStart` hook's whole time, its wait for the daemon included.
pub const HOOK_START_DEADLINE_MS: u64 = 1_500;
/// Characters in one hook output; the CLI cuts at 10,000.
pub const HOOK_OUTPUT_CHARS: usize = 9_500;
/// Memory given at a session's start, tokens.
pub const MEMORY_TOKENS: usize = 2_000;
/// Quiet time before a closed session is resumed headless.
pub const IDLE_THRESHOLD_MS: u64 = 60_000;
/// Runs at a time.
pub const CONCURRENT_RUNS: u32 = 2;
/// A run's wall clock, seconds.
pub const RUN_TIMEOUT_S: u64 = 30 * 60;
/// A run's model turns.
pub const RUN_MAX_TURNS: u32 = 50;
/// A run's budget, US dollars.
pub const RUN_BUDGET_USD: f64 = 5.0;
/// Attempts before a task is dead.
pub const MAX_ATTEMPTS: u32 = 3;
/// Agents an envelope may pass through.
pub const MAX_HOPS: u8 = 4;
/// Life of an idempotency key.
pub const IDEMPOTENCY_TTL_MS: i64 = 24 * 3600 * 1000;
/// Life of finished tasks, receipts and dedupe ids: longer than the longest TTL.
pub const FINISHED_KEPT_MS: i64 = 30 * 24 * 3600 * 1000;
/// Requests per second of one token.
pub const TOKEN_RATE_PER_S: u32 = 10;
/// Requests of one token at once.
pub const TOKEN_BURST: u32 = 100;
/// Connections of one address at a hub.
pub const CONNECTIONS_PER_ADDRESS: u32 = 100;
/// Connections at a hub, in all.
pub const CONNECTIONS: u32 = 10_000;
