//! Everything that one decision is made on, and the decision. [`super::change`] carries it out.
//!
//! Of entries that are held only skeletons are in memory, so a chain of a million takes some hundred megabytes and its
//! words none.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use throughline_protocol::block::{Decoded, Signed};
use throughline_protocol::code::{Code, Reject};
use throughline_protocol::entry::Entry;
use throughline_protocol::evidence::{self, Charge};
use throughline_protocol::fork::{Controls, Inserted, Judged, Mark, Selection, Set, State};
use throughline_protocol::id::{EntryCid, Seq, SessionId};
use throughline_protocol::verify::{ChainState, Prechecked, verdict_of};
use throughline_store::{Reader, RestateSide, SessionRow, SideStatus, Summary};

use super::Node;
use super::change::{Aside, Change, Move};
use super::controls::controls_of;
use super::evaluate::{Basis, Evaluated, Input, owner_of};
use super::following::{ControlDigest, Follows};
use crate::api::error::Answer;

/// Side entries read at a time.
const PAGE: usize = 1_000;

/// A session with everything that is held of it, and what is new.
pub(super) struct Scene<'r> {
    pub(super) reader: &'r Reader,
    pub(super) session: SessionId,
    pub(super) row: Option<SessionRow>,
    /// Every entry, held or new, and every control blob.
    pub(super) set: Set,
    /// The main chain, genesis first: an entry's index is its seq.
    pub(super) main: Vec<EntryCid>,
    /// What came: it is not held yet, or beside the main chain, where its words may lack.
    pub(super) new: BTreeMap<EntryCid, Prechecked>,
    /// What follows and is not here: it is judged, and nothing is done with it.
    following: BTreeSet<EntryCid>,
    /// What is held beside the main chain, and why it was put there.
    side: BTreeMap<EntryCid, SideStatus>,
}

impl<'r> Scene<'r> {
    pub(super) fn read(reader: &'r Reader, session: SessionId, input: &Input<'_>) -> Answer<Self> {
        let row = reader.session(session)?;
        let owner = match &row {
            Some(row) => row.owner,
            None => owner_of(session, input.entries)?,
        };
        let mut controls = controls_of(reader, owner, Some(session))?;
        for control in input.controls {
            controls.insert(control);
        }
        let mut scene = Scene::held(reader, session, row, controls)?;
        for entry in input.entries {
            let (cid, inserted) = (entry.signed().cid(), scene.set.insert_entry(entry.signed()));
            if inserted == Inserted::New || scene.side.contains_key(&cid) {
                scene.new.insert(cid, entry.clone());
            }
        }
        if let Follows::Known(following) = input.follows {
            for skeleton in following.skeletons() {
                if scene.set.insert_skeleton(skeleton.clone()) == Inserted::New {
                    scene.following.insert(skeleton.cid());
                }
            }
        }
        Ok(scene)
    }

    /// What is held, judged under `controls`.
    pub(super) fn held(
        reader: &'r Reader,
        session: SessionId,
        row: Option<SessionRow>,
        controls: Controls,
    ) -> Answer<Self> {
        let set = Set::with_controls(session, controls);
        let mut scene = Scene {
            reader,
            session,
            row,
            set,
            main: Vec::new(),
            new: BTreeMap::new(),
            following: BTreeSet::new(),
            side: BTreeMap::new(),
        };
        let Some(row) = &scene.row else { return Ok(scene) };
        for stored in reader.entries(session, Seq::ZERO, row.tip.seq)? {
            let signed = from_store(stored?.bytes)?;
            scene.main.push(signed.cid());
            scene.set.insert_entry(&signed);
        }
        let mut after = None;
        loop {
            let page = reader.side_entries(session, after, PAGE)?;
            let Some(last) = page.last() else { return Ok(scene) };
            after = Some(last.cid);
            for side in page {
                scene.side.insert(side.cid, side.status);
                scene.set.insert_entry(&from_store(side.bytes)?);
            }
        }
    }

