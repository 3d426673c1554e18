//! A verdict on a part is not final: however what peers hold of a session is cut into ranges, files and single control blobs, and in
//! whatever order it comes, a node ends where selection over all of it ends. `docs/PROTOCOL.md` R-SE-3.

use std::io::Write as _;
use std::sync::Arc;

use proptest::prelude::*;
use tempfile::TempDir;
use throughline_protocol::block::Signed;
use throughline_protocol::car::{EntryBlocks, SessionWriter};
use throughline_protocol::control::Control;
use throughline_protocol::entry::Body;
use throughline_protocol::fork::{Mark, Selection, Set, State};
use throughline_protocol::id::EntryCid;
use throughline_protocol::testing::{Built, Party, Reach, SessionBuilder};
use throughline_protocol::verify::{Auditor, Prechecked};

use super::Wanted;
use super::adopting::{Adopting, Told};
use crate::config::{Config, Key, Overrides, Value};
use crate::core::{Following, Node, is_held};
use crate::dirs::{Dirs, Environment};

/// Room beside the chain for some ten entries, and for all.
const SIDE_ROOMS: [u64; 2] = [6_000, 1 << 20];

/// A node that takes in one entry at a time.
fn node(side_room: u64) -> (Node, TempDir) {
    let home = tempfile::tempdir().unwrap();
    let dirs = Dirs::locate(Some(home.path()), &Environment::pick(|_| None)).unwrap();
    dirs.create().unwrap();
    crate::keys::NodeKeys::load_or_create(&dirs).unwrap();
    let overrides = Overrides::default().with_flag(Key::LimitsStagingMax, Value::text("1B"));
    let config = Config::load(&dirs, &overrides).unwrap();
    (Node::open(dirs, config, "test").unwrap().with_side_room(side_room), home)
}

fn checked(built: &Built) -> Prechecked {
    Prechecked::of(built.entry.clone(), built.payload.clone()).unwrap()
}

/// Who holds the session at its head.
fn holder(builder: &SessionBuilder) -> Arc<Party> {
    let opened = builder.entries().iter().rev().find_map(|built| {
        if let Body::Handoff(handoff) = &built.entry.value().body { handoff.holder } else { None }
    });
    let second = builder.server2.key.principal();
    if opened == Some(second) { Arc::clone(&builder.server2) } else { Arc::clone(&builder.server1) }
}

/// Goes on with what the numbers say.
fn grow(builder: &mut SessionBuilder, acts: &[u8]) {
    for (number, act) in acts.iter().enumerate() {
        let text = format!("{number}: {}", "word ".repeat(usize::from(act % 7) * 20));
        match act % 16 {
            0 => {
                let next = if Arc::ptr_eq(&holder(builder), &builder.server1) {
                    Arc::clone(&builder.server2)
                } else {
                    Arc::clone(&builder.server1)
                };
                builder.handoff(Some(&next));
            }
            1 => drop(builder.user(&Arc::clone(&builder.owner), &text)),
            2 => drop(builder.user(&Arc::clone(&builder.device), &text)),
            3 | 4 => drop(builder.user(&Arc::clone(&builder.contributor), &text)),
            _ => {
                let holder = holder(builder);
                builder.user(&holder, &text);
            }
        }
    }
}

/// What there is of a session: two histories, which may be one, and the control blobs.
#[derive(Clone, Debug)]
struct World {
    chains: Vec<SessionBuilder>,
    grants: Vec<Signed<Control>>,
    /// Tombstones and Refs.
    deciding: Vec<Signed<Control>>,
}

impl World {
    fn of(first: &[u8], parting: u8, second: &[u8], revoked: u8, refs: &[(u8, u8)]) -> Self {
        let mut one = SessionBuilder::new("parts");
        let grants = one.controls().to_vec();
        grow(&mut one, first);
        let mut other = one.at(usize::from(parting) % one.entries().len()).branch("other");
        grow(&mut other, second);
        let mut deciding = Vec::new();
        let parties = [&one.server1, &one.server2, &one.device, &one.contributor].map(Arc::clone);
        for (number, party) in parties.iter().enumerate() {
            if revoked & (1 << number) != 0 {
                deciding.push(one.tombstone(party.capability.as_ref().unwrap(), Vec::new()));
            }
        }
        for (who, at) in refs {
            let chain = if who & 1 == 0 { &mut one } else { &mut other };
            let party = if who & 2 == 0 { Arc::clone(&chain.owner) } else { Arc::clone(&chain.device) };
            // Mostly the newest: an anchor is put at the head.
            let last = chain.entries().len() - 1;
            let seq = if at % 3 == 0 { usize::from(*at) % (last + 1) } else { last };
            deciding.push(chain.reference(&party, seq, Reach::Anchors));
        }
        World { chains: vec![one, other], grants, deciding }
    }

