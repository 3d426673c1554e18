//! What the tests of crashes and of a failing disk share: acts of every kind on a store, drawn by a seed, and all that a store
//! holds as one value to compare.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use redb::Value as _;
use sha2::{Digest, Sha256};
use throughline_protocol::block::{Block, Signed};
use throughline_protocol::code::Code;
use throughline_protocol::control::Control;
use throughline_protocol::id::{Codec, EntryCid, Seq};
use throughline_protocol::testing::{SessionBuilder, ts};
use throughline_protocol::verify::VerifiedSegment;

use crate::error::StoreError;
use crate::fixture::*;
use crate::source::Source;
use crate::tables::{self, Spec, meta};
use crate::testing::{Dice, ModelDisk};
use crate::*;

/// Entries of each session after its genesis.
const LENGTH: usize = 9;
/// Sessions that this node writes; one more is followed.
pub(crate) const OWN: usize = 2;
/// Text whose payload is a file.
const LARGE: usize = 20_000;

/// What is signed and verified once for all runs.
pub(crate) struct World {
    pub(crate) sessions: Vec<SessionBuilder>,
    /// Each entry of each session as a segment.
    segments: Vec<Vec<VerifiedSegment>>,
    pub(crate) tombstone: Signed<Control>,
}

pub(crate) static WORLD: LazyLock<World> = LazyLock::new(|| {
    let mut sessions: Vec<SessionBuilder> =
        (0..=OWN).map(|number| sim_session(&format!("sim {number}"))).collect();
    let segments = sessions
        .iter()
        .map(|session| (0..=LENGTH).map(|seq| segment(session, seq, seq + 1)).collect())
        .collect();
    let grant = sessions[OWN].controls()[0].clone();
    let tombstone = sessions[OWN].clone().tombstone(&grant, Vec::new());
    sessions.shrink_to_fit();
    World { sessions, segments, tombstone }
});

fn sim_session(label: &str) -> SessionBuilder {
    let mut builder = SessionBuilder::new(label);
    let server = Arc::clone(&builder.server1);
    for number in 0..LENGTH {
        let text = if number % 3 == 1 { "x".repeat(LARGE + number) } else { format!("message {number}") };
        builder.user(&server, &text);
    }
    builder
}

/// One act. Those that do not fit are refused, which is an outcome like any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Signs the next entry of an own session, under a key.
    Append(usize),
    /// The last append again, under its key.
    Again(usize),
    /// Takes in the next entry of the followed session, with its control blobs.
    Follow,
    Cut,
    Forget,
    Controls,
    Revoke,
    Redact(usize),
    Put(usize),
    Stream(usize),
    Stage,
    Unstage,
    Pin(usize),
    Job(u8),
    Sweep,
}

/// Acts of a run.
pub(crate) fn acts(seed: u64, count: usize) -> Vec<Act> {
    let mut dice = Dice::new(seed);
    let mut draw = || {
        let session = usize::try_from(dice.below(2)).unwrap();
        match dice.below(24) {
            0..=8 => Act::Append(session),
            9 => Act::Again(session),
            10..=12 => Act::Follow,
            13 => Act::Cut,
            14 => Act::Forget,
            15 => Act::Controls,
            16 => Act::Redact(session),
            17 => Act::Put(session),
            18 => Act::Stream(session),
            19 => Act::Stage,
            20 => Act::Unstage,
            21 => Act::Pin(session),
            22 => Act::Job(u8::try_from(session).unwrap()),
            _ => {
                if session == 0 {
                    Act::Sweep
                } else {
                    Act::Revoke
                }
            }
        }
    };
    (0..count).map(|_| draw()).collect()
}

/// How long the main chain of a session is.
pub(crate) fn length(store: &Store, session: usize) -> Result<usize, StoreError> {
    let row = store.reader()?.session(WORLD.sessions[session].session())?;
    Ok(row.map_or(0, |row| usize::try_from(row.tip.seq.get()).unwrap() + 1))
}

pub(crate) fn key_of(session: usize, seq: usize) -> Idempotency {
    let builder = &WORLD.sessions[session];
    Idempotency {
        scope: Scope::Session(builder.session()),
        key: format!("request {seq}"),
        request: [u8::try_from(seq).unwrap(); 32],
        result: builder.entries()[seq].entry.cid().digest().to_vec(),
        expires: None,
    }
}

fn append(store: &Store, session: usize, seq: usize) -> Result<(), Code> {
    let builder = &WORLD.sessions[session];
    let options = AdoptOptions {
        idempotency: Some(key_of(session, seq)),
        controls: if seq == 0 { builder.controls().to_vec() } else { Vec::new() },
        ..if seq == 0 { activated() } else { signed(builder) }
    };
    let Some(segment) = WORLD.segments[session].get(seq) else { return Err(Code::NotFoundYet) };
    store.adopt(segment.clone(), options).map(|_| ()).map_err(|error| error.code())
}

