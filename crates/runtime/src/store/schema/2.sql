-- Why the session's last sandbox ended, until the next one runs: what the next answer says of the restart.
ALTER TABLE sessions ADD COLUMN ended TEXT;
-- What was judged when the sandbox was opened, as JSON: it holds for as long as the sandbox does.
ALTER TABLE sandboxes ADD COLUMN judged TEXT NOT NULL DEFAULT '{}';
-- Whether somebody was told that the outcome is not known.
ALTER TABLE commands ADD COLUMN told INTEGER NOT NULL DEFAULT 1;
CREATE INDEX commands_untold ON commands (session) WHERE told = 0;
