-- Version 2 of queue.db: attempts, what was called off, results that are uploaded, the hub's clock.

-- Which attempt of its task an envelope is, and how often a run of it was begun without coming to an end.
ALTER TABLE envelopes ADD COLUMN attempt INTEGER;
ALTER TABLE envelopes ADD COLUMN starts INTEGER NOT NULL DEFAULT 0;
UPDATE envelopes SET attempt = coalesce(json_extract(json, '$.attempt'), 1) WHERE kind = 'task';

-- What the hub called off, kept as long as ids are: it also ends an envelope that comes after its cancel. `target` is a
-- task or a message; without `attempt` it means all that the hub made before `made_at` (the hub's clock).
CREATE TABLE called_off (
  target  TEXT NOT NULL,
  attempt INTEGER,
  made_at INTEGER NOT NULL,
  at      INTEGER NOT NULL
) STRICT;
CREATE INDEX called_off_by_target ON called_off (target);

-- Results on their way beside the link. `reports` waits until the text is at the hub, or is known not to get there.
CREATE TABLE uploads (
  envelope TEXT PRIMARY KEY,
  task_id  TEXT NOT NULL,
  attempt  INTEGER NOT NULL,
  bytes    INTEGER NOT NULL,
  sha256   TEXT NOT NULL,
  at       INTEGER NOT NULL,
  reports  TEXT
) STRICT;
CREATE TABLE upload_pieces (
  envelope TEXT NOT NULL,
  start    INTEGER NOT NULL,
  text     TEXT NOT NULL
) STRICT;
CREATE INDEX upload_pieces_in_order ON upload_pieces (envelope, start);

-- The hub's clock against this boot's, so that no step of the wall clock ages mail.
ALTER TABLE meta ADD COLUMN boot TEXT;
ALTER TABLE meta ADD COLUMN hub_base INTEGER;
-- What this file and its companion had in common at the last start and the one before.
ALTER TABLE meta ADD COLUMN life TEXT;
ALTER TABLE meta ADD COLUMN life_before TEXT;
