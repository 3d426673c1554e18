//! Mutations of what a whole session says: who signs under what, on which entry, in which epoch, what is anchored, revoked and named.
//!
//! A mutant of one blob ([`super::tree`]) hardly ever finds its place in a chain again. Here the blobs of a session are changed together: one
//! or a few of them say something else, everything that names them names what they became, numbers that follow from the place follow
//! again, and each is signed by the key that it names. So it is the meaning that both verifiers judge, not the form.

use std::collections::{BTreeMap, BTreeSet};

use throughline_protocol::car::{write_block, write_header};
use throughline_protocol::id::{Cid, Codec, EntryCid};
use throughline_protocol::limits::INTEGER_MAX;
use throughline_protocol::skip;

use super::Rng;
use super::tree::{Maker, Node};

/// A CID in binary form, of what a blob was before anything was changed: its name in a [`Story`].
type Name = Vec<u8>;

/// Fields of a place and of a seal that follow from where an entry stands.
const PLACE: [&str; 5] = ["seq", "epoch", "skip", "ts", "genesis"];
const SEAL: [&str; 4] = ["count", "participants", "firstTs", "lastTs"];
const ROLES: [&str; 5] =
    ["agent-session-writer", "agent-session-contributor", "agent-session-reader", "AGENT", "WRITER"];
/// Blobs of a session that is mutated; larger ones take long to sign and to judge.
pub const BLOBS_MAX: usize = 40;

/// The blobs of one session by their names, before they are signed.
#[derive(Clone, Debug)]
pub struct Story {
    genesis: Name,
    /// The head that is told.
    root: Name,
    blobs: BTreeMap<Name, Told>,
}

/// One blob, and which of its fields are wrong on purpose.
#[derive(Clone, Debug)]
struct Told {
    tree: Node,
    wrong: BTreeSet<&'static str>,
}

/// A session that was signed again.
#[derive(Clone, Debug)]
pub struct Signed {
    /// The genesis.
    pub genesis: EntryCid,
    /// The head that is told.
    pub root: Cid,
    /// The blobs.
    pub blobs: Vec<Vec<u8>>,
}

impl Story {
    /// The story of a session's blobs; none without a genesis, or when they are too many.
    #[must_use]
    pub fn of<'a>(blobs: impl IntoIterator<Item = &'a [u8]>, root: Option<&Cid>) -> Option<Self> {
        let mut story = Story { genesis: Vec::new(), root: Vec::new(), blobs: BTreeMap::new() };
        let mut highest = 0;
        for bytes in blobs {
            let Some(tree) = Node::read(bytes) else { continue };
            let Some(kind) = tree.word("type").filter(|kind| is_known(kind)) else { continue };
            let name = Cid::sha256(Codec::DagCbor, bytes).to_bytes();
            if kind == "SessionGenesis" && story.genesis.is_empty() {
                story.genesis.clone_from(&name);
            }
            if kind.starts_with("Session") && tree.number("seq") >= highest {
                highest = tree.number("seq");
                story.root.clone_from(&name);
            }
            story.blobs.insert(name, Told { tree, wrong: BTreeSet::new() });
        }
        if let Some(root) = root.map(Cid::to_bytes).filter(|root| story.blobs.contains_key(root)) {
            story.root = root;
        }
        (!story.genesis.is_empty() && story.blobs.len() <= BLOBS_MAX).then_some(story)
    }

    fn names(&self, wanted: impl Fn(&str) -> bool) -> Vec<Name> {
        let of_kind = self.blobs.iter().filter(|(_, told)| told.tree.word("type").is_some_and(&wanted));
        of_kind.map(|(name, _)| name.clone()).collect()
    }

    fn entries(&self) -> Vec<Name> {
        self.names(|kind| kind.starts_with("Session"))
    }

    fn controls(&self) -> Vec<Name> {
        self.names(|kind| !kind.starts_with("Session"))
    }

    fn capabilities(&self) -> Vec<Name> {
        self.names(|kind| kind == "Capability")
    }

    /// Of these mostly one; now and then any name, or that of nothing.
    fn some(&self, rng: &mut Rng, names: &[Name]) -> Name {
        match rng.below(24) {
            0 => Cid::sha256(Codec::DagCbor, &rng.bytes(8)).to_bytes(),
            1 | 2 => rng.pick(&self.blobs.keys().cloned().collect::<Vec<_>>()).clone(),
            _ if names.is_empty() => self.genesis.clone(),
            _ => rng.pick(names).clone(),
        }
    }

    /// The owner, as the genesis names it.
    fn owner(&self) -> Option<Vec<u8>> {
        let genesis = &self.blobs.get(&self.genesis)?.tree;
        genesis.bytes("space").or(genesis.bytes("signer")).map(<[u8]>::to_vec)
    }

    /// Puts a blob in under a new name.
    fn put(&mut self, rng: &mut Rng, tree: Node) -> Name {
        let name = Cid::sha256(Codec::DagCbor, &rng.bytes(32)).to_bytes();
        self.blobs.insert(name.clone(), Told { tree, wrong: BTreeSet::new() });
        name
    }

    fn change(&mut self, name: &Name, change: impl FnOnce(&mut Told)) {
        if let Some(told) = self.blobs.get_mut(name) {
            change(told);
        }
    }
}

