//! A table with changed rows over it, against a map that was changed the same way.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;

use proptest::prelude::*;
use redb::Value as _;
use throughline_protocol::code::Code;

use super::*;
use crate::database::{Db, commit_durably};
use crate::disk::Disk;
use crate::migrate;
use crate::source::{Lookup as _, Snapshot, Source as _};
use crate::tables::{self, meta};
use crate::testing::ModelDisk;

/// Numbers whose little-endian bytes are in another order than they are.
const KEYS: [u64; 9] = [0, 1, 2, 255, 256, 257, 511, 65_536, u64::MAX];

fn database() -> Db {
    let disk: Arc<dyn Disk> = Arc::new(ModelDisk::new());
    disk.make_dirs(Path::new("/data")).unwrap();
    let database = Db::open(disk, Path::new("/data/store.redb"), 1 << 20).unwrap();
    migrate::run(&database, migrate::MIGRATIONS).unwrap();
    database
}

fn snapshot(database: &Db) -> Snapshot {
    Snapshot::of_commit(database.begin_read().unwrap()).unwrap()
}

/// Rows as they are put; none for one that goes.
type Change = (u64, Option<Vec<u8>>);

fn change() -> impl Strategy<Value = Change> {
    let value = proptest::option::weighted(0.7, proptest::collection::vec(any::<u8>(), 0..4));
    (proptest::sample::select(KEYS.to_vec()), value)
}

fn put(memtable: &mut Memtable, (key, value): &Change) {
    let now = value.as_ref().map(|value| crate::checked::Checked::as_bytes(&value.as_slice()).into());
    tables::SESSIONS::changed_mut(memtable).put(KeyBytes::of(key), now);
}

fn change_map(map: &mut BTreeMap<u64, Vec<u8>>, (key, value): &Change) {
    match value {
        Some(value) => drop(map.insert(*key, value.clone())),
        None => drop(map.remove(key)),
    }
}

fn bound() -> impl Strategy<Value = Bound<u64>> {
    let key = || proptest::sample::select(KEYS.to_vec());
    prop_oneof![Just(Bound::Unbounded), key().prop_map(Bound::Included), key().prop_map(Bound::Excluded)]
}

