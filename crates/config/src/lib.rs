//! Configuration of Moltis: moltis.toml, environment, validation.