    /// Decides and carries it out.
    pub(super) fn settle(&self, node: &Node, input: &Input<'_>) -> Answer<Evaluated> {
        let judged = self.set.judge();
        let selection = judged.selection();
        let refused = self.refused(&judged);
        if matches!(selection.state, State::Incomplete | State::Invalid) {
            let reject = judged.explain(self.session.genesis()).unwrap_or_else(|| Code::Incomplete.into());
            return Err(reject.into());
        }
        let chosen = path_to(&judged, self.target(&judged, &selection));
        let path = self.here(&chosen);
        let target = path.last().copied().unwrap_or(self.session.genesis());
        let common = self.main.iter().zip(path).take_while(|(a, b)| a == b).count();
        let left = &self.main[common..];
        let tail = &path[common..];
        let state = ChainState::at(&judged, self.set.controls(), target);
        let charges = evidence::charges(&judged, &selection);
        let (shown, _): (Vec<_>, Vec<_>) =
            charges.iter().cloned().partition(|charge| charge.entries.is_disjoint(&self.following));
        let change = Change {
            scene: self,
            base: common
                .checked_sub(1)
                .and_then(|at| ChainState::at(&judged, self.set.controls(), self.main[at])),
            tail,
            leaving: left.iter().filter_map(|cid| Some((*cid, status_of(&selection, *cid)?))).collect(),
            left: left.len() as u64,
            aside: self.aside(&judged, &selection, (path, &chosen), &shown),
            charges: &shown,
            disputed: is_disputed(&selection),
            refused,
        };
        let step = Move {
            node,
            reader: self.reader,
            session: self.session,
            row: self.row.as_ref(),
            staging: input.staging,
            controls: input.controls,
            summary: self.summary(&judged, &selection, path, state.as_ref())?,
        };
        let mut evaluated = change.carry_out(step, state.map(|state| state.tip()))?;
        let statuses = self.restated(&selection);
        if !statuses.is_empty() {
            node.store().run(RestateSide { session: self.session, statuses })?;
        }
        super::evidence::withdraw(node, self, &judged, &charges);
        if let (false, Follows::Known(following)) = (self.following.is_empty(), input.follows) {
            evaluated.basis = Basis::Following;
            let owner = judged.facts().map(|facts| facts.owner);
            // What the set was judged under, which is kept by now.
            let digest = owner.map(|owner| ControlDigest::of(&node.reader()?, owner, self.session));
            digest.transpose()?.into_iter().for_each(|digest| following.choose(digest, &chosen));
        }
        Ok(evaluated)
    }

    /// What is here of a path from the genesis, up to the first entry that is on its way.
    fn here<'p>(&self, path: &'p [EntryCid]) -> &'p [EntryCid] {
        let count = path.iter().take_while(|cid| !self.following.contains(*cid)).count();
        &path[..count]
    }

    /// Decides only: the verdict, where the chain would end, and what is refused.
    pub(super) fn try_out(&self) -> Answer<Evaluated> {
        let judged = self.set.judge();
        let selection = judged.selection();
        let mark = judged.mark(self.target(&judged, &selection));
        let verdict = verdict_of(&judged, &selection).word().to_owned();
        let summary = Summary { verdict, ..Summary::default() };
        Ok(Evaluated { refused: self.refused(&judged), ..Evaluated::unchanged(&summary, mark) })
    }

    /// The entry that the main chain is to end with: the head and the pending entries above it, while they are one chain.
    /// In dispute nobody moves beyond what is not disputed.
    fn target(&self, judged: &Judged<'_>, selection: &Selection) -> EntryCid {
        let genesis = self.session.genesis();
        let tip = self.main.last().copied();
        let Some(head) = selection.head else { return tip.unwrap_or(genesis) };
        if is_disputed(selection) {
            return match tip {
                Some(tip) if !judged.precedes(tip, head.cid) => tip,
                Some(_) | None => head.cid,
            };
        }
        let mut above: BTreeMap<EntryCid, Vec<EntryCid>> = BTreeMap::new();
        for cid in &selection.pending {
            if let Some(prev) = prev_of(judged, *cid) {
                above.entry(prev).or_default().push(*cid);
            }
        }
        let mut at = head.cid;
        while let Some(next) = above.get(&at) {
            at = match next[..] {
                [next] => next,
                // Two parties signed on one head: the one that is on the main chain stays, else none goes on it.
                ref several => match several.iter().find(|cid| self.is_main(judged, **cid)) {
                    Some(next) => *next,
                    None => return at,
                },
            };
        }
        at
    }

    fn is_main(&self, judged: &Judged<'_>, cid: EntryCid) -> bool {
        is_on(judged, &self.main, cid)
    }

    /// New entries that are not *in*, and the first one's reason.
    fn refused(&self, judged: &Judged<'_>) -> Option<(u64, Reject)> {
        let mut outside = self.new.keys().filter_map(|cid| judged.explain(*cid));
        let first = outside.next()?;
        Some((1 + outside.count() as u64, first))
    }

    /// New entries that are allowed and not on the main chain.
    fn aside(
        &self,
        judged: &Judged<'_>,
        selection: &Selection,
        (path, chosen): (&[EntryCid], &[EntryCid]),
        charges: &[Charge],
    ) -> Aside {
        let on_path = |entry: &Signed<Entry>| {
            let seq = usize::try_from(entry.value().seq().get()).ok();
            seq.and_then(|seq| path.get(seq)).is_some_and(|cid| *cid == entry.cid())
        };
        let new = self.new.values().filter(|entry| !on_path(entry.signed()));
        let mut entries: Vec<(Prechecked, SideStatus)> = new
            .filter_map(|entry| Some((entry.clone(), status_of(selection, entry.signed().cid())?)))
            .collect();
        // What counts because of an anchor above it does so only where all that is below the anchor is held; so does a dispute over it.
        let is_off = |cid: &EntryCid| !is_on(judged, chosen, *cid);
        let mut off = selection.valid.iter().filter(|cid| is_off(cid));
        let all_shows = selection.state == State::Frozen || off.any(|cid| judged.revoked_by(*cid).is_some());
        let shows = |entry: &Prechecked| {
            let cid = entry.signed().cid();
            (all_shows && selection.valid.contains(&cid))
                || charges.iter().any(|charge| charge.entries.contains(&cid))
        };
        // What shows a fault before what repeats it; then the lowest, since the others stand on them.
        entries.sort_by_cached_key(|(entry, _)| (!shows(entry), entry.signed().value().seq()));
        let needed = entries.iter().take_while(|(entry, _)| shows(entry)).count();
        Aside { entries, needed }
    }

    /// Entries beside the chain that stand there for another reason than they did. Those that came onto it are none.
    fn restated(&self, selection: &Selection) -> BTreeMap<EntryCid, SideStatus> {
        let now = self.side.iter().filter_map(|(cid, was)| Some((*cid, *was, status_of(selection, *cid)?)));
        now.filter(|(_, was, now)| was != now).map(|(cid, _, now)| (cid, now)).collect()
    }

    /// What lists show after it.
    fn summary(
        &self,
        judged: &Judged<'_>,
        selection: &Selection,
        path: &[EntryCid],
        state: Option<&ChainState>,
    ) -> Answer<Summary> {
        let (here, last) = (self.following.is_empty(), path.last().and_then(|cid| judged.mark(*cid)));
        let is_here = |head: &Mark| !self.following.contains(&head.cid);
        let head = selection.head.map(|head| Some(head).filter(is_here).or(last).unwrap_or(head));
        let verdict = verdict_of(judged, selection).word();
        let anchored = selection.anchored_through.map(|(mark, _)| mark.seq);
        let above = (path.len() as u64).saturating_sub(1 + head.map_or(0, |head| head.seq.get()));
        let titled = path.iter().rev().filter_map(|cid| self.new.get(cid));
        let known = || self.row.as_ref().and_then(|row| row.summary.title.clone());
        Ok(Summary {
            head,
            // A dispute stops whoever signs here; nothing else is said before all of it has come.
            verdict: if here || is_disputed(selection) { verdict } else { "incomplete" }.to_owned(),
            class: state.map(ChainState::class).unwrap_or_default(),
            title: titled.filter_map(Prechecked::title).map(str::to_owned).next().or_else(known),
            holder: state.and_then(ChainState::holder),
            pending: if head.is_none() || is_disputed(selection) { 0 } else { above },
            anchored_through: anchored
                .map(|seq| if here { seq } else { seq.min(last.map_or(seq, |last| last.seq)) }),
        })
    }

    /// Where the chain stands after an entry that is held and in, on the main chain or beside it.
    pub(super) fn position(&self, cid: EntryCid) -> Option<throughline_protocol::fork::Position> {
        self.set.judge().position(cid)
    }
}

