//! Mutations of the tree of a DAG-CBOR item: what the strict codec, the schemas and the authority rules are there to refuse.
//!
//! A byte mutant hardly ever gets past the signature. Here the mutant is signed again with the key of the signer it names, when that
//! is a test key, so that it is judged by what it says. A tree may be written in ways that are not canonical: long heads,
//! indefinite lengths, keys out of order or twice.

use std::collections::BTreeMap;

use throughline_protocol::codec::{self, Value};
use throughline_protocol::id::{Cid, Codec, Principal};
use throughline_protocol::sign::SigningKey;

use super::Rng;
use super::crypto::{self, Flaw};
use super::words::{FIELD_NAMES, WORDS};

/// Nodes of one tree that are mutated; larger trees are mutated near their start.
const NODES_MAX: usize = 20_000;

/// An item, and how it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// An unsigned integer.
    Uint(u64),
    /// A negative integer −1 − n.
    Negative(u64),
    /// A byte string.
    Bytes(Vec<u8>),
    /// A text string, of bytes that need not be UTF-8.
    Text(Vec<u8>),
    /// An array.
    List(Vec<Node>),
    /// A map in the order given.
    Map(Vec<(Node, Node)>),
    /// A tag.
    Tag(u64, Box<Node>),
    /// Bytes as they are: simple values, floats, anything.
    Raw(Vec<u8>),
    /// An item whose head has this many bytes of argument: 1, 2, 4 or 8.
    Wide(usize, Box<Node>),
    /// A string, array or map of indefinite length.
    Indefinite(Box<Node>),
}

