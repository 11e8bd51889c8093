-- Times are milliseconds since 1970. Words are those of the API.

CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Tells the things of this data directory from those of another, for as long as it exists.
INSERT INTO meta VALUES ('instance', lower(hex(randomblob(16))));

-- Numbers of sessions are never used twice: locks and commands name them.
CREATE TABLE sessions (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    key          TEXT    NOT NULL UNIQUE,
    sandbox      TEXT    NOT NULL UNIQUE,
    created      INTEGER NOT NULL,
    last_used    INTEGER NOT NULL,
    last_used_by TEXT    NOT NULL,
    -- How many commands and sandboxes it has had: the numbers of the latest.
    commands     INTEGER NOT NULL DEFAULT 0,
    openings     INTEGER NOT NULL DEFAULT 0,
    -- JSON. The values of env are secrets and are read only to run a command.
    overrides    TEXT    NOT NULL DEFAULT '{}',
    env          TEXT    NOT NULL DEFAULT '{}'
) STRICT;

-- The sandbox that a session has, or that somebody was about to start or end. Changed under the session's lock only.
CREATE TABLE sandboxes (
    session     INTEGER PRIMARY KEY REFERENCES sessions (id),
    generation  INTEGER NOT NULL,
    backend     TEXT    NOT NULL,
    fingerprint TEXT    NOT NULL,
    state       TEXT    NOT NULL CHECK (state IN ('opening', 'running', 'closing')),
    created     INTEGER NOT NULL,
    opened_by   TEXT    NOT NULL
) STRICT;

-- Commands: those that run and the latest of those that ran. Output comes last, so that a list reads no further.
CREATE TABLE commands (
    id           INTEGER PRIMARY KEY,
    session      INTEGER NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    number       INTEGER NOT NULL,
    state        TEXT    NOT NULL CHECK (state IN ('running', 'ended', 'lost')),
    -- The lock that the process holds which will report its end; absent when the sandbox keeps it by itself.
    owner        INTEGER,
    background   INTEGER NOT NULL,
    process      INTEGER,
    backend      TEXT    NOT NULL,
    caller       TEXT    NOT NULL,
    command      TEXT    NOT NULL,
    started      INTEGER NOT NULL,
    code         INTEGER,
    signal       INTEGER,
    ending       TEXT,
    micros       INTEGER,
    stdout_bytes INTEGER,
    stderr_bytes INTEGER,
    stdout_head  BLOB,
    stdout_tail  BLOB,
    stderr_head  BLOB,
    stderr_tail  BLOB
) STRICT;

CREATE UNIQUE INDEX commands_of_session ON commands (session, number);
CREATE INDEX commands_running ON commands (session) WHERE state = 'running';
