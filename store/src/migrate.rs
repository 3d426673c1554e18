//! Numbered migrations, one transaction each. A directory of a newer format is refused, never touched.

use std::collections::{BTreeMap, BTreeSet};

use redb::{ReadableTable as _, WriteTransaction};
use throughline_protocol::entry::Class;
use throughline_protocol::id::SessionId;

use crate::brought;
use crate::control;
use crate::database::{Db, commit_durably};
use crate::error::StoreError;
use crate::rows::{BlockRow, SessionRow};
use crate::source::{counter, lookup};
use crate::tables::{self, Spec as _, meta};

/// The format that this program writes: of the database, the file layout and the VERSION file together.
pub const FORMAT: u32 = 5;
/// The formats that this program opens and brings up to date.
pub(crate) const FORMATS: std::ops::RangeInclusive<u32> = 4..=FORMAT;
/// The first format whose journal this program applies as it is: all its tables are still there, as they were.
pub(crate) const JOURNALED_SINCE: u64 = 4;
/// The first format that a release wrote, or will have written.
const FIRST: u64 = 4;

/// One step from the format before; its place in the list is its number.
pub(crate) type Migration = fn(&WriteTransaction) -> Result<(), StoreError>;

/// From format n (4, 5, …) to n + 1. Formats 1 to 3 were never released.
pub(crate) const MIGRATIONS: &[Migration] = &[brought_from_links];

/// To format 5: which sessions brought a block was not noted. Each that links one is held to have, but where their classes differ only
/// those of the strictest.
fn brought_from_links(txn: &WriteTransaction) -> Result<(), StoreError> {
    let mut brought: Vec<([u8; 32], SessionId)> = Vec::new();
    let mut rowless = Vec::new();
    {
        let blocks = txn.open_table(tables::BLOCKS::DEFINITION)?;
        let links = txn.open_table(tables::BLOCK_REFS::DEFINITION)?;
        for stored in blocks.iter()? {
            let (digest, stored) = stored?;
            let digest = *digest.value();
            let split = BlockRow::split(stored.value()).ok();
            let first = split.and_then(|(row, _)| row.link);
            let mut numbers: BTreeSet<u64> = first.iter().map(|(session, _)| *session).collect();
            for link in links.range((&digest, 0, 0)..=(&digest, u64::MAX, u64::MAX))? {
                numbers.insert(link?.0.value().1);
            }
            let mut sessions = BTreeMap::new();
            for number in numbers {
                // Of a session whose row cannot be read nothing is known: what it links is received again.
                let row = lookup(txn, tables::SESSIONS, number, |row| SessionRow::from_bytes(number, row))?;
                sessions.extend(row.and_then(Result::ok).map(|row| (number, row)));
            }
            let strictest = sessions.values().map(|row| strictness(row.summary.class)).max();
            sessions.retain(|_, row| Some(strictness(row.summary.class)) == strictest);
            if let (Some(first), Some((row, bytes))) = (first, split)
                && !sessions.contains_key(&first.0)
            {
                rowless.push((digest, first, BlockRow { link: None, ..row }.to_bytes(bytes)));
            }
            let others = sessions.iter().filter(|(number, _)| Some(**number) != first.map(|first| first.0));
            brought.extend(others.map(|(_, row)| (digest, row.session)));
        }
    }
    for (digest, (session, seq), row) in rowless {
        txn.open_table(tables::BLOCKS::DEFINITION)?.insert(&digest, row.as_slice())?;
        txn.open_table(tables::BLOCK_REFS::DEFINITION)?.insert((&digest, session, seq), ())?;
    }
    let mut table = txn.open_table(tables::BROUGHT::DEFINITION)?;
    for (digest, session) in brought {
        table.insert((&digest, session.genesis().digest()), brought::LINKED)?;
    }
    Ok(())
}

fn strictness(class: Class) -> u8 {
    match class {
        Class::Public => 0,
        Class::Internal => 1,
        Class::Confidential => 2,
    }
}

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
