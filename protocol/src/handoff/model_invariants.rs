//! What has to hold after every step of the model.

use super::*;

impl World {
    pub(super) fn check(&self) {
        self.one_holder_per_epoch();
        self.knowledge_fences();
        self.what_was_given_up_stands_still();
        self.nothing_is_lost_of_an_online_source();
    }

    /// Whoever may append in an epoch is the one that its opening names; so there is at most one.
    fn one_holder_per_epoch(&self) {
        for node in &self.nodes {
            let Some(held) = node.permit() else { continue };
            let holder = match self.openings.get(&held) {
                Some(opening) => opening.holder(),
                None => (held == Epoch::ZERO).then(|| principal("server1")),
            };
            assert_eq!(holder, Some(principal(node.name)), "{} appends in epoch {held}", node.name);
        }
        let highest = self.openings.keys().next_back().copied().unwrap_or_default();
        let count = self.nodes.iter().filter(|node| node.permit() == Some(highest)).count();
        assert!(count <= 1, "{count} parties may append in epoch {highest}");
    }

    /// A server that knows an opening never appends in an earlier epoch.
    fn knowledge_fences(&self) {
        for node in &self.nodes {
            let known = node.highest().map(Opening::epoch).unwrap_or_default();
            assert!(node.permit().is_none_or(|held| held >= known), "{} thawed behind {known}", node.name);
        }
    }

    /// A source that stood still when it was given up never appends in that epoch again, whatever came after.
    fn what_was_given_up_stands_still(&self) {
        if self.given_up == Some(GivenUp::Frozen) {
            assert_ne!(self.nodes[0].permit(), Some(Epoch::ZERO), "thawed after it was given up");
        }
    }

    /// A source that was frozen, not left, loses no entry: the handoff stands on its last one.
    fn nothing_is_lost_of_an_online_source(&self) {
        let opened = self.openings.get(&self.plan.epoch.next());
        if let (false, Some(opening)) = (self.left_source, opened) {
            let source = &self.nodes[index_of(self.plan.origin.server().unwrap())];
            assert_eq!(
                source.heads[&self.plan.epoch].cid,
                opening.prev(),
                "the source wrote behind the handoff"
            );
        }
    }

    /// A signed handoff leaves nothing behind of what this node held in the moment when it was signed.
    pub(super) fn nothing_that_is_held_is_cut(&self) {
        if let Some(opening) = self.driver.opening() {
            let (held, stands_on) = (self.held, self.driver.base());
            assert!(held.seq < opening.point().seq, "cut here: {held:?}, handed over from {stands_on:?}");
        }
    }
}