fn is_known(kind: &str) -> bool {
    kind.starts_with("Session") || ["Capability", "CapabilityTombstone", "Ref"].contains(&kind)
}

impl Told {
    fn set(&mut self, field: &'static str, value: Option<Node>) {
        self.tree.set(field, value);
        self.wrong.insert(field);
    }
}

/// Changes one to four things.
#[must_use]
pub fn mutant(rng: &mut Rng, story: &Story, maker: &Maker) -> Story {
    let mut story = story.clone();
    for _ in 0..[1, 1, 2, 3, 4][rng.below(5)] {
        step(rng, &mut story, maker);
    }
    if rng.once_in(8) {
        story.root = story.some(rng, &story.entries());
    }
    story
}

fn step(rng: &mut Rng, story: &mut Story, maker: &Maker) {
    let entry = story.some(rng, &story.entries());
    let key = maker.principal(rng);
    match rng.below(20) {
        0 => sign_as(rng, story, &entry, key),
        1 | 2 => {
            let cited = story.some(rng, &story.capabilities());
            cite(rng, story, &entry, &cited);
        }
        3 => grant(rng, story, maker),
        4 => regrant(rng, story, key),
        5 => number(rng, story, &entry, "epoch"),
        6 => number(rng, story, &entry, "seq"),
        7 => time(rng, story, &entry),
        8 => {
            let holder = rng.once_in(6).then_some(Node::Bytes(key.clone()));
            let opens = story.names(|kind| kind == "SessionHandoff" || kind == "SessionGenesis");
            let at = story.some(rng, &opens);
            story.change(&at, |told| told.tree.set("holder", holder.or(Some(Node::Bytes(key)))));
        }
        9 | 10 => {
            let prev = story.some(rng, &story.entries());
            story.change(&entry, |told| told.tree.set_link("prev", &prev));
        }
        11..=13 => say_again(rng, story, &entry, key),
        14 => {
            let links = ["response", "answers", "from", "to"];
            let target = story.some(rng, &story.entries());
            let skip = rng.once_in(3);
            story.change(&entry, |told| match links.iter().find(|name| told.tree.field(name).is_some()) {
                Some(name) if !skip => told.tree.set_link(name, &target),
                _ => told.set("skip", Some(Node::link(&target))),
            });
        }
        15 | 16 => anchor(rng, story, &entry, &key),
        17 | 18 => revoke(rng, story, &entry, &key),
        _ => forget(rng, story, &entry),
    }
}

/// Another key signs a blob, mostly under one of its own grants.
fn sign_as(rng: &mut Rng, story: &mut Story, name: &Name, key: Vec<u8>) {
    let own: Vec<Name> = story
        .capabilities()
        .into_iter()
        .filter(|cited| story.blobs[cited].tree.bytes("delegate") == Some(&key[..]))
        .collect();
    story.change(name, |told| told.tree.set("signer", Some(Node::Bytes(key.clone()))));
    if own.is_empty() || story.owner().is_none_or(|owner| owner == key) {
        story.change(name, |told| {
            told.tree.set("space", None);
            told.tree.set("capability", None);
        });
    } else if !rng.once_in(8) {
        let cited = rng.pick(&own).clone();
        cite(rng, story, name, &cited);
    }
}

