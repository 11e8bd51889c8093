-- Snapshots of sessions, by the session's key: they outlive it as its home does. One that is `making` or `removing` and
-- whose session nobody holds was left half done. `root` is what the backend keeps of it.
CREATE TABLE snapshots (
    id      TEXT    PRIMARY KEY,
    session TEXT    NOT NULL,
    name    TEXT,
    backend TEXT    NOT NULL,
    state   TEXT    NOT NULL CHECK (state IN ('making', 'ready', 'removing')),
    home    TEXT    NOT NULL CHECK (home IN ('copied', 'shared')),
    root    TEXT,
    bytes   INTEGER NOT NULL DEFAULT 0,
    made    INTEGER NOT NULL,
    made_by TEXT    NOT NULL
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX snapshots_named ON snapshots (session, name);

-- The snapshot that a session's sandboxes begin from, as JSON; absent: none.
ALTER TABLE sessions ADD COLUMN begins TEXT;
