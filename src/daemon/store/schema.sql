-- Version 1 of queue.db. Applied once, to an empty file; later versions append migrations and never edit this one.
-- Ids are text, so that the file reads well in any SQLite tool; times are Unix milliseconds.

-- One row: what this file is, and how far into the hub's mailbox it reaches.
CREATE TABLE meta (
  one             INTEGER PRIMARY KEY CHECK (one = 1),
  instance        TEXT NOT NULL,
  outbox_instance TEXT NOT NULL,
  epoch           TEXT,
  seq             INTEGER,
  created_at      INTEGER NOT NULL,
  -- The inode that the instances were drawn for: a copy of this file has another, and draws its own.
  file            TEXT,
  CHECK ((epoch IS NULL) = (seq IS NULL))
) STRICT;

-- Envelopes in order of arrival. `seq` is absent for what came through the local API.
CREATE TABLE envelopes (
  ord         INTEGER PRIMARY KEY AUTOINCREMENT,
  id          TEXT NOT NULL UNIQUE,
  seq         INTEGER,
  kind        TEXT NOT NULL,
  priority    INTEGER NOT NULL,
  project     TEXT,
  session     TEXT,
  task_id     TEXT,
  received_at INTEGER NOT NULL,
  expires_at  INTEGER NOT NULL,
  state       TEXT NOT NULL CHECK (state IN ('queued', 'claimed', 'terminal')),
  hold_reason TEXT,
  claim       TEXT,
  changed_at  INTEGER NOT NULL,
  json        TEXT NOT NULL
) STRICT;
CREATE INDEX envelopes_by_lane ON envelopes (state, priority DESC, ord);
CREATE INDEX envelopes_by_task ON envelopes (task_id) WHERE task_id IS NOT NULL;

-- Every id that was ever taken, for longer than any envelope lives; `final` is what was last reported about it, so
-- that a hub that forgot can be told again.
CREATE TABLE seen_ids (
  id    TEXT PRIMARY KEY,
  at    INTEGER NOT NULL,
  final TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX seen_ids_by_age ON seen_ids (at);

-- Reports for the hub. AUTOINCREMENT keeps `n` from being used twice after a prune; a rollback gives the number back, so `n` is dense.
CREATE TABLE outbox (
  n    INTEGER PRIMARY KEY AUTOINCREMENT,
  id   TEXT NOT NULL,
  kind TEXT NOT NULL,
  at   INTEGER NOT NULL,
  body TEXT NOT NULL
) STRICT;
CREATE INDEX outbox_by_id ON outbox (id);

-- Reports that the hub refused for good: for people, bounded.
CREATE TABLE rejected_reports (
  n    INTEGER NOT NULL,
  code TEXT NOT NULL,
  id   TEXT NOT NULL,
  kind TEXT NOT NULL,
  at   INTEGER NOT NULL,
  body TEXT NOT NULL
) STRICT;

-- Reports about envelopes that only this daemon knows: they are read here and never sent.
CREATE TABLE local_reports (
  id   TEXT NOT NULL,
  kind TEXT NOT NULL,
  at   INTEGER NOT NULL,
  body TEXT NOT NULL
) STRICT;
CREATE INDEX local_reports_by_id ON local_reports (id);

CREATE TABLE claims (
  id          TEXT PRIMARY KEY,
  door        TEXT NOT NULL,
  session     TEXT,
  envelopes   TEXT NOT NULL,
  transcript  TEXT,
  offset      INTEGER NOT NULL,
  opened_at   INTEGER NOT NULL,
  lease_until INTEGER NOT NULL,
  state       TEXT NOT NULL,
  closed      INTEGER NOT NULL,
  detail      TEXT NOT NULL
) STRICT;
CREATE INDEX claims_open ON claims (closed, opened_at);

CREATE TABLE sessions (
  session_id  TEXT PRIMARY KEY,
  lineage     TEXT NOT NULL,
  pid         INTEGER,
  proc_start  INTEGER,
  cwd         TEXT NOT NULL,
  transcript  TEXT,
  project     TEXT,
  entrypoint  TEXT,
  activity    TEXT NOT NULL,
  reason      TEXT,
  active_at   INTEGER NOT NULL,
  told_memory TEXT,
  detail      TEXT NOT NULL
) STRICT;
CREATE INDEX sessions_by_project ON sessions (project, active_at DESC);

CREATE TABLE runs (
  envelope   TEXT NOT NULL,
  task_id    TEXT NOT NULL,
  attempt    INTEGER NOT NULL,
  pid        INTEGER,
  proc_start INTEGER,
  session_id TEXT,
  started_at INTEGER NOT NULL,
  state      TEXT NOT NULL,
  finished   INTEGER NOT NULL,
  detail     TEXT NOT NULL,
  PRIMARY KEY (task_id, attempt)
) STRICT, WITHOUT ROWID;
CREATE INDEX runs_unfinished ON runs (finished, started_at);
