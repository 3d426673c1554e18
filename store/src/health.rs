//! Whether the store takes writes, and the space set aside for the day when the disk is full.
//!
//! Two things end writing. A failed write or fsync ends it for this process: what the disk holds after one is known again only
//! when it is opened anew (a second fsync may say yes to pages that the first one lost). A full disk ends it until there
//! is room: nothing is in doubt then, and writes go on by themselves.
//!
//! While the disk is full, what cannot wait is still written ([`crate::Urgency`]): a revocation, or what makes room. A file of
//! its own ([`RESERVE`]) keeps space for that. It is given back to the disk for such a write and taken again after it, as far as
//! there is room; other programs may take it in between.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::disk::Disk;
use crate::error::StoreError;

/// Name of the file that keeps space.
const RESERVE: &str = "RESERVE";
/// Room beyond the reserve at which writing goes on, in bytes: enough that it does not end again with the next entry.
const MARGIN_BYTES: u64 = 1 << 20;

/// Free space below which every batch is written to the database at once, in bytes. What only the journal and memory have is
/// written sooner or later, and takes room then: 4 MiB of it, of appends to a large database, about 40 MiB. So a disk that fills up
/// is found full with nothing pending, and the reserve is for what cannot wait.
const TIGHT_BYTES: u64 = 64 << 20;

/// Whether an operation is worth the reserve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Urgency {
    /// It waits until the disk has room.
    #[default]
    Ordinary,
    /// It revokes, cuts what was revoked, or makes room: written even while the disk is full.
    Urgent,
}

/// What is known of the disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Condition {
    #[default]
    Well,
    /// It was full.
    Full(String),
    /// It failed.
    Failed(String),
}

/// Whether the store takes writes, and what ended it.
#[derive(Debug)]
pub(crate) struct Health {
    disk: Arc<dyn Disk>,
    reserve: PathBuf,
    reserve_bytes: u64,
    condition: Mutex<Condition>,
}

/// Why the store takes no writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadOnly {
    /// For people.
    pub why: String,
    /// For how long.
    pub ended: Ended,
}

/// For how long a failure of the disk ends writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Until there is room.
    UntilRoom,
    /// For this process.
    ForGood,
}

impl Health {
    /// Of a data directory whose reserve is `reserve_bytes` long.
    pub(crate) fn new(disk: Arc<dyn Disk>, data_dir: &Path, reserve_bytes: u64) -> Self {
        let reserve = data_dir.join(RESERVE);
        Health { disk, reserve, reserve_bytes, condition: Mutex::default() }
    }

    fn condition(&self) -> MutexGuard<'_, Condition> {
        self.condition.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The refusal, if an operation of that urgency is not to be tried now. One that finds room again is to be tried.
    pub(crate) fn check(&self, urgency: Urgency) -> Result<(), StoreError> {
        let is_refused = match &*self.condition() {
            Condition::Well => false,
            Condition::Full(_) => urgency == Urgency::Ordinary && !self.has_room(),
            Condition::Failed(_) => true,
        };
        if is_refused { Err(self.refusal()) } else { Ok(()) }
    }

    /// Whether the disk was full and nothing was written since.
    pub(crate) fn is_full(&self) -> bool {
        matches!(&*self.condition(), Condition::Full(_))
    }

    /// The refusal, once writes are over.
    pub(crate) fn refusal(&self) -> StoreError {
        let why = match &*self.condition() {
            Condition::Well => "it is being opened again".to_owned(),
            Condition::Full(why) => format!("the disk is full ({why}); make room and it goes on by itself"),
            Condition::Failed(why) => why.clone(),
        };
        StoreError::ReadOnly { why }
    }

    /// Notes a failure. A full disk does not replace another failure; the first of each kind is the one that is told.
    pub(crate) fn fail(&self, error: &StoreError) -> Ended {
        let mut condition = self.condition();
        let full = error.is_storage_full() && !matches!(&*condition, Condition::Failed(_));
        match (&*condition, full) {
            (Condition::Failed(_), _) => Ended::ForGood,
            (Condition::Full(_), true) => Ended::UntilRoom,
            (_, true) => {
                *condition = Condition::Full(error.to_string());
                Ended::UntilRoom
            }
            (_, false) => {
                *condition = Condition::Failed(error.to_string());
                Ended::ForGood
            }
        }
    }

    /// How writing ended. A disk that has room again was full.
    pub(crate) fn ended(&self) -> Ended {
        match &*self.condition() {
            Condition::Failed(_) => Ended::ForGood,
            Condition::Well | Condition::Full(_) => Ended::UntilRoom,
        }
    }

    /// Ends writing for this process, whatever the failure was: an fsync said no.
    pub(crate) fn fail_for_good(&self, error: &StoreError) {
        let mut condition = self.condition();
        if !matches!(&*condition, Condition::Failed(_)) {
            *condition = Condition::Failed(error.to_string());
        }
    }

    /// Whether there is room for the reserve and some more.
    pub(crate) fn has_room(&self) -> bool {
        let Some(dir) = self.reserve.parent() else { return false };
        self.disk.free_bytes(dir).is_ok_and(|free| free >= self.reserve_bytes.saturating_add(MARGIN_BYTES))
    }

    /// Writing goes on: the disk has room.
    pub(crate) fn recover(&self) {
        let mut condition = self.condition();
        if matches!(&*condition, Condition::Full(_)) {
            *condition = Condition::Well;
        }
        drop(condition);
        self.take_reserve();
    }

    /// Whether the disk was full, or soon is: nothing is to be left for later.
    pub(crate) fn is_tight(&self) -> bool {
        let Some(dir) = self.reserve.parent() else { return true };
        self.is_full() || self.disk.free_bytes(dir).is_ok_and(|free| free < TIGHT_BYTES)
    }

    /// Sets the reserve aside, as far as there is room. A disk without room for it is used all the same.
    pub(crate) fn take_reserve(&self) {
        let Some(dir) = self.reserve.parent() else { return };
        let bytes = self.reserve_bytes.min(self.disk.free_bytes(dir).unwrap_or(0));
        if bytes > 0 {
            // That there is none shows when it is needed; nothing depends on it until then.
            let _ = self.disk.reserve(&self.reserve, bytes);
        }
    }

    /// Gives the reserve back to the disk.
    pub(crate) fn give_reserve(&self) {
        // None is there when an earlier one was not taken again.
        let _ = self.disk.unlink(&self.reserve);
    }
}
