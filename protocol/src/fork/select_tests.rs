//! Selection over many entries: near linear, whatever the shape. The laws and cases of selection are tested in
//! `tests/suite/vectors`, over signed blobs.

use std::sync::OnceLock;

use super::*;
use crate::control::{Capability, Control};
use crate::entry::{Authority, Class};
use crate::fork::skeleton::{Claim, GenesisFacts, Kind};
use crate::fork::{Set, Skeleton};
use crate::id::{AgentIri, SessionId};
use crate::testing;

const MANY: u64 = 50_000;

/// Skeletons are made without signing: signatures would take longer than all that is tested.
struct Maker {
    made: Vec<Skeleton>,
    /// What each skips to.
    skips: Vec<usize>,
    genesis: EntryCid,
}

fn grants() -> &'static [crate::block::Signed<Control>] {
    static GRANTS: OnceLock<Vec<crate::block::Signed<Control>>> = OnceLock::new();
    GRANTS.get_or_init(|| {
        let account = testing::key("account");
        [("server1", "agent-session-writer"), ("contributor", "agent-session-contributor")]
            .map(|(delegate, role)| {
                let capability = Capability {
                    ts: testing::ts(0),
                    signer: account.principal(),
                    delegate: testing::key(delegate).principal(),
                    role: Some(role.to_owned()),
                    path: None,
                    label: None,
                    audience: None,
                };
                crate::build::sign(Control::Capability(capability), &account).unwrap()
            })
            .into()
    })
}

impl Maker {
    fn new() -> Self {
        let account = testing::key("account").principal();
        let genesis = EntryCid::of(b"genesis");
        let facts = GenesisFacts {
            agent: AgentIri::new(account, None),
            holder: Some(testing::key("server1").principal()),
            class: Class::Internal,
        };
        let skeleton = Skeleton {
            cid: genesis,
            session: SessionId::of_genesis(genesis),
            prev: None,
            skip: None,
            seq: Seq::ZERO,
            epoch: Epoch::ZERO,
            ts: testing::ts(0),
            signer: account,
            authority: None,
            kind: Kind::Genesis(Box::new(facts)),
            links: Box::new([]),
        };
        Maker { made: vec![skeleton], skips: vec![0], genesis }
    }

    /// Adds an entry of the holder (0) or the contributor (1) on another; its index.
    fn add(&mut self, by: usize, on: usize) -> usize {
        let grant = &grants()[by];
        let Control::Capability(capability) = grant.value() else { panic!("a capability") };
        let parent = &self.made[on];
        let seq = parent.seq.next();
        let (p, j) = (parent.seq.get(), self.skips[on]);
        let (j, jj) = (self.made[j].seq.get(), self.skips[j]);
        let skip_at = if p - j == j - self.made[jj].seq.get() { jj } else { on };
        let skip = self.made[skip_at].cid;
        let made = Skeleton {
            cid: EntryCid::of(&self.made.len().to_be_bytes()),
            session: SessionId::of_genesis(self.genesis),
            prev: Some(parent.cid),
            skip: (skip != parent.cid).then_some(skip),
            seq,
            epoch: Epoch::ZERO,
            ts: testing::ts(0),
            signer: capability.delegate,
            authority: Some(Authority { space: capability.signer, capability: grant.cid().cid() }),
            kind: if by == 0 { Kind::ModelResponse } else { Kind::UserMessage(Claim::Unnamed) },
            links: Box::new([self.genesis]),
        };
        self.made.push(made);
        self.skips.push(skip_at);
        self.made.len() - 1
    }

    fn set(&self) -> Set {
        let mut set = Set::new(SessionId::of_genesis(self.genesis));
        grants().iter().for_each(|grant| {
            set.insert_control(grant);
        });
        self.made.iter().for_each(|made| {
            set.insert_skeleton(made.clone());
        });
        set
    }
}

const HOLDER: usize = 0;
const CONTRIBUTOR: usize = 1;

fn select(maker: &Maker) -> Selection {
    let selection = maker.set().select();
    assert_eq!(selection.valid.len(), maker.made.len());
    selection
}

#[test]
fn a_line() {
    let mut maker = Maker::new();
    let head = (0..MANY).fold(0, |on, _| maker.add(HOLDER, on));
    let selection = select(&maker);
    assert_eq!(selection.head.map(|head| head.cid), Some(maker.made[head].cid));
    assert_eq!(selection.anchored_through.map(|(mark, _)| mark.seq), Some(Seq::ZERO));
}

#[test]
fn a_star_of_entries_on_the_genesis() {
    let mut maker = Maker::new();
    (0..MANY).for_each(|_| {
        maker.add(CONTRIBUTOR, 0);
    });
    let selection = select(&maker);
    assert_eq!(selection.head.map(|head| head.cid), Some(maker.genesis));
    assert_eq!(selection.pending.len() as u64, MANY);
}

#[test]
fn a_comb_with_an_entry_beside_each() {
    let mut maker = Maker::new();
    let mut on = 0;
    for _ in 0..MANY / 2 {
        maker.add(CONTRIBUTOR, on);
        on = maker.add(HOLDER, on);
    }
    let selection = select(&maker);
    assert_eq!(selection.head.map(|head| head.cid), Some(maker.made[on].cid));
    assert_eq!(selection.passed.len() as u64, MANY / 2);
}

#[test]
fn two_long_histories_of_one_holder() {
    let mut maker = Maker::new();
    let meet = (0..100).fold(0, |on, _| maker.add(HOLDER, on));
    let tips: Vec<EntryCid> = (0..2)
        .map(|_| {
            let tip = (0..MANY / 2).fold(meet, |on, _| maker.add(HOLDER, on));
            maker.made[tip].cid
        })
        .collect();
    let selection = select(&maker);
    assert_eq!(selection.state, State::Forked);
    assert_eq!(selection.head.map(|head| head.cid), Some(maker.made[meet].cid));
    assert!(selection.disputed.iter().all(|tip| tips.contains(&tip.cid)));
    let [Evidence::Holder { meet: at, entries, .. }] = selection.evidence[..] else { panic!("one evidence") };
    assert_eq!((at.cid, entries[0].seq), (maker.made[meet].cid, at.seq.next()));
}

#[test]
fn many_histories_of_one_holder() {
    let mut maker = Maker::new();
    let meet = maker.add(HOLDER, 0);
    for _ in 0..MANY / 10 {
        (0..10).fold(meet, |on, _| maker.add(HOLDER, on));
    }
    let selection = select(&maker);
    assert_eq!(selection.state, State::Forked);
    assert_eq!(selection.disputed.len() as u64, MANY / 10);
    assert_eq!(selection.head.map(|head| head.cid), Some(maker.made[meet].cid));
}
