//! Checking everything that is stored: hashes, links, index, rows. Changes nothing.
//!
//! Damage is listed, not stopped at. Signatures, authority and the chain's own rules are for a [`ChainCheck`]: the store
//! brings every entry in order and keeps its layer.

use std::collections::BTreeSet;

use throughline_protocol::block::Decoded;
use throughline_protocol::code::{Code, Reject};
use throughline_protocol::entry::Entry;
use throughline_protocol::id::{EntryCid, SessionId};
use throughline_protocol::verify::ChainState;

use crate::error::StoreError;
use crate::files::short;
use crate::index::{self, Lane};
use crate::mend::Damage;
use crate::read::Reader;
use crate::rebuild::LostRow;
use crate::rows::{ControlRow, EntryRow, SessionRow, SideRow};
use crate::source::{Source, counter, lookup};
use crate::tables::{self, meta};
use crate::{fsck_rows, payloads};

/// Problems that one run lists; beyond it they are only counted.
const PROBLEMS_MAX: usize = 1_000;

/// What a run found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fsck {
    /// Sessions looked at.
    pub sessions: u64,
    /// Entries hashed, on main chains and beside them.
    pub entries: u64,
    /// Payloads and files hashed.
    pub blocks: u64,
    /// Control blobs hashed.
    pub controls: u64,
    /// How many problems there are.
    pub problem_count: u64,
    /// The first of them.
    pub problems: Vec<Problem>,
    /// Blobs that can be put back with [`crate::Mend`], by what they are known as.
    pub damaged: BTreeSet<Damage>,
    /// Rows that nobody else has and that can be put right, as far as that is safe.
    pub rows: BTreeSet<LostRow>,
}

impl Fsck {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.problem_count == 0
    }

    fn add(&mut self, problem: Problem) {
        self.problem_count += 1;
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(problem);
        }
    }

    pub(crate) fn note(&mut self, session: Option<SessionId>, code: Code, what: impl Into<String>) {
        self.add(Problem { session, code, what: what.into() });
    }

    /// Takes a value, or lists why there is none.
    pub(crate) fn take<T>(&mut self, session: Option<SessionId>, value: Result<T, StoreError>) -> Option<T> {
        value.map_err(|error| self.note(session, error.code(), error.to_string())).ok()
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The session, if it is of one.
    pub session: Option<SessionId>,
    /// Its stable code.
    pub code: Code,
    /// What and where, ids in short form.
    pub what: String,
}

/// What a caller checks of each main-chain entry and control blob, beyond what the store can.
pub trait ChainCheck {
    /// An entry, oldest first within its session; a session's entries come without others between.
    ///
    /// # Errors
    /// What is wrong with it.
    fn entry(&mut self, session: SessionId, bytes: &[u8]) -> Result<(), Reject>;

    /// A control blob.
    ///
    /// # Errors
    /// What is wrong with it.
    fn control(&mut self, bytes: &[u8]) -> Result<(), Reject>;
}

impl Reader {
    /// Checks everything in the snapshot: hashes, links between entries, index, counters, files, and what `check` checks.
    ///
    /// # Errors
    /// When the database cannot be read at all; damage is a [`Problem`].
    pub fn fsck(&self, check: &mut dyn ChainCheck) -> Result<Fsck, StoreError> {
        run(self, check)
    }
}

fn run(reader: &Reader, check: &mut dyn ChainCheck) -> Result<Fsck, StoreError> {
    let mut found = Fsck::default();
    pages(reader, &mut found);
    let mut entry_bytes = 0;
    let table = reader.txn.table(tables::SESSIONS)?;
    for row in table.iter()? {
        let (number, row) = row?;
        entry_bytes += match SessionRow::from_bytes(number.value(), row.value()) {
            Ok(row) => session(reader, &row, check, &mut found)?,
            Err(error) => fsck_rows::lost_session(reader, number.value(), &error, &mut found)?,
        };
        found.sessions += 1;
    }
    entry_bytes += fsck_rows::missing_sessions(reader, &mut found)?;
    let counted = counter(&reader.txn, meta::ENTRY_BYTES)?;
    if counted != entry_bytes {
        found.note(
            None,
            Code::IndexCorrupt,
            format!("{entry_bytes} bytes of entries are held, {counted} are counted"),
        );
    }
    indexed(reader, &mut found)?;
    blocks(reader, &mut found)?;
    controls(reader, check, &mut found)?;
    named(reader, &mut found)?;
    fsck_rows::guards(reader, &mut found)?;
    fsck_rows::evidence(reader, &mut found)?;
    numbers(reader, &mut found)?;
    Ok(found)
}

