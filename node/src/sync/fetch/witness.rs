//! What a cold fetch verified, told without reading it all back: an auditor that sees each entry as it is adopted.
//!
//! It never verifies anything itself, and says nothing where it did not see the whole: when something was held before, when
//! selection did not take the chain as it came, when a control blob came after entries, or when what is stored has another
//! verdict by now. Then the stored chain is read.

use std::collections::BTreeSet;

use throughline_protocol::block::Signed;
use throughline_protocol::control::Control;
use throughline_protocol::id::{EntryCid, SessionId};
use throughline_protocol::verify::{Auditor, Prechecked, Report};

use crate::api::error::Answer;
use crate::core::{Evaluated, Node, held_controls, links_here, settle_links};

/// Looks on while a session is adopted from its genesis on.
pub(super) struct Witness {
    session: SessionId,
    /// None once it cannot tell any more.
    auditor: Option<Auditor>,
    controls: BTreeSet<[u8; 32]>,
    tip: Option<EntryCid>,
}

impl Witness {
    /// One for a session of which nothing is held.
    pub(super) fn new(session: SessionId, told: EntryCid) -> Self {
        let auditor = Auditor::new().of_session(session).told(told);
        Witness { session, auditor: Some(auditor), controls: BTreeSet::new(), tip: None }
    }

    /// Control blobs of the session's owner, then entries, that are to be adopted now.
    pub(super) fn saw(
        &mut self,
        node: &Node,
        controls: &[Signed<Control>],
        entries: &[Prechecked],
    ) -> Answer<()> {
        if self.tip.is_none()
            && let Some(first) = entries.first()
        {
            self.begin(node, first, controls)?;
        } else if controls.iter().any(|control| !self.controls.contains(&control.hash())) {
            self.auditor = None;
        }
        for entry in entries {
            self.tip = Some(entry.signed().cid());
            let Some(auditor) = &mut self.auditor else { return Ok(()) };
            if auditor.checked_entry(entry.clone()).is_err() {
                self.auditor = None;
            }
        }
        Ok(())
    }

    /// The control blobs that the session will be held with: those that came, and those that are here.
    fn begin(&mut self, node: &Node, first: &Prechecked, controls: &[Signed<Control>]) -> Answer<()> {
        let reader = node.reader()?;
        let owner = first.signed().value().owner();
        let held = held_controls(&reader, owner, Some(self.session))?;
        let Some(auditor) = &mut self.auditor else { return Ok(()) };
        for control in held.iter().chain(controls) {
            if self.controls.insert(control.hash()) && auditor.checked_control(control).is_err() {
                self.auditor = None;
                return Ok(());
            }
        }
        Ok(())
    }

    /// What became of the group.
    pub(super) fn adopted(&mut self, evaluated: &Evaluated) {
        let as_it_came = evaluated.tip.map(|tip| tip.cid) == self.tip
            && evaluated.left == 0
            && evaluated.kept_aside == 0
            && evaluated.refused.is_none();
        if !as_it_came {
            self.auditor = None;
        }
    }

    /// The report; none when it did not see the whole.
    pub(super) fn report(self, node: &Node) -> Answer<Option<Report>> {
        let Some(mut auditor) = self.auditor else { return Ok(None) };
        let reader = node.reader()?;
        let Some(row) = reader.session(self.session)?.filter(|row| Some(row.tip.cid) == self.tip) else {
            return Ok(None);
        };
        settle_links(&reader, self.session, &mut auditor)?;
        auditor.take_stock(|cid| links_here(&reader, self.session, cid))?;
        let report = auditor.report();
        // Judged anew meanwhile, under a control blob that came another way: what is stored counts.
        Ok((report.verdict.word() == row.summary.verdict).then_some(report))
    }
}
