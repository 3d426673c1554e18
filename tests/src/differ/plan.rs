//! What both verifiers are asked: every vector as it is, then mutants, sets and files, all decided by a seed.

use std::path::Path;

use throughline_protocol::block::Block;
use throughline_protocol::car::{CarEvent, CarReader, CidForms, write_block, write_header};
use throughline_protocol::codec::{Map, Value, encode_map};
use throughline_protocol::id::{Cid, Codec};
use throughline_protocol::sign::SigningKey;
use throughline_protocol::testing::key;

use super::answers::payload_kinds;
use super::{Kind, Record};
use crate::fuzz::seeds;
use crate::fuzz::sets::{Bag, Signatures, random_script};
use crate::fuzz::smoke::read_corpus;
use crate::mutate::meaning::{self, Story};
use crate::mutate::tree::{self, Maker};
use crate::mutate::{Rng, bytes};
use crate::with_files::{WithFiles, Without};

/// How many of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Mutants of signed blobs.
    pub blobs: u64,
    /// Mutants of payloads.
    pub payloads: u64,
    /// CIDs.
    pub cids: u64,
    /// Mutants of session CARs.
    pub cars: u64,
    /// Random sets for selection.
    pub sets: u64,
    /// Whole sessions that say something else and are signed again: for selection, or as a file.
    pub meanings: u64,
}

impl Counts {
    /// What every landing compares.
    pub const LANDING: Counts =
        Counts { blobs: 100_000, payloads: 10_000, cids: 10_000, cars: 1_500, sets: 5_000, meanings: 20_000 };

    /// Sets that a run compares unless it is told how many: one costs as much as hundreds of blobs.
    pub const SETS_MAX: u64 = 50_000;

    /// As [`Counts::SETS_MAX`], for sessions that say something else.
    pub const MEANINGS_MAX: u64 = 100_000;

    /// That many blobs, everything else in the proportion of [`Counts::LANDING`]: sets, and files with them, up to
    /// [`Counts::SETS_MAX`], changed sessions up to [`Counts::MEANINGS_MAX`].
    #[must_use]
    pub fn of_blobs(blobs: u64) -> Self {
        let part = |count: u64| (count * blobs / Counts::LANDING.blobs).max(1);
        let landing = Counts::LANDING;
        let meanings = part(landing.meanings).min(Counts::MEANINGS_MAX);
        Counts {
            blobs,
            payloads: part(landing.payloads),
            cids: part(landing.cids),
            cars: 0,
            sets: 0,
            meanings,
        }
        .with_sets(part(landing.sets).min(Counts::SETS_MAX))
    }

    /// These counts with that many sets, and files in the proportion of [`Counts::LANDING`] to them.
    #[must_use]
    pub fn with_sets(self, sets: u64) -> Self {
        let cars = (Counts::LANDING.cars * sets / Counts::LANDING.sets).max(1);
        Counts { cars, sets, ..self }
    }
}

/// Everything that is asked, by number.
#[derive(Debug)]
pub struct Plan {
    seed: u64,
    counts: Counts,
    vectors: Vec<Record>,
    blobs: Vec<Vec<u8>>,
    makers: Makers,
    cars: Vec<Vec<Block>>,
    stories: Vec<Story>,
}

#[derive(Debug)]
struct Makers {
    blobs: Maker,
    payloads: Maker,
}

/// Sessions that are changed again and again.
const STORIES: usize = 160;

const KEY_NAMES: [&str; 11] = [
    "account",
    "device",
    "server1",
    "server2",
    "server3",
    "contributor",
    "reader",
    "stranger",
    "publisher",
    "writer",
    "other",
];