/// How often the pages are looked at anew: a commit that goes on meanwhile may grow the file under the look.
const LOOKS_MAX: usize = 3;

/// The pages of the database, also those that no other check reads.
fn pages(reader: &Reader, found: &mut Fsck) {
    let mut looked = Ok(false);
    for _ in 0..LOOKS_MAX {
        looked = reader.store.pages_are_whole();
        if matches!(looked, Ok(true)) {
            return;
        }
    }
    match looked {
        Ok(_) => found.note(None, Code::StoreCorrupt, "a page of store.redb is not what was written"),
        Err(error) => found.note(None, error.code(), error.to_string()),
    }
}

/// Rows that nothing else is compared with: that they can be read is all that can be asked.
fn named(reader: &Reader, found: &mut Fsck) -> Result<(), StoreError> {
    for row in reader.txn.table(tables::STAGED)?.iter()? {
        let (key, row) = row?;
        let cid = EntryCid::from_digest(*key.value().1);
        found.take(None, crate::rows::check_hash(cid, row.value(), "staged block"));
    }
    for row in reader.txn.table(tables::JOBS)?.iter()? {
        let (key, row) = row?;
        found.take(None, crate::jobs::read(key.value().0, row.value()));
    }
    for row in reader.txn.table(tables::FACTS)?.iter()? {
        let (key, row) = row?;
        found.take(None, crate::jobs::read(key.value().0, row.value()));
    }
    for row in reader.txn.table(tables::PINS)?.iter()? {
        found.take(None, crate::rows::Pin::from_bytes(row?.1.value()));
    }
    for row in reader.txn.table(tables::IDEMPOTENCY)?.iter()? {
        found.take(None, crate::rows::IdempotencyRow::from_bytes(row?.1.value()));
    }
    for row in reader.txn.table(tables::EVENTS)?.iter()? {
        let (id, row) = row?;
        found.take(None, crate::events::read(id.value(), row.value()));
    }
    Ok(())
}

/// Counters and sequences, as far as other rows tell what they should be. No checksum covers them: they are compared.
fn numbers(reader: &Reader, found: &mut Fsck) -> Result<(), StoreError> {
    for row in reader.txn.table(tables::META)?.iter()? {
        let key = row?.0.value().to_owned();
        if !meta::ALL.contains(&key.as_str()) {
            found.note(None, Code::StoreCorrupt, "a counter has a name that none has");
        }
    }
    let number = |key| counter(&reader.txn, key);
    let mut sides = 0;
    for row in reader.txn.table(tables::SIDE)?.iter()? {
        let (key, row) = row?;
        let cid = EntryCid::from_digest(*key.value().1);
        sides += SideRow::from_bytes(cid, row.value()).map_or(0, |side| payloads::size_of(&side.bytes));
    }
    let mut staged = 0;
    for row in reader.txn.table(tables::STAGING_SCOPES)?.iter()? {
        staged += row?.1.value().0;
    }
    let last = |last: Option<u64>| last.unwrap_or(0);
    let last_session = last(reader.txn.table(tables::SESSIONS)?.last()?.map(|(number, _)| number.value()));
    let last_event = last(reader.txn.table(tables::EVENTS)?.last()?.map(|(id, _)| id.value()));
    let is_trusted = number(meta::GUARD_TRUSTED)?;
    let rules = [
        (number(meta::SCHEMA)? == u64::from(crate::FORMAT), "the number of the format"),
        (number(meta::SIDE_BYTES)? == sides, "the bytes of side entries"),
        (number(meta::STAGING_BYTES)? == staged, "the bytes of staged blocks"),
        (last_session == 0 || number(meta::NEXT_SESSION)? > last_session, "the number of the next session"),
        (last_event == 0 || number(meta::NEXT_EVENT)? == last_event + 1, "the number of the next event"),
        (is_trusted == u64::from(reader.guard_life()?.is_none()), "whether the sign guard is trusted"),
    ];
    for (_, what) in rules.iter().filter(|(fits, _)| !fits) {
        found.note(None, Code::IndexCorrupt, format!("{what} does not fit what is held"));
    }
    Ok(())
}

