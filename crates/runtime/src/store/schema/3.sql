-- What a person has allowed or denied for good. Patterns stand as they are compared: lower-case, IDNs in punycode.
CREATE TABLE network_rules (
    pattern TEXT    PRIMARY KEY,
    action  TEXT    NOT NULL CHECK (action IN ('allow', 'deny')),
    made    INTEGER NOT NULL,
    made_by TEXT    NOT NULL
) STRICT, WITHOUT ROWID;

-- The same for a session that is not stored, by its key. What a stored one allows is among its overrides.
CREATE TABLE network_session_rules (
    session TEXT    NOT NULL,
    pattern TEXT    NOT NULL,
    action  TEXT    NOT NULL CHECK (action IN ('allow', 'deny')),
    made    INTEGER NOT NULL,
    made_by TEXT    NOT NULL,
    PRIMARY KEY (session, pattern)
) STRICT, WITHOUT ROWID;

-- Questions about hosts that no rule names, and what was said to them. The session, named by its key, need not be
-- stored. A question without a decision waits until it expires; `waiting` is how many have asked it and not gone.
CREATE TABLE approvals (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    session    TEXT    NOT NULL,
    host       TEXT    NOT NULL,
    port       INTEGER NOT NULL,
    protocol   TEXT    NOT NULL,
    asked      INTEGER NOT NULL,
    expires    INTEGER NOT NULL,
    waiting    INTEGER NOT NULL,
    decision   TEXT    CHECK (decision IN ('once', 'session', 'always', 'deny', 'denySession', 'denyAlways',
                                           'expired', 'withdrawn')),
    decided    INTEGER,
    decided_by TEXT
) STRICT;

CREATE INDEX approvals_of_session ON approvals (session, asked);
CREATE UNIQUE INDEX approvals_waiting ON approvals (session, host, port) WHERE decision IS NULL;

-- Grows with every change of what a session may reach: who judges by it looks at this number.
INSERT INTO meta VALUES ('networkGeneration', '0');

CREATE TRIGGER network_rule_made AFTER INSERT ON network_rules BEGIN
    UPDATE meta SET value = CAST(value AS INTEGER) + 1 WHERE name = 'networkGeneration';
END;
CREATE TRIGGER network_rule_changed AFTER UPDATE ON network_rules BEGIN
    UPDATE meta SET value = CAST(value AS INTEGER) + 1 WHERE name = 'networkGeneration';
END;
CREATE TRIGGER network_rule_removed AFTER DELETE ON network_rules BEGIN
    UPDATE meta SET value = CAST(value AS INTEGER) + 1 WHERE name = 'networkGeneration';
END;
CREATE TRIGGER network_session_rule_made AFTER INSERT ON network_session_rules BEGIN
    UPDATE meta SET value = CAST(value AS INTEGER) + 1 WHERE name = 'networkGeneration';
END;
CREATE TRIGGER network_session_rule_changed AFTER UPDATE ON network_session_rules BEGIN
    UPDATE meta SET value = CAST(value AS INTEGER) + 1 WHERE name = 'networkGeneration';
END;
CREATE TRIGGER network_session_rule_removed AFTER DELETE ON network_session_rules BEGIN
    UPDATE meta SET value = CAST(value AS INTEGER) + 1 WHERE name = 'networkGeneration';
END;
CREATE TRIGGER network_overrides_changed AFTER UPDATE OF overrides ON sessions
WHEN old.overrides IS NOT new.overrides BEGIN
    UPDATE meta SET value = CAST(value AS INTEGER) + 1 WHERE name = 'networkGeneration';
END;
CREATE TRIGGER network_session_removed AFTER DELETE ON sessions BEGIN
    UPDATE meta SET value = CAST(value AS INTEGER) + 1 WHERE name = 'networkGeneration';
END;