fn block(number: usize) -> Block {
    let size = if number == 0 { 100 } else { LARGE };
    Block::of(Codec::Raw, vec![u8::try_from(number).unwrap(); size])
}

fn no<T, E: Into<AdoptError>>(result: Result<T, E>) -> Result<(), Code> {
    result.map(|_| ()).map_err(|error| error.into().code())
}

pub(crate) fn apply(store: &Store, act: Act) -> Result<(), Code> {
    let followed = WORLD.sessions[OWN].session();
    match act {
        Act::Append(session) => append(store, session, no_length(store, session)?),
        Act::Again(session) => {
            let length = no_length(store, session)?;
            if length == 0 { Ok(()) } else { append(store, session, length - 1) }
        }
        Act::Follow => {
            let next = no_length(store, OWN)?;
            let Some(segment) = WORLD.segments[OWN].get(next) else { return Err(Code::NotFoundYet) };
            let controls = WORLD.sessions[OWN].controls().to_vec();
            no(store.adopt(segment.clone(), AdoptOptions { controls, staging: StagingUse::Clear, ..at() }))
        }
        Act::Cut => cut(store),
        Act::Forget => {
            let length = no_length(store, OWN)?;
            let Some(last) = length.checked_sub(1) else { return Err(Code::NotFoundYet) };
            let expected_tip = WORLD.sessions[OWN].entries()[last].entry.cid();
            no(store.run(Forget { session: followed, expected_tip, at: now() }))
        }
        Act::Controls => {
            no(store.run(PutControls { controls: WORLD.sessions[0].controls().to_vec(), at: now() }))
        }
        Act::Revoke => no(store.run(PutControls { controls: vec![WORLD.tombstone.clone()], at: now() })),
        Act::Redact(session) => {
            let builder = &WORLD.sessions[session];
            let which =
                Which::Entries(builder.entries()[1..4].iter().map(|built| built.entry.cid()).collect());
            no(store.run(DropPayloads { session: builder.session(), which, later: Later::Refuse, at: now() }))
        }
        Act::Put(number) => no(store.run(PutBlock::bytes(block(number), now(), ts(5)))),
        Act::Stream(number) => stream(store, number),
        Act::Stage => {
            let quota = StagingQuota { session_bytes_max: 1 << 20, total_bytes_max: 1 << 20 };
            let blocks = vec![block(0), block(1)];
            no(store.run(Stage { session: followed, blocks, expires: ts(9), quota }))
        }
        Act::Unstage => no(store.run(Unstage { session: followed })),
        Act::Pin(session) => {
            let pin = Some(Pin { since: now(), depth: PinDepth::Files });
            no(store.run(SetPin { session: WORLD.sessions[session].session(), pin, at: now() }))
        }
        Act::Job(id) => no(store.run(PutJob {
            kind: "job".to_owned(),
            id: vec![id],
            expect: Expect::Anything,
            journal: Some(vec![id; 3_000]),
            at: now(),
        })),
        Act::Sweep => no(store.run(Sweep { now: ts(7), events_kept: 20 })),
    }
}

fn no_length(store: &Store, session: usize) -> Result<usize, Code> {
    length(store, session).map_err(|error| error.code())
}

fn cut(store: &Store) -> Result<(), Code> {
    let builder = &WORLD.sessions[OWN];
    let length = no_length(store, OWN)?;
    if length < 3 {
        return Err(Code::NotFoundYet);
    }
    no(store.run(ReplaceTail {
        session: builder.session(),
        expected_tip: builder.entries()[length - 1].entry.cid(),
        keep_through: mark(&builder.entries()[length - 3]),
        tail: NewTail::Cut(Box::new(state_at(builder, length - 3))),
        statuses: BTreeMap::new(),
        fallback: SideStatus::Revoked,
        options: at(),
    }))
}

fn stream(store: &Store, number: usize) -> Result<(), Code> {
    let mut writer = store.file_writer().map_err(|error| error.code())?;
    let bytes = vec![0x40 + u8::try_from(number).unwrap(); 3 * LARGE];
    if writer.write_all(&bytes).is_err() {
        return Err(Code::StoreIo);
    }
    let file = writer.finish().map_err(|error| error.code())?;
    no(store.run(PutBlock::file(file, now(), ts(8))))
}

pub(crate) fn open(disk: &ModelDisk, dir: &Path) -> Result<Store, OpenError> {
    Store::open_on(Arc::new(disk.clone()), dir, OpenOptions { cache_bytes: 4 << 20, ..options() })
}

