//! Single values about the data directory.

use rusqlite::OptionalExtension;

use super::database::Database;
use super::error::Result;

impl Database {
    /// The id of this data directory: 32 hexadecimal digits drawn by lot when the store was made. It tells what
    /// belongs to this data directory, on an engine for instance, from what belongs to another.
    ///
    /// # Errors
    /// Those of [`StoreError`](super::StoreError).
    pub fn instance(&self) -> Result<String> {
        self.read(|c| {
            let mut query = c.prepare_cached("SELECT value FROM meta WHERE name = 'instance'")?;
            Ok(query.query_row([], |row| row.get(0))?)
        })
    }

    /// A value by its name.
    ///
    /// # Errors
    /// Those of [`StoreError`](super::StoreError).
    pub fn meta(&self, name: &str) -> Result<Option<String>> {
        self.read(|c| {
            let mut query = c.prepare_cached("SELECT value FROM meta WHERE name = ?1")?;
            Ok(query.query_row([name], |row| row.get(0)).optional()?)
        })
    }

    /// Sets a value, or removes it.
    ///
    /// # Errors
    /// Those of [`StoreError`](super::StoreError).
    pub fn set_meta(&mut self, name: &str, value: Option<&str>) -> Result<()> {
        self.write(|t| {
            match value {
                Some(value) => t
                    .prepare_cached(
                        "INSERT INTO meta VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                    )?
                    .execute([name, value])?,
                None => t.prepare_cached("DELETE FROM meta WHERE name = ?1")?.execute([name])?,
            };
            Ok(())
        })
    }
}
