//! Random operations against a model of maps, with closing and opening in between.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use throughline_protocol::block::Block;
use throughline_protocol::code::Code;
use throughline_protocol::id::Codec;
use throughline_protocol::testing::{SessionBuilder, ts};

use crate::fixture::*;
use crate::*;

const SESSIONS: usize = 3;
/// The longest lease.
const LEASE_MAX: u64 = 20;
const LENGTH: usize = 12;
const BLOCK_SIZES: [usize; 3] = [10, 16_384, 16_385];

#[derive(Clone, Debug)]
enum Act {
    /// Adopts `from..from + length` of a session, whether it fits or not.
    Adopt {
        session: usize,
        from: usize,
        length: usize,
    },
    /// Cuts a session after `keep`.
    Cut {
        session: usize,
        keep: usize,
    },
    Pin {
        session: usize,
        set: bool,
    },
    PutBlock {
        block: usize,
        lease: u64,
    },
    Link {
        session: usize,
        block: usize,
    },
    Sweep {
        now: u64,
    },
    Job {
        id: u8,
        expect_absent: bool,
    },
    Reopen,
}

fn act() -> impl Strategy<Value = Act> {
    let session = 0..SESSIONS;
    prop_oneof![
        8 => (session.clone(), 0..LENGTH, 1..4_usize)
            .prop_map(|(session, from, length)| Act::Adopt { session, from, length }),
        2 => (session.clone(), 0..LENGTH).prop_map(|(session, keep)| Act::Cut { session, keep }),
        1 => (session.clone(), any::<bool>()).prop_map(|(session, set)| Act::Pin { session, set }),
        3 => (0..BLOCK_SIZES.len(), 1..=LEASE_MAX).prop_map(|(block, lease)| Act::PutBlock { block, lease }),
        1 => (session, 0..BLOCK_SIZES.len()).prop_map(|(session, block)| Act::Link { session, block }),
        2 => (0..20_u64).prop_map(|now| Act::Sweep { now }),
        2 => (0..3_u8, any::<bool>()).prop_map(|(id, expect_absent)| Act::Job { id, expect_absent }),
        1 => Just(Act::Reopen),
    ]
}

/// What the store should hold.
#[derive(Default)]
struct Model {
    /// Entries on the main chain of each session.
    chains: BTreeMap<usize, usize>,
    /// Entries beside it, by seq: each session has one history here.
    sides: BTreeMap<usize, BTreeSet<usize>>,
    pins: BTreeSet<usize>,
    /// Block to lease; none has ended.
    blocks: BTreeMap<usize, Option<u64>>,
    links: BTreeSet<(usize, usize)>,
    jobs: BTreeSet<u8>,
}

struct Run {
    home: Home,
    store: Option<Store>,
    sessions: Vec<SessionBuilder>,
    model: Model,
}

fn block(index: usize) -> Block {
    Block::of(Codec::Raw, vec![u8::try_from(index).unwrap(); BLOCK_SIZES[index]])
}

impl Run {
    fn store(&self) -> &Store {
        self.store.as_ref().unwrap()
    }

    fn apply(&mut self, act: &Act) {
        match *act {
            Act::Adopt { session, from, length } => self.adopt(session, from, length),
            Act::Cut { session, keep } => self.cut(session, keep),
            Act::Pin { session, set } => {
                let pin = set.then_some(Pin { since: now(), depth: PinDepth::Payloads });
                self.store()
                    .run(SetPin { session: self.sessions[session].session(), pin, at: now() })
                    .unwrap();
                if set {
                    self.model.pins.insert(session)
                } else {
                    self.model.pins.remove(&session)
                };
            }
            Act::PutBlock { block: index, lease } => {
                let stored = self.store().run(PutBlock::bytes(block(index), now(), ts(lease))).unwrap();
                let held = self.model.blocks.get(&index).copied();
                assert_eq!(stored == Stored::New, held.is_none());
                self.model.blocks.insert(index, held.flatten().max(Some(lease)));
            }
            Act::Link { session, block: index } => {
                let id = self.sessions[session].session();
                let links = vec![(seq(0), *block(index).cid().digest())];
                let received = PutBlock::bytes(block(index), now(), ts(LEASE_MAX)).received_for(id);
                self.store().run(received).unwrap();
                self.model.blocks.insert(index, Some(LEASE_MAX));
                let done = self.store().run(LinkBlocks { session: id, links });
                assert_eq!(done.is_ok(), self.model.chains.contains_key(&session));
                if done.is_ok() {
                    self.model.links.insert((index, session));
                }
            }
            Act::Sweep { now } => {
                self.store().run(Sweep { now: ts(now), events_kept: 1_000_000 }).unwrap();
                let links = &self.model.links;
                self.model.blocks.retain(|index, lease| {
                    let is_over = lease.is_some_and(|lease| lease <= now);
                    if is_over {
                        *lease = None;
                    }
                    !is_over || links.iter().any(|(linked, _)| linked == index)
                });
            }
            Act::Job { id, expect_absent } => self.job(id, expect_absent),
            Act::Reopen => {
                self.store = None;
                self.store = Some(self.home.open());
            }
        }
    }