impl Node {
    /// The tree of canonical bytes; none of others.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (value, _) = codec::decode(bytes, 64).ok()?;
        Some(Node::of(&value))
    }

    fn of(value: &Value<'_>) -> Self {
        match value {
            Value::Null => Node::Raw(vec![0xf6]),
            Value::Bool(value) => Node::Raw(vec![0xf4 + u8::from(*value)]),
            Value::Int(int) if *int < 0 => Node::Negative(int.unsigned_abs() - 1),
            Value::Int(int) => Node::Uint(int.unsigned_abs()),
            Value::Bytes(bytes) => Node::Bytes(bytes.to_vec()),
            Value::Text(text) => Node::Text(text.as_bytes().to_vec()),
            Value::List(items) => Node::List(items.iter().map(Node::of).collect()),
            Value::Map(map) => {
                Node::Map(map.iter().map(|(key, value)| (text(key), Node::of(value))).collect())
            }
            Value::Link(cid) => link(&cid.to_bytes()),
        }
    }

    /// The bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(512);
        self.write(&mut out, 0);
        out
    }

    fn write(&self, out: &mut Vec<u8>, width: usize) {
        match self {
            Node::Uint(argument) => head(out, 0, *argument, width),
            Node::Negative(argument) => head(out, 1, *argument, width),
            Node::Bytes(bytes) => {
                head(out, 2, bytes.len() as u64, width);
                out.extend(bytes);
            }
            Node::Text(bytes) => {
                head(out, 3, bytes.len() as u64, width);
                out.extend(bytes);
            }
            Node::List(items) => {
                head(out, 4, items.len() as u64, width);
                items.iter().for_each(|item| item.write(out, 0));
            }
            Node::Map(pairs) => {
                head(out, 5, pairs.len() as u64, width);
                for (key, value) in pairs {
                    key.write(out, 0);
                    value.write(out, 0);
                }
            }
            Node::Tag(tag, inner) => {
                head(out, 6, *tag, width);
                inner.write(out, 0);
            }
            Node::Raw(bytes) => out.extend(bytes),
            Node::Wide(width, inner) => inner.write(out, *width),
            Node::Indefinite(inner) => inner.write_indefinite(out),
        }
    }

    fn write_indefinite(&self, out: &mut Vec<u8>) {
        match self {
            Node::Bytes(_) | Node::Text(_) => {
                out.push(if matches!(self, Node::Bytes(_)) { 0x5f } else { 0x7f });
                self.write(out, 0);
            }
            Node::List(items) => {
                out.push(0x9f);
                items.iter().for_each(|item| item.write(out, 0));
            }
            Node::Map(pairs) => {
                out.push(0xbf);
                for (key, value) in pairs {
                    key.write(out, 0);
                    value.write(out, 0);
                }
            }
            Node::Uint(_)
            | Node::Negative(_)
            | Node::Tag(..)
            | Node::Raw(_)
            | Node::Wide(..)
            | Node::Indefinite(_) => return self.write(out, 0),
        }
        out.push(0xff);
    }

    /// The value of a field of a map.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Node> {
        let Node::Map(pairs) = self else { return None };
        pairs.iter().find(|(key, _)| *key == text(name)).map(|(_, value)| value)
    }

    /// The text of a field.
    #[must_use]
    pub fn word(&self, name: &str) -> Option<&str> {
        let Node::Text(bytes) = self.field(name)? else { return None };
        std::str::from_utf8(bytes).ok()
    }

    /// The number of a field; 0 where there is none, as the default is written.
    #[must_use]
    pub fn number(&self, name: &str) -> u64 {
        if let Some(Node::Uint(value)) = self.field(name) { *value } else { 0 }
    }

    /// The bytes of a field.
    #[must_use]
    pub fn bytes(&self, name: &str) -> Option<&[u8]> {
        if let Node::Bytes(bytes) = self.field(name)? { Some(bytes) } else { None }
    }

    /// The CID that a field links.
    #[must_use]
    pub fn linked(&self, name: &str) -> Option<Vec<u8>> {
        self.field(name)?.cid().map(<[u8]>::to_vec)
    }

    /// Sets a field of a map where its key belongs, or takes it away.
    pub fn set(&mut self, name: &str, value: Option<Node>) {
        let Node::Map(pairs) = self else { return };
        let key = text(name);
        pairs.retain(|(held, _)| *held != key);
        let Some(value) = value else { return };
        let order = |key: &Node| {
            let bytes = key.to_bytes();
            (bytes.len(), bytes)
        };
        let at = pairs.partition_point(|(held, _)| order(held) < order(&key));
        pairs.insert(at, (key, value));
    }

    /// Sets a field to a link.
    pub fn set_link(&mut self, name: &str, cid: &[u8]) {
        self.set(name, Some(link(cid)));
    }

    /// A link.
    #[must_use]
    pub fn link(cid: &[u8]) -> Self {
        link(cid)
    }

    /// A text.
    #[must_use]
    pub fn text(text: &str) -> Self {
        self::text(text)
    }

    fn cid(&self) -> Option<&[u8]> {
        let Node::Tag(42, inner) = self else { return None };
        let Node::Bytes(bytes) = &**inner else { return None };
        bytes.split_first().map(|(_, cid)| cid)
    }

    /// Every CID that is linked in it.
    #[must_use]
    pub fn links(&self) -> Vec<Vec<u8>> {
        match self {
            Node::List(items) => items.iter().flat_map(Node::links).collect(),
            Node::Map(pairs) => pairs.iter().flat_map(|(_, value)| value.links()).collect(),
            Node::Tag(..) => self.cid().map(<[u8]>::to_vec).into_iter().collect(),
            Node::Wide(_, inner) | Node::Indefinite(inner) => inner.links(),
            Node::Uint(_) | Node::Negative(_) | Node::Bytes(_) | Node::Text(_) | Node::Raw(_) => Vec::new(),
        }
    }

    /// Exchanges CIDs that are linked for what they became.
    pub fn replace_links(&mut self, became: &dyn Fn(&[u8]) -> Option<Vec<u8>>) {
        match self {
            Node::List(items) => items.iter_mut().for_each(|item| item.replace_links(became)),
            Node::Map(pairs) => pairs.iter_mut().for_each(|(_, value)| value.replace_links(became)),
            Node::Tag(..) => {
                if let Some(cid) = self.cid().and_then(became) {
                    *self = link(&cid);
                }
            }
            Node::Wide(_, inner) | Node::Indefinite(inner) => inner.replace_links(became),
            Node::Uint(_) | Node::Negative(_) | Node::Bytes(_) | Node::Text(_) | Node::Raw(_) => {}
        }
    }

    fn field_mut(&mut self, name: &str) -> Option<&mut Node> {
        let Node::Map(pairs) = self else { return None };
        pairs.iter_mut().find(|(key, _)| *key == text(name)).map(|(_, value)| value)
    }

    fn count(&self) -> usize {
        1 + match self {
            Node::List(items) => items.iter().map(Node::count).sum(),
            Node::Map(pairs) => pairs.iter().map(|(_, value)| value.count()).sum(),
            Node::Tag(_, inner) | Node::Wide(_, inner) | Node::Indefinite(inner) => inner.count(),
            Node::Uint(_) | Node::Negative(_) | Node::Bytes(_) | Node::Text(_) | Node::Raw(_) => 0,
        }
    }

    /// The node with this number, counted depth first.
    fn at(&mut self, number: &mut usize) -> Option<&mut Node> {
        if *number == 0 {
            return Some(self);
        }
        *number -= 1;
        match self {
            Node::List(items) => items.iter_mut().find_map(|item| item.at(number)),
            Node::Map(pairs) => pairs.iter_mut().find_map(|(_, value)| value.at(number)),
            Node::Tag(_, inner) | Node::Wide(_, inner) | Node::Indefinite(inner) => inner.at(number),
            Node::Uint(_) | Node::Negative(_) | Node::Bytes(_) | Node::Text(_) | Node::Raw(_) => None,
        }
    }
}

