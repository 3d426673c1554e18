//! Pins: the sessions that this node keeps and follows. A pin may be set before the session is held.

use throughline_protocol::id::{EntryCid, SessionId, UnixMillis};

use crate::error::StoreError;
use crate::events::{self, Change};
use crate::rows::Pin;
use crate::source::{Source, lookup};
use crate::tables;
use crate::writer::{Changes, Step, View};

/// The pin of a session.
pub(crate) fn get(source: &impl Source, session: SessionId) -> Result<Option<Pin>, StoreError> {
    lookup(source, tables::PINS, session.genesis().digest(), Pin::from_bytes)?.transpose()
}

/// A session and its pin, if that can be read.
pub type ListedPin = (SessionId, Result<Pin, StoreError>);

/// All pins, ascending by session. Of one that cannot be read it is known whose it is, and that it is one.
pub(crate) fn all(source: &impl Source) -> Result<Vec<ListedPin>, StoreError> {
    let table = source.table(tables::PINS)?;
    let rows = table.iter()?;
    rows.map(|row| {
        let (genesis, pin) = row?;
        let session = SessionId::of_genesis(EntryCid::from_digest(*genesis.value()));
        Ok((session, Pin::from_bytes(pin.value())))
    })
    .collect()
}

/// Sets the pin of a session.
pub(crate) fn put(changes: &Changes<'_>, session: SessionId, pin: Pin) -> Result<(), StoreError> {
    changes.put(tables::PINS, session.genesis().digest(), pin.to_bytes().as_slice())?;
    events::write(changes, pin.since, &Change::Pin { session })?;
    Ok(())
}

/// Sets or removes a pin.
#[derive(Clone, Copy, Debug)]
pub struct SetPin {
    /// The session.
    pub session: SessionId,
    /// The pin; none removes it.
    pub pin: Option<Pin>,
    /// When.
    pub at: UnixMillis,
}

impl Step for SetPin {
    type Output = ();
    type Error = StoreError;
    type Plan = ();

    fn check(&self, _view: &View<'_>) -> Result<(), StoreError> {
        Ok(())
    }

    fn write(self, (): (), changes: &Changes<'_>) -> Result<(), StoreError> {
        if let Some(pin) = self.pin {
            return put(changes, self.session, pin);
        }
        if changes.remove(tables::PINS, self.session.genesis().digest())? {
            events::write(changes, self.at, &Change::Pin { session: self.session })?;
        }
        Ok(())
    }
}