/// A blob cites something as its capability, by either of its names.
fn cite(rng: &mut Rng, story: &mut Story, name: &Name, cited: &Name) {
    let owner = story.owner();
    let other = rng.once_in(6);
    let stays = story.blobs.get(name).is_some_and(|told| told.tree.word("type") == Some("SessionHandoff"));
    story.change(name, |told| {
        if stays {
            return;
        }
        // Which of its names is settled when it is signed.
        if other {
            told.wrong.insert("capability");
        }
        told.tree.set("space", owner.map(Node::Bytes));
        told.tree.set_link("capability", cited);
    });
}

/// A new capability for a key, of any role and scope, from the owner or from somebody else; now and then an entry cites it.
fn grant(rng: &mut Rng, story: &mut Story, maker: &Maker) {
    let Some(owner) = story.owner() else { return };
    let mut tree = Node::Map(Vec::new());
    tree.set("sig", Some(Node::Bytes(vec![0; 64])));
    tree.set("type", Some(Node::text("Capability")));
    tree.set("ts", Some(Node::Uint(1_700_000_000_000 + rng.next_u64() % 1_000_000)));
    tree.set("signer", Some(Node::Bytes(if rng.once_in(8) { maker.principal(rng) } else { owner })));
    let entry = story.some(rng, &story.entries());
    let holder = story.blobs.get(&entry).and_then(|told| told.tree.bytes("signer")).map(<[u8]>::to_vec);
    let delegate = holder.filter(|_| !rng.once_in(3)).unwrap_or_else(|| maker.principal(rng));
    tree.set("delegate", Some(Node::Bytes(delegate.clone())));
    scope(rng, story, &mut tree);
    let cited = story.put(rng, tree);
    if rng.once_in(2) {
        let by: Vec<Name> = story
            .entries()
            .into_iter()
            .filter(|name| story.blobs[name].tree.bytes("signer") == Some(&delegate[..]))
            .collect();
        let name = story.some(rng, &by);
        cite(rng, story, &name, &cited);
    }
}

/// Role, label, path and audience of a capability.
fn scope(rng: &mut Rng, story: &Story, tree: &mut Node) {
    let role = *rng.pick(&ROLES);
    tree.set("role", Some(Node::text(role)));
    let label = match (role, rng.below(3)) {
        ("WRITER", 0 | 1) => Some("agent-session-writer"),
        (_, 0) => Some("laptop"),
        _ => None,
    };
    tree.set("label", label.map(Node::text));
    let session = Cid::from_bytes(&story.genesis).map(|cid| format!("/session-{cid}")).unwrap_or_default();
    let path = match rng.below(8) {
        0 => Some("/other".to_owned()),
        1 => Some(session),
        2 => Some("/test".to_owned()),
        3 => Some("/te".to_owned()),
        _ => None,
    };
    tree.set("path", path.map(|path| Node::text(&path)));
}

/// A capability says something else.
fn regrant(rng: &mut Rng, story: &mut Story, key: Vec<u8>) {
    let name = story.some(rng, &story.capabilities());
    let Some(told) = story.blobs.get(&name).filter(|told| told.tree.word("type") == Some("Capability"))
    else {
        return;
    };
    let mut tree = told.tree.clone();
    match rng.below(6) {
        0 => tree.set("delegate", Some(Node::Bytes(key))),
        1 => tree.set("signer", Some(Node::Bytes(key))),
        2 => tree.set("audience", Some(Node::Bytes(key))),
        _ => scope(rng, story, &mut tree),
    }
    story.change(&name, |told| told.tree = tree);
}

/// A number that its place does not give.
fn number(rng: &mut Rng, story: &mut Story, name: &Name, field: &'static str) {
    let huge = INTEGER_MAX - rng.next_u64() % 4;
    let by = rng.below(6);
    story.change(name, |told| {
        let now = told.tree.number(field);
        let value = match by {
            0 | 1 => huge,
            2 | 3 => now.saturating_sub(1),
            _ => now + 1,
        };
        told.set(field, (value > 0).then_some(Node::Uint(value)));
    });
}

