//! Numbered migrations, one transaction each. A directory of a newer format is refused, never touched.

use redb::WriteTransaction;

use crate::control;
use crate::database::{Db, commit_durably};
use crate::error::StoreError;
use crate::source::counter;
use crate::tables::{self, Spec as _, meta};

/// The format that this program writes: of the database, the file layout and the VERSION file together.
pub const FORMAT: u32 = 4;
/// The first format that a release wrote, or will have written.
const FIRST: u64 = 4;

/// One step from the format before; its place in the list is its number.
pub(crate) type Migration = fn(&WriteTransaction) -> Result<(), StoreError>;

/// From format n (4, 5, …) to n + 1. Formats 1 to 3 were never released.
pub(crate) const MIGRATIONS: &[Migration] = &[];

/// The format of a database that all migrations went over.
pub(crate) fn schema() -> u64 {
    target(MIGRATIONS)
}

fn target(migrations: &[Migration]) -> u64 {
    FIRST.saturating_add(u64::try_from(migrations.len()).unwrap_or(u64::MAX))
}

/// Brings a database to the format after the last of `migrations`; a new one starts there. Returns the format.
pub(crate) fn run(database: &Db, migrations: &[Migration]) -> Result<u64, StoreError> {
    let target = target(migrations);
    loop {
        let txn = database.begin_write()?;
        let before = txn.list_tables()?.count();
        tables::create_all(&txn)?;
        let is_whole = txn.list_tables()?.count() == before;
        let format = counter(&txn, meta::SCHEMA)?;
        if !is_whole && format > 0 {
            // One that joined is filled from what is there.
            control::list_delegates(&txn)?;
        }
        let next = match format {
            0 => target,
            format if format >= target => {
                // A table may have joined the format before it was released.
                if is_whole {
                    txn.abort()?
                } else {
                    commit_durably(txn)?
                }
                return Ok(format);
            }
            format => {
                let at = format.checked_sub(FIRST).and_then(|at| usize::try_from(at).ok());
                let step = at.and_then(|at| migrations.get(at));
                step.ok_or_else(|| StoreError::corrupt(format!("no way from format {format}")))?(&txn)?;
                format + 1
            }
        };
        txn.open_table(tables::META::DEFINITION)?.insert(meta::SCHEMA, next)?;
        commit_durably(txn)?;
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
        txn.open_table(tables::META::DEFINITION)?.insert("seen", seen * 10 + step)?;
        Ok(())
    }

    #[test]
    fn each_step_runs_once_and_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let database = Db::open(Arc::new(RealDisk), &dir.path().join("a.redb"), 1 << 20).unwrap();
        let steps: &[Migration] = &[|txn| mark(txn, 1), |txn| mark(txn, 2), |txn| mark(txn, 3)];
        assert_eq!(run(&database, &[]).unwrap(), 4);
        assert_eq!(run(&database, &steps[..1]).unwrap(), 5);
        assert_eq!(run(&database, steps).unwrap(), 7);
        assert_eq!(run(&database, steps).unwrap(), 7);
        let seen = lookup(&database.begin_read().unwrap(), tables::META, "seen", |value| value).unwrap();
        assert_eq!(seen, Some(123));
    }

    #[test]
    fn a_new_database_starts_at_the_newest_format() {
        let dir = tempfile::tempdir().unwrap();
        let database = Db::open(Arc::new(RealDisk), &dir.path().join("a.redb"), 1 << 20).unwrap();
        let steps: &[Migration] = &[|txn| mark(txn, 1)];
        assert_eq!(run(&database, steps).unwrap(), 5);
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
        assert_eq!(counter(&txn, meta::SCHEMA).unwrap(), 4);
        assert_eq!(counter(&txn, "seen").unwrap(), 0);
    }
}