fn text(name: &str) -> Node {
    Node::Text(name.as_bytes().to_vec())
}

fn link(cid: &[u8]) -> Node {
    Node::Tag(42, Box::new(Node::Bytes([&[0], cid].concat())))
}

fn head(out: &mut Vec<u8>, major: u8, argument: u64, width: usize) {
    let bytes = argument.to_be_bytes();
    let needed = match argument {
        0..=23 => 0,
        24..=0xff => 1,
        0x100..=0xffff => 2,
        0x1_0000..=0xffff_ffff => 4,
        _ => 8,
    };
    let width = width.max(needed);
    let info = match width {
        0 => bytes[7],
        1 => 24,
        2 => 25,
        4 => 26,
        _ => 27,
    };
    out.push(major << 5 | info);
    out.extend(&bytes[8 - width..]);
}

/// Makes mutants of a pool of blobs.
#[derive(Debug)]
pub struct Maker {
    pool: Vec<Node>,
    keys: BTreeMap<Vec<u8>, SigningKey>,
    /// Keys that no verifier takes, as principals.
    bad_principals: Vec<Vec<u8>>,
}

impl Maker {
    /// A maker of mutants of these blobs, which are signed by these keys; what is no canonical item is left out.
    #[must_use]
    pub fn new<'a>(blobs: impl IntoIterator<Item = &'a [u8]>, keys: Vec<SigningKey>) -> Self {
        let bad = crypto::bad_keys().into_iter();
        Maker {
            pool: blobs.into_iter().filter_map(Node::read).collect(),
            keys: keys.into_iter().map(|key| (key.principal().to_bytes().to_vec(), key)).collect(),
            bad_principals: bad.map(|key| Principal::from_key(key).to_bytes().to_vec()).collect(),
        }
    }

    /// Number of blobs in the pool.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pool.len()
    }

    /// Whether the pool is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pool.is_empty()
    }

    /// A key that can sign.
    ///
    /// # Panics
    /// When it has none.
    pub fn principal(&self, rng: &mut Rng) -> Vec<u8> {
        let names: Vec<&Vec<u8>> = self.keys.keys().collect();
        (*rng.pick(&names)).clone()
    }

    /// The bytes of a tree, signed by whom it names as its signer.
    #[must_use]
    pub fn sign(&self, tree: &Node) -> Vec<u8> {
        self.signed(tree, None)
    }

    /// A mutant, mostly signed again as an honest writer would.
    ///
    /// # Panics
    /// When the pool is empty.
    pub fn mutant(&self, rng: &mut Rng) -> Vec<u8> {
        let mut tree = rng.pick(&self.pool).clone();
        for _ in 0..[1, 1, 1, 2, 3][rng.below(5)] {
            self.step(rng, &mut tree);
        }
        match rng.below(12) {
            0 => tree.to_bytes(),
            1 => self.signed(&tree, Some(*rng.pick(Flaw::ALL))),
            _ => self.signed(&tree, None),
        }
    }

    /// The bytes of a tree with the signature that its signer would give it; as it stands when that is no key of ours.
    fn signed(&self, tree: &Node, flaw: Option<Flaw>) -> Vec<u8> {
        let mut bytes = tree.to_bytes();
        let Some(Node::Bytes(signer)) = tree.field("signer") else { return bytes };
        let Some(key) = self.keys.get(signer) else { return bytes };
        if !matches!(tree.field("sig"), Some(Node::Bytes(sig)) if sig.len() == 64) {
            return bytes;
        }
        let Some(offset) = signature_offset(tree) else { return bytes };
        bytes[offset..offset + 64].fill(0);
        let signature = match flaw {
            None => key.sign(&bytes),
            Some(flaw) => flaw.sign(key, &bytes),
        };
        bytes[offset..offset + 64].copy_from_slice(&signature);
        bytes
    }

    fn step(&self, rng: &mut Rng, tree: &mut Node) {
        match rng.below(10) {
            0 => self.change_signer(rng, tree),
            1..=3 => self.change_fields(rng, tree),
            _ => {
                let mut number = rng.below(tree.count().min(NODES_MAX));
                if let Some(node) = tree.at(&mut number) {
                    self.change(rng, node);
                }
            }
        }
    }

    fn change_signer(&self, rng: &mut Rng, tree: &mut Node) {
        if self.keys.is_empty() {
            return;
        }
        let principal = match rng.below(4) {
            0 => rng.pick(&self.bad_principals).clone(),
            _ => {
                let names: Vec<&Vec<u8>> = self.keys.keys().collect();
                (*rng.pick(&names)).clone()
            }
        };
        let name = *rng.pick(&["signer", "signer", "signer", "space", "delegate", "holder", "audience"]);
        if let Some(field) = tree.field_mut(name) {
            *field = Node::Bytes(principal);
        }
    }

    /// What one field says, or that it is there at all.
    fn change_fields(&self, rng: &mut Rng, tree: &mut Node) {
        let other = rng.pick(&self.pool).clone();
        // Maps inside the blob have fields as well.
        let mut number = if rng.once_in(3) { rng.below(tree.count().min(NODES_MAX)) } else { 0 };
        let Some(Node::Map(pairs)) = tree.at(&mut number) else { return };
        let at = rng.below(pairs.len());
        match rng.below(8) {
            0 if !pairs.is_empty() => {
                pairs.remove(at);
            }
            1 if !pairs.is_empty() => {
                let to = rng.below(pairs.len());
                let value = pairs[at].1.clone();
                pairs[at].1 = std::mem::replace(&mut pairs[to].1, value);
            }
            2 if !pairs.is_empty() => {
                let to = rng.below(pairs.len());
                pairs.swap(at, to);
                return;
            }
            3 if !pairs.is_empty() => {
                let pair = pairs[at].clone();
                pairs.insert(at, pair);
                return;
            }
            4 if !pairs.is_empty() => pairs[at].0 = field_name(rng),
            5 => pairs.push((field_name(rng), leaf(rng))),
            // A field of another blob, in place of its namesake or beside the others.
            _ => {
                let Node::Map(others) = other else { return };
                if others.is_empty() {
                    return;
                }
                let (key, value) = others[rng.below(others.len())].clone();
                match pairs.iter_mut().find(|(held, _)| *held == key) {
                    Some((_, held)) => *held = value,
                    None => pairs.push((key, value)),
                }
            }
        }
        if !rng.once_in(16) {
            pairs.sort_by_cached_key(|(key, _)| {
                let bytes = key.to_bytes();
                (bytes.len(), bytes)
            });
        }
    }

    fn change(&self, rng: &mut Rng, node: &mut Node) {
        match rng.below(12) {
            0 => {
                let width = [1, 2, 4, 8][rng.below(4)];
                wrap(node, |inner| Node::Wide(width, inner));
            }
            1 if rng.once_in(3) => wrap(node, Node::Indefinite),
            2 => *node = leaf(rng),
            3 => {
                let mut other = rng.pick(&self.pool).clone();
                let mut number = rng.below(other.count().min(NODES_MAX));
                if let Some(part) = other.at(&mut number) {
                    *node = part.clone();
                }
            }
            4 if rng.once_in(3) => {
                let tag = [42, 0, 43, 55_799][rng.below(4)];
                wrap(node, |inner| Node::Tag(tag, inner));
            }
            5 if rng.once_in(3) => {
                for _ in 0..[1, 15, 62, 63, 64][rng.below(5)] {
                    wrap(node, |inner| Node::List(vec![*inner]));
                }
            }
            _ => change_inside(rng, node),
        }
    }
}