fn time(rng: &mut Rng, story: &mut Story, name: &Name) {
    let by = rng.below(4);
    story.change(name, |told| {
        let now = told.tree.number("ts");
        let value = [now, now.saturating_sub(1), 1_000, (1 << 48) - 1][by];
        told.set("ts", Some(Node::Uint(value)));
    });
}

/// A copy of an entry, changed in what follows from its place, on an entry; with what stands on it or without.
fn say_again(rng: &mut Rng, story: &mut Story, from: &Name, key: Vec<u8>) {
    let Some(told) = story.blobs.get(from).cloned() else { return };
    if !told.tree.word("type").is_some_and(|kind| kind.starts_with("Session") && kind != "SessionGenesis") {
        return;
    }
    let on = if rng.once_in(2) { None } else { Some(story.some(rng, &story.entries())) };
    let mut tree = told.tree;
    if let Some(on) = on {
        tree.set_link("prev", &on);
    }
    tree.set("ts", Some(Node::Uint(tree.number("ts") + 1 + rng.next_u64() % 5)));
    let copy = story.put(rng, tree);
    if rng.once_in(3) {
        sign_as(rng, story, &copy, key);
    }
    // What stood on the other one goes along, or stays.
    if rng.once_in(2) {
        let above: Vec<Name> = story
            .entries()
            .into_iter()
            .filter(|name| story.blobs[name].tree.linked("prev").as_ref() == Some(from))
            .collect();
        for name in above.into_iter().filter(|name| *name != copy) {
            story.change(&name, |told| told.tree.set_link("prev", &copy));
        }
    }
}

/// A Ref to an entry by a key.
fn anchor(rng: &mut Rng, story: &mut Story, head: &Name, key: &[u8]) {
    let refs = story.names(|kind| kind == "Ref");
    if rng.once_in(4) && !refs.is_empty() {
        let name = rng.pick(&refs).clone();
        return story.change(&name, |told| told.tree.set("heads", Some(Node::List(vec![Node::link(head)]))));
    }
    let epoch = story.blobs.get(head).map_or(0, |told| told.tree.number("epoch"));
    let mut tree = Node::Map(Vec::new());
    tree.set("sig", Some(Node::Bytes(vec![0; 64])));
    tree.set("type", Some(Node::text("Ref")));
    tree.set("ts", Some(Node::Uint(1_700_000_000_000 + rng.next_u64() % 1_000_000)));
    tree.set("signer", Some(Node::Bytes(key.to_vec())));
    tree.set_link("genesisBlob", &story.genesis);
    tree.set("heads", Some(Node::List(vec![Node::link(head)])));
    let path = Cid::from_bytes(&story.genesis).map(|cid| format!("/session-{cid}")).unwrap_or_default();
    tree.set("path", Some(Node::text(&path)));
    tree.set("generation", Some(Node::Uint(epoch + 1 + u64::from(rng.once_in(8)))));
    tree.set("visibility", (!rng.once_in(3)).then(|| Node::text("Private")));
    let name = story.put(rng, tree);
    let signer = if rng.once_in(2) { story.owner().unwrap_or_default() } else { key.to_vec() };
    sign_as(rng, story, &name, signer);
}