    /// What selection says of all of it, and the verdict.
    fn judged(&self) -> (Set, Selection, &'static str) {
        let session = self.chains[0].session();
        let (mut set, mut auditor) = (Set::new(session), Auditor::over_set(session));
        for control in self.grants.iter().chain(&self.deciding) {
            set.insert_control(control);
            auditor.checked_control(control).unwrap();
        }
        for built in self.chains.iter().flat_map(SessionBuilder::entries) {
            set.insert_entry(&built.entry);
            auditor.checked_entry(checked(built)).unwrap();
        }
        let selection = set.select();
        (set, selection, auditor.report().verdict.word())
    }

    fn some(&self, mask: u16) -> Vec<Signed<Control>> {
        let deciding = self.deciding.iter().enumerate();
        let deciding = deciding.filter(|(number, _)| mask & (1 << (number % 16)) != 0);
        self.grants.iter().chain(deciding.map(|(_, control)| control)).cloned().collect()
    }
}

/// What comes at once, and how.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A chain up to an entry, as an answer to a range, with some of the control blobs.
    Range { chain: usize, through: u8, controls: u16 },
    /// The same as a file.
    Car { chain: usize, through: u8, controls: u16 },
    /// One control blob.
    Control(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let part = (0..2_usize, any::<u8>(), any::<u16>());
    prop_oneof![
        4 => part.clone().prop_map(|(chain, through, controls)| Step::Range { chain, through, controls }),
        2 => part.prop_map(|(chain, through, controls)| Step::Car { chain, through, controls }),
        3 => any::<u8>().prop_map(Step::Control),
    ]
}

/// How many entries of a chain come: some, or more often all.
fn count(builder: &SessionBuilder, through: u8) -> usize {
    let all = builder.entries().len();
    if through < 128 { 1 + usize::from(through) % all } else { all }
}

/// As a fetch takes a range in: from the entry on that both hold, one at a time, and where that is asked for once more.
fn range(node: &Node, chain: &[Built], controls: Vec<Signed<Control>>) {
    let session = throughline_protocol::id::SessionId::of_genesis(chain[0].entry.cid());
    let mut adopting = Adopting::new(node.clone(), session, None, Wanted::Referenced, Told::Nothing).unwrap();
    for again in [false, true] {
        let have = adopting.locator().unwrap();
        let base = chain.iter().rposition(|built| have.contains(&built.entry.cid()));
        let missing = &chain[base.map_or(0, |base| base + 1)..];
        adopting.controls(controls.clone());
        let taken = missing.iter().try_for_each(|built| adopting.entries(vec![checked(built)], None));
        let taken = taken.and_then(|()| adopting.flush());
        if !adopting.waits() {
            taken.unwrap();
            break;
        }
        assert!(!again, "all that comes was read");
        adopting.give_up().unwrap();
        let mut following = Following::default();
        missing.iter().for_each(|built| following.note(&built.entry));
        adopting.judge_together(Arc::new(following)).unwrap();
    }
    adopting.finish().unwrap();
}

fn car(node: &Node, chain: &[Built], controls: &[Signed<Control>]) {
    let mut bytes = Vec::new();
    let blocks = |built: &'_ Built| {
        let (entry, payload) = (built.entry.bytes().to_vec(), built.payload.as_ref().map(|it| it.to_vec()));
        (entry, payload)
    };
    let (entry, payload) = blocks(&chain[0]);
    let genesis = EntryBlocks { entry: &entry, payload: payload.as_deref(), config: None, files: &[] };
    let head = chain[chain.len() - 1].entry.cid();
    let controls = controls.iter().map(|control| (control.value(), &control.bytes()[..]));
    let mut writer = SessionWriter::begin(&mut bytes, head, &genesis, controls);
    for built in &chain[1..] {
        let (entry, payload) = blocks(built);
        let blocks = EntryBlocks { entry: &entry, payload: payload.as_deref(), config: None, files: &[] };
        writer.entry(&mut bytes, &blocks);
    }
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&bytes).unwrap();
    let answer = node.take_car(file.path(), false).unwrap();
    assert_eq!(answer["adopted"], true, "{answer}");
}

