//! Numbered migrations, one transaction each. A directory of a newer format is refused, never touched.

use redb::{ReadableTable, TableDefinition, WriteTransaction};

use crate::database::Db;
use crate::error::StoreError;
use crate::source::counter;
use crate::tables::{self, Digest32, meta};

/// The format that this program writes: of the database, the file layout and the VERSION file together.
pub const FORMAT: u32 = 2;

/// One step from the format before; its place in the list is its number.
pub(crate) type Migration = fn(&WriteTransaction) -> Result<(), StoreError>;

/// From format n (1, 2, …) to n + 1. Format 1 is the first.
pub(crate) const MIGRATIONS: &[Migration] = &[check_rows];

/// From format 1 to 2: each row carries a checksum ([`crate::checked`]).
fn check_rows(txn: &WriteTransaction) -> Result<(), StoreError> {
    macro_rules! copy {
        ($($table:ident: $key:ty = $old:literal),* $(,)?) => { $({
            let old = TableDefinition::<'static, $key, tables::Bytes>::new($old);
            {
                let mut new = txn.open_table(tables::$table)?;
                for row in txn.open_table(old)?.iter()? {
                    let (key, value) = row?;
                    new.insert(key.value(), value.value())?;
                }
            }
            txn.delete_table(old)?;
        })* };
    }
    copy!(
        IDENTITY: &'static str = "identity_v1",
        SESSIONS: u64 = "sessions_v1",
        CHAIN_STATES: u64 = "chain_states_v1",
        ENTRIES: (u64, u64) = "entries_v1",
        SIDE: (u64, Digest32) = "side_v1",
        PAYLOADS: Digest32 = "payloads_v1",
        BLOCKS: Digest32 = "blocks_v1",
        CONTROLS: Digest32 = "controls_v1",
        GUARD: Digest32 = "guard_v1",
        IDEMPOTENCY: (Digest32, &'static str) = "idempotency_v1",
        STAGED: (Digest32, Digest32) = "staged_v1",
        PINS: Digest32 = "pins_v1",
        JOBS: (&'static str, tables::Bytes) = "jobs_v1",
        FACTS: (&'static str, tables::Bytes) = "facts_v1",
        EVENTS: u64 = "events_v1",
    );
    Ok(())
}

/// Brings a database to the format after the last of `migrations`; a new one starts there. Returns the format.
pub(crate) fn run(database: &Db, migrations: &[Migration]) -> Result<u64, StoreError> {
    let target = 1 + u64::try_from(migrations.len()).unwrap_or(u64::MAX);
    loop {
        let txn = database.begin_write()?;
        tables::create_all(&txn)?;
        let format = counter(&txn, meta::SCHEMA)?;
        let next = match format {
            0 => target,
            format if format >= target => {
                txn.abort()?;
                return Ok(format);
            }
            format => {
                let step = usize::try_from(format - 1).ok().and_then(|at| migrations.get(at));
                step.ok_or_else(|| StoreError::corrupt(format!("no way from format {format}")))?(&txn)?;
                format + 1
            }
        };
        txn.open_table(tables::META)?.insert(meta::SCHEMA, next)?;
        txn.commit()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::RealDisk;
    use crate::source::lookup;
    use std::sync::Arc;

    fn mark(txn: &WriteTransaction, step: u64) -> Result<(), StoreError> {
        let seen = counter(txn, "seen")?;
        txn.open_table(tables::META)?.insert("seen", seen * 10 + step)?;
        Ok(())
    }

    #[test]
    fn each_step_runs_once_and_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let database = Db::open(Arc::new(RealDisk), &dir.path().join("a.redb"), 1 << 20).unwrap();
        let steps: &[Migration] = &[|txn| mark(txn, 1), |txn| mark(txn, 2), |txn| mark(txn, 3)];
        assert_eq!(run(&database, &[]).unwrap(), 1);
        assert_eq!(run(&database, &steps[..1]).unwrap(), 2);
        assert_eq!(run(&database, steps).unwrap(), 4);
        assert_eq!(run(&database, steps).unwrap(), 4);
        let seen = lookup(&database.begin_read().unwrap(), tables::META, "seen", |value| value).unwrap();
        assert_eq!(seen, Some(123));
    }

    #[test]
    fn rows_of_format_1_get_their_checksum() {
        let dir = tempfile::tempdir().unwrap();
        let database = Db::open(Arc::new(RealDisk), &dir.path().join("a.redb"), 1 << 20).unwrap();
        let txn = database.begin_write().unwrap();
        let old = TableDefinition::<'static, u64, tables::Bytes>::new("events_v1");
        txn.open_table(old).unwrap().insert(7, &b"an event"[..]).unwrap();
        txn.open_table(tables::META).unwrap().insert(meta::SCHEMA, 1).unwrap();
        txn.commit().unwrap();
        assert_eq!(run(&database, MIGRATIONS).unwrap(), 2);
        let txn = database.begin_read().unwrap();
        let row = lookup(&txn, tables::EVENTS, 7, <[u8]>::to_vec).unwrap();
        assert_eq!(row.as_deref(), Some(&b"an event"[..]));
        assert!(!txn.list_tables().unwrap().any(|table| redb::TableHandle::name(&table) == "events_v1"));
    }

    #[test]
    fn a_new_database_starts_at_the_newest_format() {
        let dir = tempfile::tempdir().unwrap();
        let database = Db::open(Arc::new(RealDisk), &dir.path().join("a.redb"), 1 << 20).unwrap();
        let steps: &[Migration] = &[|txn| mark(txn, 1)];
        assert_eq!(run(&database, steps).unwrap(), 2);
        let seen = lookup(&database.begin_read().unwrap(), tables::META, "seen", |value| value).unwrap();
        assert_eq!(seen, None);
    }

    #[test]
    fn a_step_that_fails_leaves_the_format_before() {
        let dir = tempfile::tempdir().unwrap();
        let database = Db::open(Arc::new(RealDisk), &dir.path().join("a.redb"), 1 << 20).unwrap();
        run(&database, &[]).unwrap();
        let failing: &[Migration] = &[|txn| {
            mark(txn, 1)?;
            Err(StoreError::corrupt("on purpose"))
        }];
        assert!(run(&database, failing).is_err());
        let txn = database.begin_read().unwrap();
        assert_eq!(counter(&txn, meta::SCHEMA).unwrap(), 1);
        assert_eq!(counter(&txn, "seen").unwrap(), 0);
    }
}