/// A tombstone of a capability, mostly by the owner, that keeps an entry or none.
fn revoke(rng: &mut Rng, story: &mut Story, head: &Name, key: &[u8]) {
    let Some(owner) = story.owner() else { return };
    let cited: Vec<Name> = story
        .entries()
        .iter()
        .filter_map(|name| story.blobs[name].tree.linked("capability"))
        .chain(story.capabilities())
        .collect();
    let named = story.some(rng, &cited);
    let mut tree = Node::Map(Vec::new());
    tree.set("sig", Some(Node::Bytes(vec![0; 64])));
    tree.set("type", Some(Node::text("CapabilityTombstone")));
    tree.set("ts", Some(Node::Uint(1_700_000_000_000 + rng.next_u64() % 1_000_000)));
    tree.set("signer", Some(Node::Bytes(if rng.once_in(8) { key.to_vec() } else { owner })));
    tree.set_link("capability", &named);
    if rng.once_in(2) {
        let mut keep = Node::Map(Vec::new());
        keep.set_link("head", head);
        let genesis = if rng.once_in(8) { head } else { &story.genesis };
        keep.set_link("genesis", genesis);
        let seq = story.blobs.get(head).map_or(0, |told| told.tree.number("seq"));
        keep.set("seq", (seq > 0).then_some(Node::Uint(seq)));
        tree.set("keep", Some(Node::List(vec![keep])));
    }
    let name = story.put(rng, tree);
    if rng.once_in(6) {
        story.change(&name, |told| {
            told.wrong.insert("capability");
        });
    }
}

/// A blob is not there, or an entry is of another session.
fn forget(rng: &mut Rng, story: &mut Story, entry: &Name) {
    let controls = story.controls();
    match rng.below(5) {
        0 | 1 if *entry != story.genesis => {
            story.blobs.remove(entry);
        }
        2 if !controls.is_empty() => {
            story.blobs.remove(rng.pick(&controls));
        }
        3 => {
            let class = *rng.pick(&["public", "confidential"]);
            let genesis = story.genesis.clone();
            story.change(&genesis, |told| told.tree.set("class", Some(Node::text(class))));
        }
        _ => {
            let other = story.some(rng, &story.entries());
            story.change(entry, |told| told.set("genesis", Some(Node::link(&other))));
        }
    }
}

/// Makes the blobs of a story: places and seals first, then each after those that it names.
#[must_use]
pub fn sign(story: &Story, maker: &Maker) -> Signed {
    let mut story = story.clone();
    settle(&mut story);
    let mut pen = Pen { story: &story, maker, made: BTreeMap::new(), open: BTreeSet::new() };
    for name in story.blobs.keys() {
        pen.make(name);
    }
    let became = |name: &Name| pen.made.get(name).map(|(cid, _)| *cid);
    let genesis = became(&story.genesis).unwrap_or_else(|| Cid::sha256(Codec::DagCbor, b"none"));
    Signed {
        genesis: EntryCid::try_from(genesis).expect("dag-cbor under sha2-256"),
        root: became(&story.root).unwrap_or(genesis),
        blobs: pen.made.into_values().map(|(_, bytes)| bytes).collect(),
    }
}

/// Sets what follows from the place of each entry, but for what is wrong on purpose. Entries that stand on nothing stay as they are.
fn settle(story: &mut Story) {
    let Some(owner) = story.owner() else { return };
    let mut children: BTreeMap<Name, Vec<Name>> = BTreeMap::new();
    for name in story.entries() {
        if let Some(prev) = story.blobs[&name].tree.linked("prev") {
            children.entry(prev).or_default().push(name);
        }
    }
    let mut open = vec![(story.genesis.clone(), vec![story.genesis.clone()])];
    while let Some((at, path)) = open.pop() {
        // An entry that was made to stand on one above it is in no place.
        for child in children.get(&at).into_iter().flatten().filter(|child| !path.contains(child)) {
            let mut told = story.blobs[child].clone();
            place(story, &path, &owner, &mut told);
            story.blobs.insert(child.clone(), told);
            let longer = path.iter().chain([child]).cloned().collect();
            open.push((child.clone(), longer));
        }
    }
}