fn take(node: &Node, world: &World, step: Step) {
    match step {
        Step::Range { chain, through, controls } => {
            let builder = &world.chains[chain];
            range(node, &builder.entries()[..count(builder, through)], world.some(controls));
        }
        Step::Car { chain, through, controls } => {
            let builder = &world.chains[chain];
            car(node, &builder.entries()[..count(builder, through)], &world.some(controls));
        }
        Step::Control(number) => {
            let all: Vec<_> = world.grants.iter().chain(&world.deciding).collect();
            node.take_controls(vec![all[usize::from(number) % all.len()].clone()]).unwrap();
        }
    }
}

/// Where the chain ends: with what waits above the head, when it is one chain.
fn tip(set: &Set, selection: &Selection) -> Option<EntryCid> {
    let judged = set.judge();
    let mut at = selection.head?.cid;
    loop {
        let above = |cid: &&EntryCid| judged.skeleton(**cid).and_then(|it| it.prev()) == Some(at);
        let next: Vec<EntryCid> = selection.pending.iter().filter(above).copied().collect();
        match next[..] {
            [] => return Some(at),
            [next] => at = next,
            _ => return None,
        }
    }
}

fn holds_less(node: &Node, world: &World) -> bool {
    let reader = node.reader().unwrap();
    world.chains.iter().any(|chain| !is_held(&reader, chain.head().entry.cid()).unwrap())
}

fn expect_the_same(node: &Node, world: &World) -> Result<(), TestCaseError> {
    let (set, selection, verdict) = world.judged();
    let row = node.reader().unwrap().session(world.chains[0].session()).unwrap().unwrap();
    let cid = |mark: Option<Mark>| mark.map(|mark| (mark.seq.get(), mark.cid));
    // Of a tail for which there is no room it is known that there is one.
    let tails = ["revoked-tail", "fenced-tail"];
    if !(holds_less(node, world) && tails.contains(&verdict) && tails.contains(&row.summary.verdict.as_str()))
    {
        prop_assert_eq!(&row.summary.verdict, verdict);
    }
    prop_assert_eq!(cid(row.summary.head), cid(selection.head));
    prop_assert_eq!(row.summary.anchored_through, selection.anchored_through.map(|(mark, _)| mark.seq));
    // In dispute, and where two wait on one entry, what came first stays.
    let settled = matches!(selection.state, State::Ok | State::Sealed);
    if let (true, Some(tip)) = (settled, tip(&set, &selection)) {
        prop_assert_eq!(row.tip.cid, tip);
        let head = selection.head.map_or(0, |head| head.seq.get());
        prop_assert_eq!(row.summary.pending, row.tip.seq.get() - head);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 30, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_split_in_any_order_ends_where_selection_over_all_of_it_ends(
        first in prop::collection::vec(any::<u8>(), 0..40),
        parting in any::<u8>(),
        second in prop::collection::vec(any::<u8>(), 0..20),
        revoked in 0..16_u8,
        refs in prop::collection::vec(any::<(u8, u8)>(), 0..4),
        steps in prop::collection::vec(step(), 0..6),
        controls_last in any::<bool>(),
        room in prop::sample::select(&SIDE_ROOMS[..]),
    ) {
        let world = World::of(&first, parting, &second, revoked, &refs);
        let (node, _home) = node(room);
        for step in steps {
            take(&node, &world, step);
        }
        let everything = |node: &Node| {
            world.deciding.iter().for_each(|control| {
                node.take_controls(vec![control.clone()]).unwrap();
            });
        };
        if !controls_last {
            everything(&node);
        }
        // A head that was told and is not held is asked for, and once more when what it was judged by has changed.
        for _ in 0..2 {
            for chain in &world.chains {
                if !is_held(&node.reader().unwrap(), chain.head().entry.cid()).unwrap() {
                    range(&node, chain.entries(), world.some(0));
                }
            }
            everything(&node);
        }
        for chain in &world.chains {
            if !is_held(&node.reader().unwrap(), chain.head().entry.cid()).unwrap() {
                range(&node, chain.entries(), world.some(0));
            }
        }
        expect_the_same(&node, &world)?;
    }
}
