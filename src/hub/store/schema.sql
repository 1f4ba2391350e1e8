-- The hub's store, version 1. Sequence numbers are given per mailbox by the one writer; a dropped text keeps its row,
-- so that a repetition of the id is found until the row is dropped in turn.
CREATE TABLE mailboxes (
  id         INTEGER PRIMARY KEY,
  name       TEXT    NOT NULL UNIQUE,
  epoch      BLOB    NOT NULL,
  head       INTEGER NOT NULL DEFAULT 0,
  acked      INTEGER NOT NULL DEFAULT 0,
  generation INTEGER NOT NULL DEFAULT 0,
  count      INTEGER NOT NULL DEFAULT 0,
  bytes      INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE envelopes (
  mailbox    INTEGER NOT NULL REFERENCES mailboxes (id),
  seq        INTEGER NOT NULL,
  id         BLOB    NOT NULL,
  expires_at INTEGER NOT NULL,
  json       TEXT,
  UNIQUE (mailbox, seq),
  UNIQUE (mailbox, id)
) STRICT;
CREATE INDEX envelopes_due ON envelopes (expires_at) WHERE json IS NOT NULL;
CREATE INDEX envelopes_old ON envelopes (expires_at) WHERE json IS NULL;

CREATE TABLE records (
  key        TEXT    NOT NULL UNIQUE,
  value      TEXT    NOT NULL,
  version    INTEGER NOT NULL,
  keep_until INTEGER
) STRICT;
CREATE INDEX records_old ON records (keep_until) WHERE keep_until IS NOT NULL;
