-- Who may use the gateway. Of what is secret only the SHA-256 is kept, in lower-case hexadecimal: it was drawn by lot and
-- is long, so that it cannot be found by trying.
CREATE TABLE api_keys (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    name      TEXT    NOT NULL UNIQUE,
    hash      TEXT    NOT NULL UNIQUE,
    scope     TEXT    NOT NULL CHECK (scope IN ('operator.read', 'operator.write', 'operator.admin')),
    -- JSON: patterns of session keys. Absent: every session.
    sessions  TEXT,
    created   INTEGER NOT NULL,
    expires   INTEGER,
    last_used INTEGER
) STRICT;

-- People who are logged in: by a cookie, and a secret that the page holds.
CREATE TABLE logins (
    hash    TEXT    PRIMARY KEY,
    secret  TEXT    NOT NULL,
    created INTEGER NOT NULL,
    expires INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Requests that are to run once, whoever asks how often. Without an answer it runs, if its owner lives, or is lost.
CREATE TABLE idempotent (
    caller  TEXT    NOT NULL,
    key     TEXT    NOT NULL,
    request TEXT    NOT NULL,
    begun   INTEGER NOT NULL,
    owner   INTEGER NOT NULL,
    status  INTEGER,
    kind    TEXT,
    answer  BLOB,
    PRIMARY KEY (caller, key)
) STRICT;

CREATE INDEX idempotent_begun ON idempotent (begun);