impl Plan {
    /// A plan over all vectors, with `more` records that are asked as they are.
    #[must_use]
    pub fn new(seed: u64, counts: Counts, more: Vec<Record>) -> Self {
        let mut blobs = seeds::blobs();
        blobs.extend(fresh_blobs(seed));
        let payloads: Vec<Vec<u8>> =
            seeds::of("payload").into_iter().map(|input| input[1..].to_vec()).collect();
        let files = WithFiles::new();
        let mut cars = seeds::of("session_car");
        cars.extend(Without::ALL.map(|without| files.car(without)));
        let mut vectors = more;
        vectors.extend(kept_records());
        let as_they_are = |kind, list: &[Vec<u8>]| -> Vec<Record> {
            list.iter().map(|bytes| Record { kind, bytes: bytes.clone() }).collect()
        };
        vectors.extend(as_they_are(Kind::Blob, &blobs));
        vectors.extend(as_they_are(Kind::Blob, &seeds::of("codec")));
        vectors.extend(as_they_are(Kind::Car, &cars));
        vectors.extend(as_they_are(Kind::Car, &seeds::of("car")));
        vectors.extend(as_they_are(Kind::Cid, &seeds::of("cid")));
        for kind in payload_kinds() {
            vectors.extend(payloads.iter().map(|block| payload_record(kind, block)));
        }
        let makers = Makers {
            blobs: Maker::new(blobs.iter().map(Vec::as_slice), known_keys()),
            payloads: Maker::new(payloads.iter().map(Vec::as_slice), Vec::new()),
        };
        let cars: Vec<Vec<Block>> = cars.iter().map(|car| blocks(car)).collect();
        let stories = stories(seed, &cars);
        Plan { seed, counts, vectors, blobs, makers, cars, stories }
    }

    /// How many records there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        let Counts { blobs, payloads, cids, cars, sets, meanings } = self.counts;
        self.vectors.len() as u64 + blobs + payloads + cids + cars + sets + meanings
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The record with this number, below [`Plan::len`]. It depends on the seed and the number only.
    #[must_use]
    pub fn record(&self, number: u64) -> Record {
        let mut at = number;
        if let Some(vector) = usize::try_from(at).ok().and_then(|at| self.vectors.get(at)) {
            return vector.clone();
        }
        at -= self.vectors.len() as u64;
        let mut rng = Rng::seeded(self.seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ number);
        let Counts { blobs, payloads, cids, cars, sets, .. } = self.counts;
        for (count, kind) in [
            (blobs, Kind::Blob),
            (payloads, Kind::Payload),
            (cids, Kind::Cid),
            (cars, Kind::Car),
            (sets, Kind::Set),
        ] {
            if at < count {
                return self.mutant(kind, &mut rng);
            }
            at -= count;
        }
        self.meaning(&mut rng)
    }

    fn mutant(&self, kind: Kind, rng: &mut Rng) -> Record {
        match kind {
            Kind::Blob => Record { kind, bytes: self.blob(rng) },
            Kind::Payload => {
                let kinds = payload_kinds();
                let block = self.makers.payloads.mutant(rng);
                payload_record(rng.pick::<&str>(&kinds), &block)
            }
            Kind::Cid => {
                let cid = tree::cid(rng);
                let bytes = if rng.once_in(2) { cid } else { bytes::mutant(rng, &cid, &[], 64) };
                Record { kind, bytes }
            }
            Kind::Car => Record { kind, bytes: self.car(rng) },
            Kind::Set => Record { kind, bytes: set(rng) },
        }
    }

    /// Mostly a mutant that is signed again; now and then one of its bytes.
    fn blob(&self, rng: &mut Rng) -> Vec<u8> {
        if !rng.once_in(6) {
            return self.makers.blobs.mutant(rng);
        }
        let blob = rng.pick(&self.blobs).clone();
        bytes::mutant(rng, &blob, &self.blobs, 20_000)
    }

    /// A session that says something else, for selection or as a file.
    fn meaning(&self, rng: &mut Rng) -> Record {
        let story = rng.pick(&self.stories).clone();
        let maker = &self.makers.blobs;
        let signed = meaning::sign(&meaning::mutant(rng, &story, maker), maker);
        if rng.once_in(3) {
            return set_record(&signed.genesis.cid(), signed.blobs.into_iter());
        }
        Record { kind: Kind::Car, bytes: signed.car() }
    }

    /// A session's file with blocks missing, moved, twice, changed; or with its bytes changed.
    fn car(&self, rng: &mut Rng) -> Vec<u8> {
        let mut blocks = rng.pick(&self.cars).clone();
        let root = blocks.remove(0);
        for _ in 0..=rng.below(2) {
            let at = rng.below(blocks.len());
            match rng.below(6) {
                0 => {
                    blocks.remove(at);
                }
                1 => {
                    let to = rng.below(blocks.len());
                    blocks.swap(at, to);
                }
                2 => {
                    let block = blocks[at].clone();
                    blocks.insert(rng.below(blocks.len() + 1), block);
                }
                3 => {
                    let other = rng.pick(&self.cars).clone();
                    blocks.insert(at, rng.pick(&other).clone());
                }
                4 => blocks.truncate(at.max(1)),
                _ => blocks[at] = Block::of(Codec::DagCbor, self.makers.blobs.mutant(rng)),
            }
            if blocks.is_empty() {
                break;
            }
        }
        let mut car = Vec::new();
        let newest = blocks.iter().rev().find(|block| block.cid().codec() == Codec::DagCbor);
        let told = if rng.once_in(4) { newest.map_or(root.cid(), Block::cid) } else { root.cid() };
        write_header(&mut car, &[told]);
        blocks.iter().for_each(|block| write_block(&mut car, &block.cid(), block.bytes()));
        if rng.once_in(5) { bytes::mutant(rng, &car, &[], 1 << 20) } else { car }
    }
}