/// One session: its chain, its index rows, its guard. Returns the bytes of its entries.
fn session(
    reader: &Reader,
    row: &SessionRow,
    check: &mut dyn ChainCheck,
    found: &mut Fsck,
) -> Result<u64, StoreError> {
    let id = Some(row.session);
    if index::session_number(&reader.txn, row.session)? != Some(row.number) {
        found.note(id, Code::IndexCorrupt, "the session is not found by its id");
    }
    let mut chain = Chain { expected_seq: 0, tip: None, bytes: 0 };
    let table = reader.txn.table(tables::ENTRIES)?;
    for stored in table.range((row.number, 0)..=(row.number, u64::MAX))? {
        let (key, stored) = stored?;
        let seq = key.value().1;
        found.entries += 1;
        let Some(entry) = found.take(id, EntryRow::from_bytes(stored.value())) else {
            chain.skip_to(seq);
            continue;
        };
        chain.entry(reader, row, seq, &entry, found)?;
        if let Err(reject) = check.entry(row.session, entry.bytes) {
            found.note(id, reject.code, format!("seq {seq}: {}", reject.detail));
        }
    }
    if chain.tip != Some(row.tip.cid) || chain.expected_seq != row.tip.seq.get() + 1 {
        found.note(id, Code::IndexCorrupt, format!("the chain does not end at seq {}", row.tip.seq));
    }
    state(reader, row, found)?;
    sides(reader, row, found)?;
    Ok(chain.bytes)
}

/// The verifier's state after the tip.
fn state(reader: &Reader, row: &SessionRow, found: &mut Fsck) -> Result<(), StoreError> {
    let id = Some(row.session);
    let wrong = match lookup(&reader.txn, tables::CHAIN_STATES, row.number, ChainState::from_bytes)? {
        Some(Ok(state)) if state.tip() == row.tip => return Ok(()),
        Some(Ok(_)) => (Code::IndexCorrupt, "the verifier's state is not that of the tip".to_owned()),
        Some(Err(reject)) => (Code::StoreCorrupt, format!("the verifier's state: {}", reject.detail)),
        None => (Code::IndexCorrupt, "the verifier's state is missing".to_owned()),
    };
    found.note(id, wrong.0, wrong.1);
    found.rows.insert(LostRow::State(row.session));
    Ok(())
}

/// What has been seen of one main chain.
struct Chain {
    expected_seq: u64,
    tip: Option<EntryCid>,
    bytes: u64,
}

impl Chain {
    fn skip_to(&mut self, seq: u64) {
        self.expected_seq = seq + 1;
        self.tip = None;
    }

    fn entry(
        &mut self,
        reader: &Reader,
        row: &SessionRow,
        seq: u64,
        entry: &EntryRow<'_>,
        found: &mut Fsck,
    ) -> Result<(), StoreError> {
        let id = Some(row.session);
        if seq != self.expected_seq {
            found.note(id, Code::IndexCorrupt, format!("expected seq {}, got {seq}", self.expected_seq));
        }
        let place = found.take(id, index::find(&reader.txn, entry.cid)).flatten();
        let fits = place.is_some_and(|place| {
            place.session == row.number && place.lane == Lane::Main && place.seq.get() == seq
        });
        if !fits {
            found.note(id, Code::IndexCorrupt, format!("seq {seq} is not found by its CID"));
        }
        match Decoded::<Entry>::decode(entry.bytes) {
            Ok(decoded) => {
                let value = decoded.value();
                let follows = self.tip.is_none() || value.prev() == self.tip;
                let payload = value.payload.map(|payload| payload.cid);
                if value.seq().get() != seq || !follows || payload != entry.payload {
                    found.note(
                        id,
                        Code::IndexCorrupt,
                        format!("the entry stored at seq {seq} does not belong there"),
                    );
                }
            }
            Err(reject) => found.note(id, reject.code, format!("seq {seq}: {}", reject.detail)),
        }
        self.bytes += payloads::size_of(entry.bytes);
        self.tip = Some(entry.cid);
        self.expected_seq = seq + 1;
        Ok(())
    }
}

/// Entries beside the chain.
fn sides(reader: &Reader, row: &SessionRow, found: &mut Fsck) -> Result<(), StoreError> {
    let id = Some(row.session);
    let table = reader.txn.table(tables::SIDE)?;
    for stored in table.range((row.number, &[0; 32])..=(row.number, &[0xff; 32]))? {
        let (key, stored) = stored?;
        let cid = EntryCid::from_digest(*key.value().1);
        found.entries += 1;
        if found.take(id, SideRow::from_bytes(cid, stored.value())).is_none() {
            continue;
        }
        let place = found.take(id, index::find(&reader.txn, cid)).flatten();
        if !place.is_some_and(|place| place.session == row.number && place.lane == Lane::Side) {
            found.note(id, Code::IndexCorrupt, format!("side entry {} is not found by its CID", cid.short()));
        }
    }
    Ok(())
}