fn place(story: &Story, path: &[Name], owner: &[u8], told: &mut Told) {
    let (Some(first), Some(parent)) = (path.first(), path.last()) else { return };
    let (genesis, parent_name) = (&story.blobs[first].tree, parent);
    let parent = &story.blobs[parent].tree;
    let kind = told.tree.word("type").unwrap_or_default().to_owned();
    let by_owner = told.tree.bytes("signer") == Some(owner) && told.tree.field("space").is_none();
    let opens = by_owner && (kind == "SessionHandoff" || kind == "SessionSeal");
    let seq = path.len() as u64;
    let target = usize::try_from(skip::target(seq)).ok().and_then(|at| path.get(at));
    let count = |value: u64| (value > 0).then_some(Node::Uint(value));
    let mut signers: Vec<&[u8]> =
        path.iter().filter_map(|name| story.blobs[name].tree.bytes("signer")).collect();
    signers.sort_unstable();
    signers.dedup();
    let value = |field: &str, tree: &Node| match field {
        "seq" | "count" => count(seq),
        "epoch" => count(parent.number("epoch") + u64::from(opens)),
        "skip" => target.filter(|skip| *skip != parent_name).map(|skip| Node::link(skip)),
        "ts" => count(tree.number("ts").max(parent.number("ts"))),
        "genesis" => Some(Node::link(first)),
        "participants" => Some(Node::List(signers.iter().map(|key| Node::Bytes(key.to_vec())).collect())),
        "firstTs" => count(genesis.number("ts")),
        _ => count(parent.number("ts")),
    };
    let own = if kind == "SessionSeal" { &SEAL[..] } else { &[] };
    for field in PLACE.iter().chain(own).filter(|field| !told.wrong.contains(**field)) {
        let value = value(field, &told.tree);
        told.tree.set(field, value);
    }
}

/// Writes blobs after those that they name.
struct Pen<'a> {
    story: &'a Story,
    maker: &'a Maker,
    made: BTreeMap<Name, (Cid, Vec<u8>)>,
    /// Being written: what names these stays as it is.
    open: BTreeSet<Name>,
}

impl Pen<'_> {
    fn make(&mut self, name: &Name) {
        let Some(told) = self.story.blobs.get(name) else { return };
        if self.made.contains_key(name) || !self.open.insert(name.clone()) {
            return;
        }
        let mut tree = told.tree.clone();
        for linked in tree.links() {
            self.make(&linked);
        }
        let session = self.named_session(&tree);
        if session {
            self.make(&self.story.genesis);
        }
        let made = &self.made;
        tree.replace_links(&|linked| made.get(linked).map(|(cid, _)| cid.to_bytes()));
        if let (true, Some((cid, _))) = (session, made.get(&self.story.genesis)) {
            tree.set("path", Some(Node::text(&format!("/session-{cid}"))));
        }
        let cited = told.tree.linked("capability").and_then(|cited| made.get(&cited));
        if let (true, Some((_, bytes))) = (told.wrong.contains("capability"), cited) {
            tree.set_link("capability", &Cid::blake2b(Codec::DagCbor, bytes).to_bytes());
        }
        let bytes = self.maker.sign(&tree);
        self.made.insert(name.clone(), (Cid::sha256(Codec::DagCbor, &bytes), bytes));
        self.open.remove(name);
    }

    /// Whether a path names the session by its old name.
    fn named_session(&self, tree: &Node) -> bool {
        let old = Cid::from_bytes(&self.story.genesis).map(|cid| format!("/session-{cid}"));
        tree.word("path").is_some_and(|path| old.is_ok_and(|old| old == path))
    }
}

impl Signed {
    /// The session's file: no words, and no files.
    #[must_use]
    pub fn car(&self) -> Vec<u8> {
        let mut blocks: Vec<(u8, u64, Cid, &[u8])> = self
            .blobs
            .iter()
            .map(|bytes| {
                let (tree, cid) = (Node::read(bytes), Cid::sha256(Codec::DagCbor, bytes));
                let (kind, seq) = tree.map_or((4, 0), |tree| {
                    let rank = match tree.word("type") {
                        _ if cid == self.genesis.cid() => 0,
                        Some("Capability") => 1,
                        Some("CapabilityTombstone") => 2,
                        Some("Ref") => 3,
                        _ => 4,
                    };
                    (rank, if rank == 4 { tree.number("seq") } else { 0 })
                });
                (kind, seq, cid, &bytes[..])
            })
            .collect();
        blocks.sort_unstable();
        blocks.dedup();
        let mut car = Vec::new();
        write_header(&mut car, &[self.root]);
        blocks.iter().for_each(|(_, _, cid, bytes)| write_block(&mut car, cid, bytes));
        car
    }
}

#[cfg(test)]
#[path = "meaning_tests.rs"]
mod tests;