/// Where the 64 bytes of the signature lie: where two writings that differ in nothing else begin to differ.
fn signature_offset(tree: &Node) -> Option<usize> {
    let with = |byte: u8| {
        let mut tree = tree.clone();
        *tree.field_mut("sig")? = Node::Bytes(vec![byte; 64]);
        Some(tree.to_bytes())
    };
    let (low, high) = (with(0)?, with(0xff)?);
    low.iter().zip(&high).position(|(low, high)| low != high)
}

fn wrap(node: &mut Node, how: impl FnOnce(Box<Node>) -> Node) {
    let inner = std::mem::replace(node, Node::Uint(0));
    *node = how(Box::new(inner));
}

fn field_name(rng: &mut Rng) -> Node {
    text(rng.pick::<&str>(FIELD_NAMES))
}

/// A small item, often one that has to be left out or is out of range.
fn leaf(rng: &mut Rng) -> Node {
    match rng.below(16) {
        0 => Node::Raw(vec![0xf6]),
        1 => Node::Raw(vec![0xf4]),
        2 => Node::Raw(vec![0xf5]),
        3 => Node::Raw(rng.pick(&[&[0xf7][..], &[0xf8, 0x20], &[0xe0], &[0xff], &[0xfc]]).to_vec()),
        4 => Node::Raw(rng.pick(&[&[0xf9, 0x3c, 0x00][..], &[0xfb, 0, 0, 0, 0, 0, 0, 0, 0]]).to_vec()),
        5 => Node::Text(Vec::new()),
        6 => Node::Bytes(Vec::new()),
        7 => Node::List(Vec::new()),
        8 => Node::Map(Vec::new()),
        9 | 10 => integer(rng),
        11 => Node::Negative([0, 1, (1 << 53) - 2, (1 << 53) - 1, u64::MAX][rng.below(5)]),
        12 => text(rng.pick::<&str>(WORDS)),
        13 => {
            let length = *rng.pick(&[1, 16, 31, 32, 33, 34, 64, 65]);
            Node::Bytes(rng.bytes(length))
        }
        14 => Node::Map(vec![(text("n"), integer(rng))]),
        _ => link(&cid(rng)),
    }
}

