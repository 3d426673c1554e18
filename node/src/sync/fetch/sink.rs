//! Where what was fetched goes: onto the chain that is held, or through an auditor that keeps nothing. Where only control blobs are
//! asked for, they wait here; so does what is looked at before it is taken in.

use throughline_protocol::block::Signed;
use throughline_protocol::code::Code;
use throughline_protocol::control::Control;
use throughline_protocol::id::EntryCid;
use throughline_protocol::verify::Prechecked;

use super::adopting::Adopting;
use super::auditing::Auditing;
use super::pipeline::Room;
use crate::api::error::Answer;
use crate::core::Following;

/// The receiving end of a transfer.
pub(super) enum Sink {
    /// Entries are adopted as verified prefixes.
    Adopt(Box<Adopting>),
    /// Entries are judged and dropped.
    Audit(Box<Auditing>),
    /// Control blobs are kept; there are no entries.
    Hear(Box<Hearing>),
    /// What selection looks at is kept of the entries: they come again.
    Preview(Box<Preview>),
}

/// What a transfer will bring.
pub(super) struct Preview {
    /// Where it will begin.
    have: Vec<EntryCid>,
    pub(super) following: Following,
}

impl Preview {
    pub(super) fn new(have: Vec<EntryCid>) -> Self {
        Preview { have, following: Following::default() }
    }
}

/// What a peer holds beside entries that are here.
pub(super) struct Hearing {
    /// All that is asked for is said to be here.
    head: EntryCid,
    pub(super) controls: Vec<Signed<Control>>,
}

impl Hearing {
    /// Listens to a peer that told this head.
    pub(super) fn new(head: EntryCid) -> Self {
        Hearing { head, controls: Vec::new() }
    }
}

impl Sink {
    /// Takes control blobs whose signatures were checked.
    pub(super) fn controls(&mut self, controls: Vec<Signed<Control>>) -> Answer<()> {
        match self {
            Sink::Adopt(adopting) => {
                adopting.controls(controls);
                Ok(())
            }
            Sink::Audit(auditing) => auditing.controls(controls),
            Sink::Hear(hearing) => {
                hearing.controls.extend(controls);
                Ok(())
            }
            // They come again too, before any entry.
            Sink::Preview(_) => Ok(()),
        }
    }

    /// Takes entries in order, and the room that they take until they are adopted or dropped.
    pub(super) fn entries(&mut self, entries: Vec<Prechecked>, room: Room) -> Answer<()> {
        match self {
            Sink::Adopt(adopting) => adopting.entries(entries, Some(room)),
            Sink::Audit(auditing) => auditing.entries(entries),
            Sink::Preview(preview) => {
                entries.iter().for_each(|entry| preview.following.note(entry.signed()));
                Ok(())
            }
            Sink::Hear(_) if entries.is_empty() => Ok(()),
            // The range was whole before it began; its check refuses any entry.
            Sink::Hear(_) => Err(Code::SyncUnsolicited.into()),
        }
    }

    /// Brings everything that is good so far to where it belongs.
    pub(super) fn flush(&mut self) -> Answer<()> {
        match self {
            Sink::Adopt(adopting) => adopting.flush(),
            Sink::Audit(_) | Sink::Hear(_) | Sink::Preview(_) => Ok(()),
        }
    }

    /// Drops what is not where it belongs yet: something before it was not taken.
    pub(super) fn give_up(&mut self) -> Answer<()> {
        match self {
            Sink::Adopt(adopting) => adopting.give_up(),
            Sink::Audit(_) | Sink::Hear(_) | Sink::Preview(_) => Ok(()),
        }
    }

    /// Whether what came can only be judged together with what follows it.
    pub(super) fn waits(&self) -> bool {
        matches!(self, Sink::Adopt(adopting) if adopting.waits())
    }

    /// Tip, skip of the tip, … of what is held: where the next range begins.
    pub(super) fn locator(&self) -> Answer<Vec<EntryCid>> {
        match self {
            Sink::Adopt(adopting) => adopting.locator(),
            Sink::Audit(auditing) => Ok(auditing.locator()),
            Sink::Hear(hearing) => Ok(vec![hearing.head]),
            Sink::Preview(preview) => Ok(preview.have.clone()),
        }
    }
}