    fn adopt(&mut self, session: usize, from: usize, length: usize) {
        let builder = &self.sessions[session];
        let until = (from + length).min(builder.entries().len());
        let held = self.model.chains.get(&session).copied().unwrap_or(0);
        let done = self.store().adopt(segment(builder, from, until), at());
        if from == held {
            assert_eq!(tip(&done.unwrap()), mark(&builder.entries()[until - 1]));
            self.model.chains.insert(session, until);
            self.model.sides.entry(session).or_default().retain(|seq| *seq >= until);
        } else {
            assert_eq!(done.unwrap_err().code(), Code::HeadMoved);
        }
    }

    fn cut(&mut self, session: usize, keep: usize) {
        let builder = &self.sessions[session];
        let held = self.model.chains.get(&session).copied().unwrap_or(0);
        let cut = ReplaceTail {
            session: builder.session(),
            expected_tip: builder.entries()[held.max(1) - 1].entry.cid(),
            keep_through: mark(&builder.entries()[keep]),
            tail: NewTail::Cut(Box::new(state_at(builder, keep))),
            statuses: BTreeMap::new(),
            fallback: SideStatus::Revoked,
            options: at(),
        };
        let done = self.store().run(cut);
        if keep < held {
            done.unwrap();
            self.model.chains.insert(session, keep + 1);
            self.model.sides.entry(session).or_default().extend(keep + 1..held);
        } else {
            assert!(matches!(done.unwrap_err().code(), Code::HeadMoved | Code::NotFoundYet));
        }
    }

    fn job(&mut self, id: u8, expect_absent: bool) {
        let expect = if expect_absent { Expect::Absent } else { Expect::Bytes(vec![id]) };
        let journal = expect_absent.then(|| vec![id]);
        let job = PutJob { kind: "job".to_owned(), id: vec![id], expect, journal, at: now() };
        let done = self.store().run(job).is_ok();
        assert_eq!(done, self.model.jobs.contains(&id) != expect_absent);
        if done && expect_absent {
            self.model.jobs.insert(id);
        } else if done {
            self.model.jobs.remove(&id);
        }
    }

    fn check(&self) {
        let reader = self.store().reader().unwrap();
        for (session, builder) in self.sessions.iter().enumerate() {
            let id = builder.session();
            let row = reader.session(id).unwrap();
            let expected = self.model.chains.get(&session).map(|held| mark(&builder.entries()[held - 1]));
            assert_eq!(row.map(|row| row.tip), expected);
            let mut side: Vec<u64> =
                reader.side_entries(id, None, 100).unwrap().iter().map(|entry| entry.seq.get()).collect();
            side.sort_unstable();
            let expected = self.model.sides.get(&session).cloned().unwrap_or_default();
            assert_eq!(side, expected.iter().map(|seq| u64::try_from(*seq).unwrap()).collect::<Vec<_>>());
            assert_eq!(reader.pin(id).unwrap().is_some(), self.model.pins.contains(&session));
        }
        for index in 0..BLOCK_SIZES.len() {
            let held = reader.block(&block(index).cid()).unwrap();
            assert_eq!(held.is_some(), self.model.blocks.contains_key(&index), "block {index}");
        }
        let jobs: Vec<u8> = reader.jobs("job").unwrap().into_iter().map(|job| job.unwrap().key[0]).collect();
        assert_eq!(jobs, self.model.jobs.iter().copied().collect::<Vec<_>>());
        let stats = reader.stats().unwrap();
        let entries: usize = self.model.chains.values().sum();
        assert_eq!(stats.entries, u64::try_from(entries).unwrap());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_store_does_what_maps_would(acts in proptest::collection::vec(act(), 1..40)) {
        let home = Home::new();
        let store = Some(home.open());
        let sessions = (0..SESSIONS).map(|number| session(&format!("model {number}"), LENGTH - 1)).collect();
        let mut run = Run { home, store, sessions, model: Model::default() };
        for act in &acts {
            run.apply(act);
            run.check();
        }
        assert_clean(run.store(), run.sessions[0].controls());
    }
}