fn integer(rng: &mut Rng) -> Node {
    const EDGES: &[u64] = &[
        0,
        1,
        2,
        23,
        24,
        255,
        256,
        65_535,
        65_536,
        1_048_576,
        1_048_577,
        u32::MAX as u64,
        (1 << 48) - 1,
        1 << 48,
        (1 << 53) - 1,
        1 << 53,
        u64::MAX,
    ];
    Node::Uint(*rng.pick(EDGES))
}

/// A CID in one of the forms that are, and mostly are not, taken. Also what `E_CID_…` codes are tried on by themselves.
#[must_use]
pub fn cid(rng: &mut Rng) -> Vec<u8> {
    let digest = rng.array();
    let codec = [Codec::DagCbor, Codec::Raw, Codec::DagPb][rng.below(3)];
    let good = match rng.below(3) {
        0 => Cid::blake2b(codec, &digest),
        _ => Cid::sha256(codec, &digest),
    };
    let mut bytes = good.to_bytes();
    match rng.below(14) {
        0 => bytes.push(0),
        1 => bytes.truncate(rng.below(bytes.len())),
        // CIDv0, identity, truncated hash, unknown codec and hash, long varints.
        2 => bytes = [&[0x12, 0x20][..], &digest].concat(),
        3 => bytes = [&[0x01, 0x71, 0x00, 0x04][..], &digest[..4]].concat(),
        4 => bytes = [&[0x01, 0x71, 0x12, 0x14][..], &digest[..20]].concat(),
        5 => bytes = [&[0x01, 0x55, 0x12, 0x21][..], &digest, &[0]].concat(),
        6 => bytes = [&[0x01, 0x70 + rng.byte() % 16, 0x12, 0x20][..], &digest].concat(),
        7 => bytes = [&[0x01, 0x71, rng.byte() & 0x7f, 0x20][..], &digest].concat(),
        8 => bytes = [&[0x81, 0x00, 0x71, 0x12, 0x20][..], &digest].concat(),
        9 => bytes = [&[0x01, 0xf1, 0x00, 0x12, 0x20][..], &digest].concat(),
        10 => bytes = [&[0x01, 0x71, 0x92, 0x00, 0x20][..], &digest].concat(),
        11 => bytes = [&[0x01, 0x71, 0x12, 0xa0, 0x00][..], &digest].concat(),
        12 => bytes[0] = [0, 2, 3, 0xff][rng.below(4)],
        _ => {}
    }
    bytes
}