pub(super) fn is_disputed(selection: &Selection) -> bool {
    matches!(selection.state, State::Forked | State::Frozen)
}

pub(super) fn prev_of(judged: &Judged<'_>, cid: EntryCid) -> Option<EntryCid> {
    judged.skeleton(cid).and_then(throughline_protocol::fork::Skeleton::prev)
}

/// Whether a path from the genesis holds an entry.
fn is_on(judged: &Judged<'_>, path: &[EntryCid], cid: EntryCid) -> bool {
    let seq = judged.mark(cid).and_then(|mark| usize::try_from(mark.seq.get()).ok());
    seq.and_then(|seq| path.get(seq)) == Some(&cid)
}

/// Genesis to `tip`.
pub(super) fn path_to(judged: &Judged<'_>, tip: EntryCid) -> Vec<EntryCid> {
    let mut path: Vec<EntryCid> = std::iter::successors(Some(tip), |cid| prev_of(judged, *cid)).collect();
    path.reverse();
    path
}

/// Why an entry that is in stands beside the main chain.
fn status_of(selection: &Selection, cid: EntryCid) -> Option<SideStatus> {
    if selection.revoked_tail.contains(&cid) {
        Some(SideStatus::Revoked)
    } else if selection.fenced.contains(&cid) {
        Some(SideStatus::Fenced)
    } else if selection.valid.contains(&cid) {
        Some(if is_disputed(selection) { SideStatus::Forked } else { SideStatus::Branch })
    } else {
        None
    }
}

/// An entry read back from the store; it was verified when it was adopted.
pub(super) fn from_store(bytes: Vec<u8>) -> Answer<Signed<Entry>> {
    Ok(Decoded::<Entry>::decode(Arc::<[u8]>::from(bytes))?.assume_signed())
}

/// The tip of a session's main chain.
pub(super) fn tip_of(row: Option<&SessionRow>) -> Option<Mark> {
    row.map(|row| row.tip)
}