/// What a map would panic on is an empty range here.
fn of_map(map: &BTreeMap<u64, Vec<u8>>, bounds: (Bound<u64>, Bound<u64>)) -> Vec<(u64, Vec<u8>)> {
    use std::ops::RangeBounds as _;
    map.iter().filter(|(key, _)| bounds.contains(*key)).map(|(key, value)| (*key, value.clone())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_table_reads_as_a_map_that_was_changed_the_same_way(
        stored in proptest::collection::vec(change(), 0..12),
        changed in proptest::collection::vec(change(), 0..12),
        bounds in (bound(), bound()),
        ends in proptest::collection::vec(any::<bool>(), 10),
    ) {
        let database = database();
        let (mut map, mut memtable) = (BTreeMap::new(), Memtable::default());
        for change in &stored {
            put(&mut memtable, change);
            change_map(&mut map, change);
        }
        let txn = database.begin_write().unwrap();
        memtable.apply(&txn).unwrap();
        commit_durably(txn).unwrap();

        let mut memtable = Memtable::default();
        for change in &changed {
            put(&mut memtable, change);
            change_map(&mut map, change);
        }
        let snapshot = snapshot(&database).with(memtable, 1);
        let table = snapshot.table(tables::SESSIONS).unwrap();
        for key in KEYS {
            let read = snapshot.get(tables::SESSIONS, key, <[u8]>::to_vec).unwrap();
            prop_assert_eq!(read.as_ref(), map.get(&key));
            let read = table.get(key).unwrap().map(|value| value.value().to_vec());
            prop_assert_eq!(read.as_ref(), map.get(&key));
        }
        prop_assert_eq!(table.len().unwrap(), map.len() as u64);
        let key_of = |row: Option<crate::table_view::RowOf<tables::SESSIONS>>| row.map(|(key, _)| key.value());
        prop_assert_eq!(key_of(table.first().unwrap()), map.keys().next().copied());
        prop_assert_eq!(key_of(table.last().unwrap()), map.keys().next_back().copied());

        // From both ends in turns, as the dice say.
        let mut expected = std::collections::VecDeque::from(of_map(&map, bounds));
        let mut rows = table.range::<u64>(bounds).unwrap();
        for from_front in ends {
            let (row, wanted) = if from_front {
                (rows.next(), expected.pop_front())
            } else {
                (rows.next_back(), expected.pop_back())
            };
            let row = row.map(|row| row.map(|(key, value)| (key.value(), value.value().to_vec())).unwrap());
            prop_assert_eq!(row, wanted);
        }
    }
}

#[test]
fn what_is_changed_later_is_not_seen_in_a_copy() {
    let mut first = Memtable::default();
    put(&mut first, &(1, Some(vec![1])));
    let mut second = first.clone();
    put(&mut second, &(1, None));
    put(&mut second, &(2, Some(vec![2])));
    let table = |memtable: &Memtable| tables::SESSIONS::changed(memtable).iter().count();
    assert_eq!((table(&first), table(&second)), (1, 2));
    assert!(tables::SESSIONS::changed(&first).get(&1).unwrap().is_some());
    assert!(tables::SESSIONS::changed(&second).get(&1).unwrap().is_none());
}

#[test]
fn what_lay_over_a_database_lies_over_it_again_and_never_over_a_gap() {
    let database = database();
    let committed = |batch: u64| {
        let mut memtable = Memtable::default();
        tables::META::changed_mut(&mut memtable)
            .put(KeyBytes::of(&meta::BATCH), Some(batch.to_le_bytes().into()));
        let txn = database.begin_write().unwrap();
        memtable.apply(&txn).unwrap();
        commit_durably(txn).unwrap();
        snapshot(&database)
    };
    let (second, fourth) = (committed(2), committed(4));
    let mut changed = Memtable::default();
    put(&mut changed, &(7, Some(vec![7])));
    let durable = fourth.with(changed, 6);
    let read = |snapshot: &Snapshot| snapshot.get(tables::SESSIONS, 7, <[u8]>::to_vec).unwrap();

    // The commit that it lay over, and one that a checkpoint wrote whose end was not seen.
    assert_eq!(read(&durable.on(fourth.clone()).unwrap()), Some(vec![7]));
    assert_eq!(read(&durable.on(committed(5)).unwrap()), Some(vec![7]));
    // One that has everything already: it may have more, which nothing older hides.
    for batch in [6, 7] {
        let on = durable.on(committed(batch)).unwrap();
        assert!(on.changed().is_empty());
        assert_eq!(read(&on), None);
    }
    assert_eq!(durable.on(second).err().unwrap().code(), Code::StoreCorrupt);
}

/// A key of two parts of any length.
type Pair = (String, Vec<u8>);

fn pair() -> impl Strategy<Value = Pair> {
    let space = proptest::sample::select(vec!["", "a", "a\0", "ab", "b"]).prop_map(str::to_owned);
    (space, proptest::collection::vec(proptest::sample::select(vec![0_u8, 1, 0xff]), 0..4))
}

fn bound_of_pairs() -> impl Strategy<Value = Bound<Pair>> {
    prop_oneof![Just(Bound::Unbounded), pair().prop_map(Bound::Included), pair().prop_map(Bound::Excluded)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn keys_of_any_length_are_in_the_order_of_their_table(
        stored in proptest::collection::vec((pair(), any::<bool>()), 0..150),
        changed in proptest::collection::vec((pair(), any::<bool>()), 0..150),
        bounds in proptest::collection::vec((bound_of_pairs(), bound_of_pairs()), 8),
        ends in any::<u64>(),
    ) {
        use std::ops::RangeBounds as _;
        let database = database();
        let mut map = BTreeMap::<Pair, u8>::new();
        let mut put = |memtable: &mut Memtable, changes: &[(Pair, bool)], version: u8| {
            for (key, is_there) in changes {
                let now = is_there.then(|| crate::checked::Checked::as_bytes(&&[version][..]).into());
                let key_bytes = KeyBytes::of(&(key.0.as_str(), key.1.as_slice()));
                tables::FACTS::changed_mut(memtable).put(key_bytes, now);
                if *is_there {
                    map.insert(key.clone(), version);
                } else {
                    map.remove(key);
                }
            }
        };
        let (mut below, mut memtable) = (Memtable::default(), Memtable::default());
        put(&mut below, &stored, 1);
        let txn = database.begin_write().unwrap();
        below.apply(&txn).unwrap();
        commit_durably(txn).unwrap();
        // A copy at every step, so that nothing is changed in place.
        let copies: Vec<Memtable> = changed.chunks(10).map(|some| {
            put(&mut memtable, some, 2);
            memtable.clone()
        }).collect();
        let snapshot = snapshot(&database).with(memtable, 1);
        drop(copies);
        let table = snapshot.table(tables::FACTS).unwrap();
        prop_assert_eq!(table.len().unwrap(), map.len() as u64);
        for bounds in bounds {
            let mut expected: std::collections::VecDeque<_> =
                map.iter().filter(|(key, _)| bounds.contains(*key)).map(|(key, version)| (key.clone(), *version)).collect();
            let borrowed = |bound: &Bound<Pair>| match bound {
                Bound::Unbounded => Bound::Unbounded,
                Bound::Included((space, key)) => Bound::Included((space.clone(), key.clone())),
                Bound::Excluded((space, key)) => Bound::Excluded((space.clone(), key.clone())),
            };
            let (first, last) = (borrowed(&bounds.0), borrowed(&bounds.1));
            let range = (first.as_ref().map(|(s, k)| (s.as_str(), k.as_slice())), last.as_ref().map(|(s, k)| (s.as_str(), k.as_slice())));
            let mut rows = table.range::<(&str, &[u8])>(range).unwrap();
            for turn in 0..expected.len() + 3 {
                let (row, wanted) = if ends >> (turn % 64) & 1 == 0 {
                    (rows.next(), expected.pop_front())
                } else {
                    (rows.next_back(), expected.pop_back())
                };
                let row = row.map(|row| {
                    let (key, value) = row.unwrap();
                    let (space, bytes) = key.value();
                    ((space.to_owned(), bytes.to_vec()), value.value()[0])
                });
                prop_assert_eq!(row, wanted);
            }
        }
    }
}

#[test]
fn who_wants_a_few_rows_of_a_range_does_not_take_all() {
    let database = database();
    let mut memtable = Memtable::default();
    (0..100).for_each(|key| put(&mut memtable, &(key, Some(vec![1]))));
    let held = || {
        let changed = tables::SESSIONS::changed(&memtable);
        changed.iter().filter(|(key, _)| std::sync::Arc::strong_count(key.bytes()) > 1).count()
    };
    let snapshot = snapshot(&database).with(memtable.clone(), 1);
    let table = snapshot.table(tables::SESSIONS).unwrap();
    let mut rows = table.iter().unwrap();
    let row = rows.next_back().unwrap().unwrap();
    assert_eq!(row.0.value(), 99);
    assert!(held() <= 2, "{} rows are held", held());
}
