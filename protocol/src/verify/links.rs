//! Links that must be ancestors, when only the end of the chain is in memory.

use std::collections::{BTreeSet, VecDeque};

use super::state::ChainState;
use crate::fork::{Holds, Lineage, Mark};
use crate::id::{EntryCid, Principal};

/// Entries that a verifier remembers to answer for links itself.
pub const WINDOW_MAX: usize = 4_096;
/// Links that may wait for an answer at one time.
pub const UNSETTLED_MAX: usize = 65_536;

/// Answers whether a chain holds an entry. A store answers from its index.
pub trait Ancestry {
    /// Whether the chain that ends in `tip` holds `cid`.
    fn holds(&self, cid: EntryCid, tip: Mark) -> Holds;
}

/// Knows nothing: links beyond the window wait for [`crate::verify::Verifier::settle`].
#[derive(Clone, Copy, Debug, Default)]
pub struct NoIndex;

impl Ancestry for NoIndex {
    fn holds(&self, _: EntryCid, _: Mark) -> Holds {
        Holds::Unknown
    }
}

/// A link that nobody could tell to be an ancestor yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnsettledLink {
    /// The entry that must come before `from`.
    pub target: EntryCid,
    /// The entry that links it.
    pub from: Mark,
}

/// The last entries of a chain.
#[derive(Clone, Debug)]
pub(super) struct Window {
    order: VecDeque<EntryCid>,
    held: BTreeSet<EntryCid>,
    span: Span,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Span {
    /// Every entry since the genesis.
    Whole,
    /// The last ones only.
    End,
}

impl Window {
    /// Of a chain that begins.
    pub(super) fn whole() -> Self {
        Window { order: VecDeque::new(), held: BTreeSet::new(), span: Span::Whole }
    }

    /// Of a chain that goes on after `tip`.
    pub(super) fn after(state: &ChainState) -> Self {
        let mut window = Window { span: Span::End, ..Window::whole() };
        window.push(state.tip().cid);
        window
    }

    pub(super) fn push(&mut self, cid: EntryCid) {
        if self.order.len() == WINDOW_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.held.remove(&oldest);
            self.span = Span::End;
        }
        self.order.push_back(cid);
        self.held.insert(cid);
    }

    pub(super) fn contains(&self, cid: EntryCid) -> bool {
        self.held.contains(&cid)
    }

    fn holds(&self, cid: EntryCid) -> Holds {
        match (self.contains(cid), self.span) {
            (true, _) => Holds::Yes,
            (false, Span::Whole) => Holds::No,
            (false, Span::End) => Holds::Unknown,
        }
    }
}

/// A chain whose end is in memory, as the rules see it.
pub(super) struct Streamed<'s, A> {
    pub(super) state: &'s ChainState,
    pub(super) window: &'s Window,
    pub(super) ancestry: &'s A,
}

impl<A: Ancestry> Lineage for Streamed<'_, A> {
    fn next_skip(&self) -> EntryCid {
        self.state.path().next_skip().1
    }

    fn holds(&self, cid: EntryCid) -> Holds {
        match self.window.holds(cid) {
            Holds::Unknown if self.state.path().iter().any(|(_, hop)| hop == cid) => Holds::Yes,
            Holds::Unknown => self.ancestry.holds(cid, self.state.tip()),
            known @ (Holds::Yes | Holds::No) => known,
        }
    }

    fn participants(&self) -> Option<Vec<Principal>> {
        self.state.participants()
    }
}