/// Everything that a store holds: of each table the digest of its rows, and of each block whether its bytes are right. Left out
/// is what an open changes, how many transactions it took, and the list of files that are still to be unlinked.
pub(crate) type Dump = BTreeMap<String, [u8; 32]>;

pub(crate) fn dump(store: &Store) -> Result<Dump, StoreError> {
    let reader = store.reader()?;
    let mut dump = Dump::new();
    macro_rules! dump {
        ($($table:ident),*) => { $(dump.insert(stringify!($table).to_owned(), rows(&reader, tables::$table)?);)* };
    }
    dump!(SESSIONS, SESSION_IDS, CHAIN_STATES, ENTRIES, INDEX, SIDE, BLOCKS, BLOCK_REFS, LINKS_OF_SESSION);
    dump!(LEASES, REFUSED, CONTROLS, CONTROL_ALIASES, CONTROLS_OF_OWNER, DELEGATES, REFS_OF_SESSION);
    dump!(OWNERS, TO_JUDGE);
    dump!(GUARD, IDEMPOTENCY, IDEMPOTENCY_EXPIRY, STAGED, STAGING_SCOPES, PINS, JOBS, FACTS, EVENTS);
    let mut hasher = Sha256::new();
    for row in reader.txn.table(tables::META)?.iter()? {
        let (key, value) = row?;
        if ![meta::OPENS, meta::BATCH].contains(&key.value()) {
            hasher.update(format!("{} {}\n", key.value(), value.value()));
        }
    }
    dump.insert("META".to_owned(), hasher.finalize().into());
    let mut hasher = Sha256::new();
    for row in reader.txn.table(tables::BLOCKS)?.iter()? {
        let digest = *row?.0.value();
        let bytes = payloads::read(&reader.txn, &reader.files, &digest)?.unwrap();
        assert_eq!(<[u8; 32]>::from(Sha256::digest(&bytes)), digest);
        hasher.update(digest);
    }
    dump.insert("bytes".to_owned(), hasher.finalize().into());
    Ok(dump)
}

fn rows<S: Spec>(reader: &Reader, table: S) -> Result<[u8; 32], StoreError> {
    let mut hasher = Sha256::new();
    for row in reader.txn.table(table)?.iter()? {
        let (key, value) = row?;
        let (key, value) = (key.value(), value.value());
        for part in [S::K::as_bytes(&key).as_ref(), S::V::as_bytes(&value).as_ref()] {
            hasher.update(u64::try_from(part.len()).unwrap().to_be_bytes());
            hasher.update(part);
        }
    }
    Ok(hasher.finalize().into())
}

/// The parts in which two stores differ.
pub(crate) fn difference(one: &Dump, other: &Dump) -> Vec<String> {
    one.iter().filter(|(name, value)| other.get(*name) != Some(value)).map(|(name, _)| name.clone()).collect()
}

/// A run on a disk that works: what was held after the open and after each act, and how long each own session was then.
pub(crate) struct Run {
    pub(crate) disk: ModelDisk,
    pub(crate) dumps: Vec<Dump>,
    pub(crate) lengths: Vec<[usize; OWN]>,
}

pub(crate) fn run(dir: &Path, acts: &[Act]) -> Run {
    let disk = ModelDisk::new();
    let store = open(&disk, dir).unwrap();
    let mut run = Run { disk: disk.clone(), dumps: Vec::new(), lengths: Vec::new() };
    let mut note = |store: &Store| {
        run.dumps.push(dump(store).unwrap());
        run.lengths.push([0, 1].map(|session| length(store, session).unwrap()));
        disk.mark(u64::try_from(run.dumps.len() - 1).unwrap());
    };
    note(&store);
    for act in acts {
        // A refusal is an outcome like any other.
        let _ = apply(&store, *act);
        note(&store);
    }
    drop(store);
    run
}

/// The entry at a place of an own session, signed anew with another text: what must never be taken beside one that was
/// acknowledged.
pub(crate) fn rival(session: usize, seq: usize, life: u64) -> (VerifiedSegment, EntryCid, AdoptOptions) {
    let mut builder = WORLD.sessions[session].at(seq - 1).branch(&format!("life {life}"));
    push(&mut builder, &format!("life {life}"));
    let options = signed(&builder);
    (last(&builder), builder.head().entry.cid(), options)
}

pub(crate) fn cid_at(store: &Store, session: usize, seq: usize) -> Option<EntryCid> {
    let id = WORLD.sessions[session].session();
    let seq = Seq::new(u64::try_from(seq).unwrap()).unwrap();
    store.reader().unwrap().entry_at(id, seq).unwrap().map(|entry| entry.cid)
}
