//! What a verifier asks the store: whether a chain holds an entry that a later one links.

use throughline_protocol::fork::{Holds, Mark};
use throughline_protocol::id::{EntryCid, SessionId};
use throughline_protocol::verify::Ancestry;

use crate::read::Reader;

/// The main chain of one session in a snapshot. For a [`throughline_protocol::verify::Verifier`] that goes on from it.
pub struct OnChain<'r> {
    reader: &'r Reader,
    session: SessionId,
}

impl<'r> OnChain<'r> {
    /// The main chain of `session` as `reader` sees it.
    #[must_use]
    pub fn new(reader: &'r Reader, session: SessionId) -> Self {
        OnChain { reader, session }
    }
}

impl Ancestry for OnChain<'_> {
    /// A stored entry is told from one that is not; of an entry after the stored chain nothing is known. A database that
    /// cannot be read knows nothing either, so the link stays unsettled and nothing is adopted.
    fn holds(&self, cid: EntryCid, tip: Mark) -> Holds {
        let stands = |cid| self.reader.is_ancestor(self.session, cid, tip.seq);
        match (stands(cid), stands(tip.cid)) {
            (Ok(true), _) => Holds::Yes,
            (Ok(false), Ok(true)) => Holds::No,
            (Ok(false), Ok(false)) | (Err(_), _) | (_, Err(_)) => Holds::Unknown,
        }
    }
}