/// Every index row points at an entry.
fn indexed(reader: &Reader, found: &mut Fsck) -> Result<(), StoreError> {
    let table = reader.txn.table(tables::INDEX)?;
    let entries = reader.txn.table(tables::ENTRIES)?;
    let sides = reader.txn.table(tables::SIDE)?;
    for row in table.iter()? {
        let cid = EntryCid::from_digest(*row?.0.value());
        let Some(Some(place)) = found.take(None, index::find(&reader.txn, cid)) else { continue };
        let stored = match place.lane {
            Lane::Main => entries
                .get((place.session, place.seq.get()))?
                .map(|row| EntryRow::from_bytes(row.value()).ok().map(|entry| entry.cid)),
            Lane::Side => sides
                .get((place.session, cid.digest()))?
                .map(|row| SideRow::from_bytes(cid, row.value()).ok().map(|_| cid)),
        };
        if stored != Some(Some(cid)) {
            let session = index::id_of_number(&reader.txn, place.session)?;
            found.note(
                session,
                Code::IndexCorrupt,
                format!("{} is indexed at seq {} and not there", cid.short(), place.seq),
            );
            if let Some(Some(_)) = stored {
                // Another entry stands there, whole: it is the index that is wrong.
                continue;
            }
            found.damaged.extend(session.map(|session| match place.lane {
                Lane::Main => Damage::Entry { session, seq: place.seq, cid },
                Lane::Side => Damage::Side { session, seq: place.seq, cid },
            }));
        }
    }
    Ok(())
}

/// Payloads and files.
fn blocks(reader: &Reader, found: &mut Fsck) -> Result<(), StoreError> {
    let (mut bytes, mut unreadable) = (0, 0_u64);
    let mut damaged = BTreeSet::new();
    let table = reader.txn.table(tables::BLOCKS)?;
    for row in table.iter()? {
        let digest = *row?.0.value();
        found.blocks += 1;
        let before = found.problem_count;
        match block(reader, &digest, found) {
            Some(size) => bytes += size,
            None => unreadable += 1,
        }
        if found.problem_count > before {
            damaged.insert(digest);
        }
    }
    let named = payloads::links_of_entries(&reader.txn, &damaged)?;
    for digest in damaged {
        let named = named.get(&digest).and_then(|links| links.first());
        let named =
            named.map(|(session, _)| index::id_of_number(&reader.txn, *session)).transpose()?.flatten();
        let linking = || reader.linkers(&digest).unwrap_or_default().first().copied();
        let session = named.or_else(linking);
        found.damaged.insert(Damage::Block { digest, session });
    }
    let counted = counter(&reader.txn, meta::BLOCK_BYTES)?;
    // The size of a block is in its row.
    if counted < bytes || (counted > bytes && unreadable == 0) {
        found.note(
            None,
            Code::IndexCorrupt,
            format!("{bytes} bytes of blocks are held, {counted} are counted"),
        );
    }
    Ok(())
}

/// One payload or file; returns its size, if its row can be read.
fn block(reader: &Reader, digest: &[u8; 32], found: &mut Fsck) -> Option<u64> {
    let row = found.take(None, payloads::row(&reader.txn, digest)).flatten()?;
    match found.take(None, reader.open_file(digest)) {
        None => {}
        Some(None) => {
            found.take(None, payloads::read(&reader.txn, &reader.files, digest));
        }
        // Streamed: a file may be larger than memory.
        Some(Some((mut file, _))) => {
            if let Err(error) = std::io::copy(&mut file, &mut std::io::sink()) {
                found.note(None, Code::StoreCorrupt, format!("file {}: {error}", short(digest)));
            }
        }
    }
    Some(row.size)
}

/// Control blobs.
fn controls(reader: &Reader, check: &mut dyn ChainCheck, found: &mut Fsck) -> Result<(), StoreError> {
    let table = reader.txn.table(tables::CONTROLS)?;
    for row in table.iter()? {
        let (hash, row) = row?;
        found.controls += 1;
        let hash = EntryCid::from_digest(*hash.value());
        let Some(row) = found.take(None, ControlRow::from_bytes(hash, row.value())) else {
            found.damaged.insert(Damage::Control { hash: *hash.digest() });
            continue;
        };
        if let Err(reject) = check.control(&row.bytes) {
            found.note(None, reject.code, format!("control blob {}: {}", hash.short(), reject.detail));
        }
    }
    let listed = reader.txn.table(tables::CONTROLS_OF_OWNER)?;
    for row in listed.iter()? {
        let hash = *row?.0.value().1;
        if lookup(&reader.txn, tables::CONTROLS, &hash, |_| ())?.is_none() {
            found.note(
                None,
                Code::IndexCorrupt,
                format!("control blob {} is listed and not held", short(&hash)),
            );
            found.damaged.insert(Damage::Control { hash });
        }
    }
    Ok(())
}
