//! What waits for the writer: operations without their types, and what the store asks of itself.

use crate::batch::{Batch, Changes, View};
use crate::error::StoreError;
use crate::files::InFlight;
use crate::health::Urgency;
use crate::writer::Step;

/// A queued operation with its answer, without its types.
pub(crate) trait Job: Send {
    /// Checks and writes. `Err` is a failure of the disk; a refusal is kept for the answer.
    fn execute(&mut self, txn: &Batch) -> Result<Wrote, StoreError>;
    /// Whether it is written while the disk is full.
    fn urgency(&self) -> Urgency;
    /// Whether it asks for a checkpoint.
    fn wants_checkpoint(&self) -> bool {
        false
    }
    /// Whether the operation had prepared files.
    fn has_files(&self) -> bool;
    /// Gives up the files that the operation had prepared; says which.
    fn take_files(&mut self) -> Vec<[u8; 32]>;
    /// Answers: after the commit, or with the failure that undid the batch.
    fn answer(self: Box<Self>, committed: Result<(), StoreError>);
}

/// Whether a job changed anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrote {
    /// It did.
    Something,
    /// It was refused.
    Nothing,
}

/// The one implementation of [`Job`].
pub(crate) struct Queued<O: Step, R> {
    pub(crate) operation: Option<O>,
    pub(crate) outcome: Option<Result<O::Output, O::Error>>,
    pub(crate) reply: R,
    /// Files stay while the operation is in flight.
    pub(crate) files: Vec<InFlight>,
}

impl<O, R> Job for Queued<O, R>
where
    O: Step,
    R: FnOnce(Result<O::Output, O::Error>) + Send,
{
    fn execute(&mut self, txn: &Batch) -> Result<Wrote, StoreError> {
        let Some(operation) = self.operation.take() else { return Ok(Wrote::Nothing) };
        match operation.check(&View { txn }) {
            Err(refusal) => {
                self.outcome = Some(Err(refusal));
                Ok(Wrote::Nothing)
            }
            Ok(plan) => {
                self.outcome = Some(Ok(operation.write(plan, &Changes { txn })?));
                Ok(Wrote::Something)
            }
        }
    }

    fn urgency(&self) -> Urgency {
        self.operation.as_ref().map_or(Urgency::Ordinary, Step::urgency)
    }

    fn has_files(&self) -> bool {
        !self.files.is_empty()
    }

    fn take_files(&mut self) -> Vec<[u8; 32]> {
        std::mem::take(&mut self.files).into_iter().map(|file| file.digest()).collect()
    }

    fn answer(self: Box<Self>, committed: Result<(), StoreError>) {
        let outcome = match committed {
            Ok(()) => self.outcome.unwrap_or_else(|| Err(StoreError::Closed.into())),
            Err(error) => Err(error.into()),
        };
        (self.reply)(outcome);
    }
}

/// Has the writer look whether it is to put the database back.
pub(crate) struct Wake;

impl Job for Wake {
    fn execute(&mut self, _txn: &Batch) -> Result<Wrote, StoreError> {
        Ok(Wrote::Nothing)
    }

    fn urgency(&self) -> Urgency {
        Urgency::Ordinary
    }

    fn has_files(&self) -> bool {
        false
    }

    fn take_files(&mut self) -> Vec<[u8; 32]> {
        Vec::new()
    }

    fn answer(self: Box<Self>, _committed: Result<(), StoreError>) {}
}

/// Gives files back that were made before anything named them; those that no row names are unlinked.
pub(crate) struct GiveBack {
    pub(crate) files: Vec<InFlight>,
}

impl Job for GiveBack {
    fn execute(&mut self, _txn: &Batch) -> Result<Wrote, StoreError> {
        Ok(Wrote::Nothing)
    }

    /// It makes room.
    fn urgency(&self) -> Urgency {
        Urgency::Urgent
    }

    fn has_files(&self) -> bool {
        !self.files.is_empty()
    }

    fn take_files(&mut self) -> Vec<[u8; 32]> {
        std::mem::take(&mut self.files).into_iter().map(|file| file.digest()).collect()
    }

    fn answer(self: Box<Self>, _committed: Result<(), StoreError>) {}
}

/// Has everything that is in memory written to the database. The answer is given while readers see that very commit.
pub(crate) struct Checkpoint<R> {
    pub(crate) reply: R,
}

impl<R: FnOnce(Result<(), StoreError>) + Send> Job for Checkpoint<R> {
    fn execute(&mut self, _txn: &Batch) -> Result<Wrote, StoreError> {
        Ok(Wrote::Nothing)
    }

    fn urgency(&self) -> Urgency {
        Urgency::Ordinary
    }

    fn wants_checkpoint(&self) -> bool {
        true
    }

    fn has_files(&self) -> bool {
        false
    }

    fn take_files(&mut self) -> Vec<[u8; 32]> {
        Vec::new()
    }

    fn answer(self: Box<Self>, committed: Result<(), StoreError>) {
        (self.reply)(committed);
    }
}

/// Whether a job is answered by the writer itself: it has something to do once its batch is durable, or needs that very commit.
pub(crate) fn is_settled(job: &dyn Job) -> bool {
    job.has_files() || job.wants_checkpoint()
}
