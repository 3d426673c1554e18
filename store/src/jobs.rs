//! What the node keeps for itself: journals of jobs (moves above all), peers, aliases. Opaque bytes under a name.

use throughline_protocol::code::{Code, Reject};
use throughline_protocol::id::UnixMillis;

use crate::error::StoreError;
use crate::events::{self, Change};
use crate::source::{Source, lookup};
use crate::tables::{self, Bytes, Row, Spec};
use crate::writer::{Changes, Step, View};

/// A table of opaque rows under a name.
trait Named: Spec<K = (&'static str, Bytes), V = Row> {}

impl<S: Spec<K = (&'static str, Bytes), V = Row>> Named for S {}

/// One row of a kind of job, or of a space of facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedRow {
    /// The job's id, or the fact's key.
    pub key: Vec<u8>,
    /// The journal, or the fact.
    pub value: Vec<u8>,
}

/// A row that is listed and cannot be read. The others of the list can: it is for whoever lists them to say so and go on.
#[derive(Debug, thiserror::Error)]
#[error("the row of {}: {error}", hex(key))]
pub struct DamagedRow {
    /// The job's id, or the fact's key.
    pub key: Vec<u8>,
    /// Why.
    pub error: StoreError,
}

/// A key as it is shown to people.
fn hex(key: &[u8]) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A row of a list, if it can be read.
pub type ListedRow = Result<NamedRow, DamagedRow>;

/// A row as it was put. One that is damaged reads as no bytes ([`crate::checked`]), so none is put without.
pub(crate) fn read<'a>(name: &str, row: &'a [u8]) -> Result<&'a [u8], StoreError> {
    if row.is_empty() {
        return Err(StoreError::corrupt(format!("a {name} row is not readable")));
    }
    Ok(row)
}

fn get(
    source: &impl Source,
    table: impl Named,
    (name, key): (&str, &[u8]),
) -> Result<Option<Vec<u8>>, StoreError> {
    lookup(source, table, (name, key), |row| read(name, row).map(<[u8]>::to_vec))?.transpose()
}

/// A job's journal.
pub(crate) fn job(source: &impl Source, kind: &str, id: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
    get(source, tables::JOBS, (kind, id))
}

/// A fact of the node.
pub(crate) fn fact(source: &impl Source, space: &str, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
    get(source, tables::FACTS, (space, key))
}

/// Ids and journals of a kind, ascending; each by itself, so that a damaged one hides no other.
pub(crate) fn jobs(source: &impl Source, kind: &str) -> Result<Vec<ListedRow>, StoreError> {
    under(source, tables::JOBS, kind)
}

/// Keys and facts of a space, ascending; as [`jobs`].
pub(crate) fn facts(source: &impl Source, space: &str) -> Result<Vec<ListedRow>, StoreError> {
    under(source, tables::FACTS, space)
}

fn under(source: &impl Source, table: impl Named, name: &str) -> Result<Vec<ListedRow>, StoreError> {
    let table = source.table(table)?;
    let mut found = Vec::new();
    for row in table.range((name, &[][..])..)? {
        let (key, value) = row?;
        let (under, key) = key.value();
        if under != name {
            break;
        }
        let key = key.to_vec();
        found.push(match read(name, value.value()) {
            Ok(value) => Ok(NamedRow { key, value: value.to_vec() }),
            Err(error) => Err(DamagedRow { key, error }),
        });
    }
    Ok(found)
}

/// What a row must be for it to be replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Anything.
    Anything,
    /// Absent.
    Absent,
    /// These bytes.
    Bytes(Vec<u8>),
}

impl Expect {
    /// Checks what is held; what is put instead must have bytes, or it would read as damaged.
    fn check(
        &self,
        held: Result<Option<Vec<u8>>, StoreError>,
        new: Option<&[u8]>,
        what: &str,
    ) -> Result<(), StoreError> {
        if new.is_some_and(<[u8]>::is_empty) {
            let what = format!("expected bytes for the {what}, got none; leave them out to remove it");
            return Err(StoreError::Refused(Reject::new(Code::SchemaLen, what)));
        }
        let fits = match self {
            // Also in place of one that cannot be read.
            Expect::Anything => true,
            Expect::Absent => held?.is_none(),
            Expect::Bytes(bytes) => held?.as_ref() == Some(bytes),
        };
        if fits { Ok(()) } else { Err(StoreError::Moved { what: what.to_owned() }) }
    }
}

/// Writes or removes the journal of a job.
#[derive(Clone, Debug)]
pub struct PutJob {
    /// Its kind, such as `move`.
    pub kind: String,
    /// Its id.
    pub id: Vec<u8>,
    /// What has to be there now.
    pub expect: Expect,
    /// The journal, of at least one byte; none removes it.
    pub journal: Option<Vec<u8>>,
    /// When.
    pub at: UnixMillis,
}

impl Step for PutJob {
    type Output = ();
    /// [`StoreError::Moved`] when something else is there.
    type Error = StoreError;
    type Plan = ();

    fn check(&self, view: &View<'_>) -> Result<(), StoreError> {
        let held = job(view.txn, &self.kind, &self.id);
        self.expect.check(held, self.journal.as_deref(), &format!("{} job", self.kind))
    }

    fn write(self, (): (), changes: &Changes<'_>) -> Result<(), StoreError> {
        put_named(changes, tables::JOBS, (&self.kind, &self.id), self.journal.as_deref())?;
        events::write(changes, self.at, &Change::Job { kind: self.kind, id: self.id })?;
        Ok(())
    }
}

/// Writes or removes a fact of the node: a peer, an alias.
#[derive(Clone, Debug)]
pub struct PutFact {
    /// The space, such as `peer`.
    pub space: String,
    /// The key.
    pub key: Vec<u8>,
    /// What has to be there now.
    pub expect: Expect,
    /// The fact, of at least one byte; none removes it.
    pub value: Option<Vec<u8>>,
}

impl Step for PutFact {
    type Output = ();
    /// [`StoreError::Moved`] when something else is there.
    type Error = StoreError;
    type Plan = ();

    fn check(&self, view: &View<'_>) -> Result<(), StoreError> {
        let held = fact(view.txn, &self.space, &self.key);
        self.expect.check(held, self.value.as_deref(), &format!("{} row", self.space))
    }

    fn write(self, (): (), changes: &Changes<'_>) -> Result<(), StoreError> {
        put_named(changes, tables::FACTS, (&self.space, &self.key), self.value.as_deref())
    }
}

fn put_named(
    changes: &Changes<'_>,
    table: impl Named,
    key: (&str, &[u8]),
    value: Option<&[u8]>,
) -> Result<(), StoreError> {
    match value {
        Some(value) => changes.put(table, key, value),
        None => changes.remove(table, key).map(|_| ()),
    }
}
