//! The tables, and the steps that lead from one version of them to the next.
//!
//! `user_version` holds how many steps a database has taken. A step is never changed once it was released: a new
//! version adds one.

use rusqlite::{Connection, TransactionBehavior};

/// Marks a database as ours: the bytes of `Molt`.
pub const APPLICATION_ID: i64 = 0x4d6f_6c74;

/// The version that this program writes.
pub const VERSION: i64 = STEPS.len() as i64;

const STEPS: [&str; 6] = [
    include_str!("schema/1.sql"),
    include_str!("schema/2.sql"),
    include_str!("schema/3.sql"),
    include_str!("schema/4.sql"),
    include_str!("schema/5.sql"),
    include_str!("schema/6.sql"),
];

/// What a database says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It has the tables of [`VERSION`].
    Ready,
    /// It has no tables yet, or those of an older version.
    Behind,
    /// It has tables of a newer version, which is given.
    Newer(i64),
    /// It belongs to another program.
    NotOurs,
}

/// Reads it, all from one moment: another process may be making the tables. This is also the first read of the file,
/// and so where a file that is no database is noticed.
pub fn state(connection: &Connection) -> rusqlite::Result<State> {
    let moment = connection.unchecked_transaction()?;
    let state = state_now(connection)?;
    moment.finish()?;
    Ok(state)
}

fn state_now(connection: &Connection) -> rusqlite::Result<State> {
    let number = |name: &str| connection.query_row(name, [], |row| row.get::<_, i64>(0));
    let version = number("PRAGMA user_version")?;
    match number("PRAGMA application_id")? {
        APPLICATION_ID if version == VERSION => Ok(State::Ready),
        APPLICATION_ID if version > VERSION => Ok(State::Newer(version)),
        APPLICATION_ID => Ok(State::Behind),
        // A process that was killed while it made the database leaves one without tables.
        0 if version == 0 && number("SELECT count(*) FROM sqlite_schema")? == 0 => Ok(State::Behind),
        _ => Ok(State::NotOurs),
    }
}

/// Takes the steps that are missing, all or none of them. Nobody else may do so at the same time.
pub fn bring_up_to_date(connection: &mut Connection) -> rusqlite::Result<()> {
    connection.execute_batch("PRAGMA journal_mode = WAL")?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let taken: i64 = transaction.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    for step in STEPS.iter().skip(usize::try_from(taken).unwrap_or(0)) {
        transaction.execute_batch(step)?;
    }
    transaction.pragma_update(None, "user_version", VERSION)?;
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.commit()
}
