-- The event log, version 2 of the store: one ordered log per account, of which the oldest events go.
CREATE TABLE logs (
  id    INTEGER PRIMARY KEY,
  name  TEXT NOT NULL UNIQUE,
  epoch BLOB NOT NULL
) STRICT;

CREATE TABLE events (
  log   INTEGER NOT NULL REFERENCES logs (id),
  seq   INTEGER NOT NULL,
  about BLOB    NOT NULL,
  at    INTEGER NOT NULL,
  json  TEXT    NOT NULL,
  PRIMARY KEY (log, seq)
) STRICT, WITHOUT ROWID;