/// The records of `tests/differ`, on which the verifiers once differed.
///
/// # Panics
/// When a file there is no record.
#[must_use]
pub fn kept_records() -> Vec<Record> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("differ");
    let files = read_corpus(&directory).into_iter().filter(|(name, _)| name != "README.md");
    files
        .map(|(name, frame)| Record::of_frame(&frame).unwrap_or_else(|| panic!("{name} is no record")))
        .collect()
}

/// A payload block and whose it is said to be.
fn payload_record(kind: &str, block: &[u8]) -> Record {
    Record { kind: Kind::Payload, bytes: [kind.as_bytes(), &[0], block].concat() }
}

/// A set of signed blobs, some of them mutants.
fn set(rng: &mut Rng) -> Vec<u8> {
    let acts = [3, 6, 10, 14, 20][rng.below(5)];
    let script = random_script(rng, acts);
    let bag = Bag::of_script(&script, Signatures::Real);
    set_record(&bag.session.genesis().cid(), bag.held.iter().map(|made| made.bytes().to_vec())).bytes
}

/// The record of a set.
#[must_use]
pub fn set_record(genesis: &Cid, blobs: impl Iterator<Item = Vec<u8>>) -> Record {
    let blobs: Vec<Value<'_>> = blobs.map(Value::from).collect();
    Record { kind: Kind::Set, bytes: encode_map(&Map::new().with("blobs", blobs).with("genesis", *genesis)) }
}

/// Blobs that no vector has: those of a random session of this seed.
fn fresh_blobs(seed: u64) -> Vec<Vec<u8>> {
    let mut rng = Rng::seeded(seed);
    (0..8)
        .flat_map(|_| {
            let script = random_script(&mut rng, 24);
            Bag::of_script(&script, Signatures::Real).held
        })
        .map(|made| made.bytes().to_vec())
        .collect()
}

/// Sessions to change: those of the vectors that are small, and random ones.
fn stories(seed: u64, cars: &[Vec<Block>]) -> Vec<Story> {
    let of_file = |car: &Vec<Block>| {
        let (root, blocks) = car.split_first()?;
        Story::of(blocks.iter().map(|block| &block.bytes()[..]), Some(&root.cid()))
    };
    let mut stories: Vec<Story> = cars.iter().filter_map(of_file).collect();
    let mut rng = Rng::seeded(seed ^ 0x5709);
    while stories.len() < STORIES {
        let acts = [3, 5, 8, 12][rng.below(4)];
        let bag = Bag::of_script(&random_script(&mut rng, acts), Signatures::Real);
        let blobs: Vec<&[u8]> = bag.held.iter().map(|made| made.bytes()).collect();
        stories.extend(Story::of(blobs, None));
    }
    stories
}

/// The keys of all fixtures: those of our vectors by name, those of Seed's by their seeds.
pub(crate) fn known_keys() -> Vec<SigningKey> {
    let seeds = seeds::signing_seeds();
    KEY_NAMES.into_iter().map(key).chain(seeds.iter().map(SigningKey::from_seed)).collect()
}

/// The blocks of a CAR; before them one that stands for its root.
fn blocks(car: &[u8]) -> Vec<Block> {
    let mut reader = CarReader::new(CidForms::V1);
    reader.push(car);
    let (mut root, mut blocks) = (None, Vec::new());
    while let Some(Ok(event)) = reader.next() {
        match event {
            CarEvent::Roots(roots) => root = roots.first().copied(),
            CarEvent::Block(block) => blocks.push(block),
        }
    }
    let head = blocks.iter().find(|block| Some(block.cid()) == root).or(blocks.last());
    let head = head.cloned().unwrap_or_else(|| Block::of(Codec::Raw, &b"none"[..]));
    blocks.insert(0, head);
    blocks
}
