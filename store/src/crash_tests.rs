//! The power is cut before every call of a run that changes the disk. What was synced is there, of the rest what the dice say.
//!
//! After it the store opens, holds exactly what it held after the last acknowledged act or after the one that was under way,
//! finds nothing wrong with itself, leaves no temporary file, gives the kept answers again, and takes no second entry at a
//! place that was acknowledged. Every few cuts the power is cut again, before every call of the open that follows.
//!
//! `THROUGHLINE_CRASH_ROUNDS` is how many cuts one run of the test makes at least; `docs/OPERATIONS.md` has the release check.

use std::collections::BTreeSet;
use std::path::Path;

use crate::fixture::*;
use crate::sim_tests::*;
use crate::testing::{Dice, ModelDisk, Replay};
use crate::*;

/// Cuts without the variable.
const ROUNDS: u64 = 600;
/// Acts of a run.
const ACTS: usize = 24;
/// After every how many cuts the power is cut during the open that follows, too.
const NESTED_EVERY: u64 = 97;

struct Cuts<'a> {
    dir: &'a Path,
    run: &'a Run,
    acts: &'a [Act],
    seed: u64,
    /// All cuts, those during an open included.
    made: u64,
    /// Calls of the run before which there was a cut.
    places: u64,
}

#[test]
fn a_power_cut_before_any_call_loses_nothing_acknowledged() {
    let rounds = std::env::var("THROUGHLINE_CRASH_ROUNDS").map_or(ROUNDS, |rounds| rounds.parse().unwrap());
    let home = Home::new();
    let (mut made, mut places, mut seed) = (0, 0, 1);
    while made < rounds {
        let acts = acts(seed, ACTS);
        let run = run(&home.path(), &acts);
        let mut cuts = Cuts { dir: &home.path(), run: &run, acts: &acts, seed, made: 0, places: 0 };
        cuts.all(rounds - made);
        (made, places, seed) = (made + cuts.made, places + cuts.places, seed + 1);
    }
    println!(
        "{made} power cuts, {places} of them in {} runs and the others while opening after one",
        seed - 1
    );
}

impl Cuts<'_> {
    fn all(&mut self, rounds: u64) {
        let mut replay = Replay::of(&self.run.disk);
        let mut dice = Dice::new(self.seed);
        loop {
            let disk = replay.after_crash(&mut dice);
            let held = replay.mark().map(|mark| usize::try_from(mark).unwrap());
            self.places += 1;
            if self.places.is_multiple_of(NESTED_EVERY) {
                self.while_opening(&disk, held, &mut dice);
            }
            self.check(&disk, held);
            if !replay.step() || self.made >= rounds {
                break;
            }
        }
    }

    fn what(&self) -> String {
        format!("seed {}, cut {}", self.seed, self.places)
    }

    /// Opens after a cut, and cuts the power before every call of that.
    fn while_opening(&mut self, before: &ModelDisk, held: Option<usize>, dice: &mut Dice) {
        let disk = before.after_crash(&mut Dice::new(0));
        drop(open(&disk, self.dir).unwrap());
        let mut replay = Replay::from(before, &disk);
        while replay.step() {
            self.check(&replay.after_crash(dice), held);
        }
    }

    /// Opens after a cut, with what the acknowledged acts had left.
    fn check(&mut self, disk: &ModelDisk, held: Option<usize>) {
        self.made += 1;
        let what = self.what();
        let store = open(disk, self.dir).unwrap_or_else(|error| panic!("{what}: {error}"));
        let Some(held) = held else {
            // Nothing was promised yet.
            assert!(store.fsck().unwrap().is_clean(), "{what}");
            return;
        };
        let now = dump(&store).unwrap_or_else(|error| panic!("{what}: {error}"));
        let dumps = &self.run.dumps;
        let next = dumps.get(held + 1).unwrap_or(&dumps[held]);
        assert!(
            now == dumps[held] || now == *next,
            "{what}: between act {held} and the next: {:?} and {:?} differ; it is as after {:?}",
            difference(&now, &dumps[held]),
            difference(&now, next),
            dumps.iter().position(|dump| *dump == now),
        );
        let found = store.fsck().unwrap();
        assert!(found.is_clean(), "{what}: {:?}", found.problems);
        assert_no_leftovers(&store, disk, brings_files(self.acts.get(held).copied()), &what);
        self.assert_signed_once(&store, held);
    }

    /// What was acknowledged is answered again, and no other entry is taken in its place.
    fn assert_signed_once(&self, store: &Store, held: usize) {
        let what = self.what();
        for session in 0..OWN {
            let acknowledged = self.run.lengths[held][session];
            let builder = &WORLD.sessions[session];
            for seq in 0..acknowledged {
                assert_eq!(cid_at(store, session, seq), Some(builder.entries()[seq].entry.cid()), "{what}");
                let key = key_of(session, seq);
                let used = store.reader().unwrap().idempotency(&key.scope, &key.key, &key.request).unwrap();
                assert_eq!(used, Used::Same(key.result), "{what}");
            }
            if acknowledged < 2 {
                continue;
            }
            let (segment, _, options) = rival(session, acknowledged - 1, self.seed);
            assert!(store.adopt(segment, options).is_err(), "{what}: a second entry was taken");
            // One after everything that is held is taken, if the sessions may go on.
            let length = length(store, session).unwrap();
            let (segment, cid, options) = rival(session, length, self.seed);
            assert_eq!(tip(&store.adopt(segment, options).unwrap()).cid, cid, "{what}");
        }
    }
}

/// Files that an act under way may have made and that no row names yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Brings {
    Files,
    None,
}

fn brings_files(act: Option<Act>) -> Brings {
    match act {
        Some(Act::Append(_) | Act::Again(_) | Act::Follow | Act::Put(_) | Act::Stream(_)) => Brings::Files,
        Some(_) | None => Brings::None,
    }
}

/// No temporary file is left, and every payload file has a row or is listed to be unlinked; but for one that an act under way
/// brought, which goes when orphans are removed.
fn assert_no_leftovers(store: &Store, disk: &ModelDisk, brings: Brings, what: &str) {
    let condemned = payloads::condemned(&store.reader().unwrap().txn).unwrap();
    for digest in store.inner.files.list().unwrap().iter().filter(|_| brings == Brings::None) {
        let is_named = payloads::row(&store.reader().unwrap().txn, digest).unwrap().is_some();
        assert!(is_named || condemned.contains(digest), "{what}: a file that was gone is back");
    }
    store.remove_orphans().unwrap();
    let named: BTreeSet<_> = store.inner.files.list().unwrap().into_iter().collect();
    let reader = store.reader().unwrap();
    for digest in &named {
        assert!(payloads::row(&reader.txn, digest).unwrap().is_some(), "{what}: a file without a row");
    }
    let paths = disk.paths();
    let temp = paths.iter().find(|path| path.extension().is_some_and(|extension| extension == "tmp"));
    assert_eq!(temp, None, "{what}");
}
