//! The check that `fsck` runs over every chain: the same verifier that let the entries in, from the genesis on.

use throughline_protocol::block::Signed;
use throughline_protocol::code::Reject;
use throughline_protocol::control::Control;
use throughline_protocol::fork::Controls;
use throughline_protocol::id::{EntryCid, SessionId};
use throughline_protocol::sign::VerifyingKeys;
use throughline_protocol::verify::{Collect, Pushed, Verifier};

use crate::ancestry::OnChain;
use crate::fsck::ChainCheck;
use crate::read::Reader;

/// Decodes, verifies signatures, links, authority and epochs. Memory does not grow with a chain.
pub struct VerifyCheck<'r> {
    reader: &'r Reader,
    keys: VerifyingKeys,
    at: Option<(SessionId, Chain<'r>)>,
}

/// The verifier of the session that is being read; none after an entry that it refused, which later ones stand on.
type Chain<'r> = Option<Box<Verifier<OnChain<'r>>>>;

impl<'r> VerifyCheck<'r> {
    /// A check of the sessions of a snapshot, under the control blobs that it holds.
    #[must_use]
    pub fn new(reader: &'r Reader) -> Self {
        VerifyCheck { reader, keys: VerifyingKeys::default(), at: None }
    }

    fn begin(&mut self, session: SessionId) -> Chain<'r> {
        let mut controls = Controls::new();
        // What cannot be read or does not verify is listed when the control blobs are checked; here it is missing.
        for bytes in self.reader.controls_of_session(session).unwrap_or_default() {
            if let Ok(signed) = Signed::<Control>::check(bytes, &mut self.keys) {
                controls.insert(&signed);
            }
        }
        let ancestry = OnChain::new(self.reader, session);
        Some(Box::new(Verifier::begin(controls).collecting(Collect::Nothing).with_ancestry(ancestry)))
    }
}

impl ChainCheck for VerifyCheck<'_> {
    fn entry(&mut self, session: SessionId, bytes: &[u8]) -> Result<(), Reject> {
        if self.at.as_ref().is_none_or(|(at, _)| *at != session) {
            let chain = self.begin(session);
            self.at = Some((session, chain));
        }
        let Some((_, chain)) = &mut self.at else { return Ok(()) };
        let Some(verifier) = chain else { return Ok(()) };
        let pushed = verifier.push(bytes, None);
        if !matches!(pushed, Ok(Pushed::Linked(..))) {
            *chain = None;
        }
        match pushed {
            Ok(Pushed::Linked(..)) => Ok(()),
            Ok(Pushed::Known | Pushed::Aside(_)) => {
                let cid = EntryCid::of(bytes).short();
                Err(Reject::new(
                    throughline_protocol::code::Code::IndexCorrupt,
                    format!("{cid} stands elsewhere"),
                ))
            }
            Err(reject) => Err(reject),
        }
    }

    fn control(&mut self, bytes: &[u8]) -> Result<(), Reject> {
        Signed::<Control>::check(bytes, &mut self.keys).map(|_| ())
    }
}

/// A check that tells after each entry that it was looked at.
pub(crate) struct Telling<'t, C> {
    /// The check.
    pub(crate) check: C,
    /// Who is told.
    pub(crate) told: &'t mut dyn FnMut(),
}

impl<C: ChainCheck> ChainCheck for Telling<'_, C> {
    fn entry(&mut self, session: SessionId, bytes: &[u8]) -> Result<(), Reject> {
        (self.told)();
        self.check.entry(session, bytes)
    }

    fn control(&mut self, bytes: &[u8]) -> Result<(), Reject> {
        self.check.control(bytes)
    }
}
