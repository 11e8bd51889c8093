-- A login by an API key holds the key's hash: it may do what the key may, as long as the key holds.
ALTER TABLE logins ADD COLUMN key TEXT;
