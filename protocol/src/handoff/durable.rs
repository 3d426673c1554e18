//! A state of which at most one write is under way, and the answers that wait for it. Says nothing before it is true.

use super::{RequestId, Ticket};

/// The durable state, and the next one while it is being written.
#[derive(Clone, Debug)]
pub(super) struct Durable<S> {
    held: S,
    next: Option<Write<S>>,
    health: Health,
}

#[derive(Clone, Debug)]
struct Write<S> {
    ticket: Ticket,
    state: S,
    asked_by: Option<RequestId>,
}

/// Whether the last write worked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    Sound,
    /// A write failed: nobody knows which state is on disk, so nothing is promised until a restart reads it.
    Unknown,
}

impl<S> Durable<S> {
    /// A state that is on disk already, or follows from what is.
    pub(super) fn new(held: S) -> Self {
        Durable { held, next: None, health: Health::Sound }
    }

    pub(super) fn held(&self) -> &S {
        &self.held
    }

    /// The state being written.
    pub(super) fn next(&self) -> Option<&S> {
        self.next.as_ref().map(|write| &write.state)
    }

    pub(super) fn is_writing(&self) -> bool {
        self.next.is_some()
    }

    pub(super) fn health(&self) -> Health {
        self.health
    }

    /// Begins a write. The caller checked that none is under way.
    pub(super) fn write(&mut self, ticket: Ticket, state: S, asked_by: Option<RequestId>) {
        self.next = Some(Write { ticket, state, asked_by });
    }

    /// Sets a state that somebody else's transaction made durable.
    pub(super) fn replace(&mut self, state: S) {
        self.held = state;
    }

    /// The write is done: its state is held now. `None` if this is not the write under way.
    pub(super) fn written(&mut self, ticket: Ticket) -> Option<Option<RequestId>> {
        let write = self.next.take_if(|write| write.ticket == ticket)?;
        self.held = write.state;
        Some(write.asked_by)
    }

    /// The write failed. `None` if this is not the write under way.
    pub(super) fn failed(&mut self, ticket: Ticket) -> Option<Option<RequestId>> {
        let write = self.next.take_if(|write| write.ticket == ticket)?;
        self.health = Health::Unknown;
        Some(write.asked_by)
    }
}