fn change_inside(rng: &mut Rng, node: &mut Node) {
    match node {
        Node::Uint(value) if rng.once_in(2) => {
            *value = if rng.once_in(2) { value.wrapping_add(1) } else { value.wrapping_sub(1) };
        }
        Node::Uint(_) | Node::Negative(_) => *node = integer(rng),
        Node::Bytes(bytes) => change_bytes(rng, bytes),
        Node::Text(text) => change_text(rng, text),
        Node::List(items) => change_list(rng, items),
        Node::Map(pairs) if !pairs.is_empty() => {
            let at = rng.below(pairs.len());
            pairs[at].1 = leaf(rng);
        }
        Node::Tag(_, inner) => {
            if let Node::Bytes(bytes) = &mut **inner {
                if rng.once_in(2) {
                    bytes.truncate(1);
                    bytes.extend(cid(rng));
                } else {
                    change_bytes(rng, bytes);
                }
            }
        }
        Node::Wide(_, inner) | Node::Indefinite(inner) => change_inside(rng, inner),
        Node::Map(_) | Node::Raw(_) => *node = leaf(rng),
    }
}

fn change_bytes(rng: &mut Rng, bytes: &mut Vec<u8>) {
    match rng.below(4) {
        0 => bytes.push(rng.byte()),
        1 => {
            bytes.pop();
        }
        2 if !bytes.is_empty() => {
            // The front says what the bytes are: a key codec, a CID's form.
            let at = rng.below(bytes.len().min(6));
            bytes[at] ^= 1 << rng.below(8);
        }
        _ if !bytes.is_empty() => {
            let at = rng.below(bytes.len());
            bytes[at] ^= 1 << rng.below(8);
        }
        _ => {}
    }
}

fn change_text(rng: &mut Rng, text: &mut Vec<u8>) {
    const BITS: &[&[u8]] = &[
        b"\x00",
        b"\x1b",
        b"\x7f",
        b"\n",
        b" ",
        b"/",
        b".",
        b"..",
        b"%41",
        b"\xc2\x85",
        b"\xc3\xa9",
        b"e\xcc\x81",
        b"\xe2\x80\xae",
        b"\xe2\x81\xa6",
        b"\xef\xbb\xbf",
        b"\xf0\x9f\x98\x80",
        b"\xed\xa0\x80",
        b"\xc0\x80",
        b"\xff",
    ];
    match rng.below(6) {
        0 => text.clear(),
        1 => *text = rng.pick(WORDS).as_bytes().to_vec(),
        2 => {
            let length = [64, 65, 128, 129, 200, 201, 256, 257, 512, 513, 1_024, 1_025, 4_097][rng.below(13)];
            text.resize(length, b'a');
        }
        3 => text.make_ascii_uppercase(),
        _ => {
            let at = rng.below(text.len() + 1);
            text.splice(at..at, rng.pick(BITS).iter().copied());
        }
    }
}

fn change_list(rng: &mut Rng, items: &mut Vec<Node>) {
    if items.is_empty() {
        return items.push(leaf(rng));
    }
    let at = rng.below(items.len());
    match rng.below(5) {
        0 => {
            items.remove(at);
        }
        1 => {
            let to = rng.below(items.len());
            items.swap(at, to);
        }
        2 => {
            let item = items[at].clone();
            let count = [64, 65, 128, 129, 200, 201, 256, 257][rng.below(8)];
            items.resize(count, item);
        }
        3 => items.insert(at, leaf(rng)),
        _ => {
            let item = items[at].clone();
            items.insert(at, item);
        }
    }
}

#[cfg(test)]
#[path = "tree_tests.rs"]
mod tests;
