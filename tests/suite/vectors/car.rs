//! The session's CAR, written byte for byte and read; CARs and UnixFS files of other programs.

use std::collections::BTreeMap;

use serde_json::Value as Json;
use throughline_protocol::block::{Block, Decoded, sha256};
use throughline_protocol::car::session::{SessionCar, SessionItem, SessionReader};
use throughline_protocol::car::{
    CarContent, CarEvent, CarReader, CidForms, CollectLimits, EntryBlocks, SessionWriter, collect,
    write_block, write_header,
};
use throughline_protocol::code::{Code, Reject};
use throughline_protocol::control::Control;
use throughline_protocol::entry::{Body, Entry};
use throughline_protocol::id::{Cid, Codec, EntryCid};
use throughline_protocol::unixfs::{FileBuilder, FileReader, Layout, Step};

use super::{Faults, Files, hex, records, text};

pub(super) fn check(files: &Files) {
    let mut faults = Faults::default();
    let chain = Chain::read(&files.json("session/chain.json"));
    let listing = files.json("session/session.car.json");
    let car = files.bytes("session/session.car");
    check_session(&chain, &listing, &car, &mut faults);
    check_cuts(&car, &mut faults);
    check_order(&car, &mut faults);
    check_changes(&car, &mut faults);
    check_foreign(files, &mut faults);
    check_files(&files.json("seed/unixfs.json"), &mut faults);
    faults.assert_none();
}

/// The session of `chain.json`.
struct Chain {
    head: EntryCid,
    control: Vec<Decoded<Control>>,
    entries: Vec<Link>,
}

struct Link {
    entry: Decoded<Entry>,
    payload: Option<Vec<u8>>,
    config: Option<Vec<u8>>,
    files: Vec<Block>,
}

impl Link {
    fn blocks(&self) -> EntryBlocks<'_> {
        EntryBlocks {
            entry: self.entry.bytes(),
            payload: self.payload.as_deref(),
            config: self.config.as_deref(),
            files: &self.files,
        }
    }
}

impl Chain {
    fn read(json: &Json) -> Self {
        let blocks: BTreeMap<Cid, Vec<u8>> = json["blocks"]
            .as_array()
            .unwrap()
            .iter()
            .map(|block| (text(block, "cid").parse().unwrap(), hex(block, "bytes_hex")))
            .collect();
        let link = |record: &Json| {
            let entry = Decoded::<Entry>::decode(hex(record, "bytes_hex")).unwrap();
            let config =
                if let Body::ModelResponse(response) = &entry.value().body { response.config } else { None };
            let payload = record.get("payload").map(|payload| hex(payload, "bytes_hex"));
            // Attachments of the payload that the vectors hold.
            let attached = record["payload"]["decoded"]["attachments"].as_array().into_iter().flatten();
            let cids = attached.map(|attachment| text(&attachment["cid"], "/").parse::<Cid>().unwrap());
            Link {
                config: config.map(|cid| blocks[&cid.cid()].clone()),
                files: cids.map(|cid| Block::check(cid, blocks[&cid].clone()).unwrap()).collect(),
                entry,
                payload,
            }
        };
        let control = records(&json["control"], 8).iter();
        Chain {
            head: text(&json["expected"], "head").parse().unwrap(),
            control: control.map(|blob| Decoded::decode(hex(blob, "bytes_hex")).unwrap()).collect(),
            entries: records(&json["entries"], 41).iter().map(link).collect(),
        }
    }

    fn control(&self) -> impl Iterator<Item = (&Control, &[u8])> {
        self.control.iter().map(|blob| (blob.value(), &blob.bytes()[..]))
    }
}

fn read_session(bytes: &[u8], step: usize) -> Result<(Vec<SessionItem>, SessionCar), Reject> {
    let mut reader = SessionReader::new();
    let mut items = Vec::new();
    for chunk in bytes.chunks(step) {
        reader.push(chunk);
        while let Some(item) = reader.next() {
            items.push(item?);
        }
    }
    Ok((items, reader.finish()?))
}

fn session_code(bytes: &[u8]) -> Result<(), Code> {
    read_session(bytes, usize::MAX).map(|_| ()).map_err(|reject| reject.code)
}

/// A CAR's roots and blocks.
fn read_car(bytes: &[u8], forms: CidForms) -> Result<(Vec<Cid>, Vec<Block>), Reject> {
    let mut reader = CarReader::new(forms);
    let (mut roots, mut blocks) = (Vec::new(), Vec::new());
    reader.push(bytes);
    while let Some(event) = reader.next() {
        match event? {
            CarEvent::Roots(read) => roots = read,
            CarEvent::Block(block) => blocks.push(block),
        }
    }
    reader.finish()?;
    Ok((roots, blocks))
}

fn write_car(roots: &[Cid], blocks: &[Block]) -> Vec<u8> {
    let mut out = Vec::new();
    write_header(&mut out, roots);
    for block in blocks {
        write_block(&mut out, &block.cid(), block.bytes());
    }
    out
}

fn check_session(chain: &Chain, listing: &Json, car: &[u8], faults: &mut Faults) {
    faults.equal("sha256", data_encoding::HEXLOWER.encode(&sha256(car)).as_str(), text(listing, "sha256"));
    let mut out = Vec::new();
    // The order in which control blobs are given does not matter.
    let control: Vec<_> = chain.control().collect();
    let (genesis, later) = chain.entries.split_first().unwrap();
    let mut writer = SessionWriter::begin(&mut out, chain.head, &genesis.blocks(), control.into_iter().rev());
    for link in later {
        writer.entry(&mut out, &link.blocks());
    }
    faults.equal("written", out == car, true);

    let order = listing["order"].as_array().unwrap();
    for step in [1, 1_000, usize::MAX] {
        let (items, end) = read_session(car, step).unwrap();
        let expected = SessionCar { root: chain.head, genesis: Some(genesis.entry.cid()) };
        faults.equal("end", end, expected);
        faults.equal("blocks", items.len(), order.len());
        for (item, listed) in items.iter().zip(order) {
            let (what, cid) = describe(item);
            faults.equal("cid", cid.to_string().as_str(), text(listed, "cid"));
            faults.equal(text(listed, "what"), text(listed, "what").starts_with(what), true);
        }
    }
    // The same blocks in any order, as a stranger might write them.
    let (roots, mut blocks) = read_car(car, CidForms::V1).unwrap();
    blocks.reverse();
    blocks.extend_from_slice(&blocks.clone()[..5]);
    let limits = CollectLimits { blocks_max: 1_000, bytes_max: 1_000_000 };
    let shuffled = write_car(&roots, &blocks);
    let collected: CarContent = collect([&shuffled[..]], CidForms::V1, limits).unwrap();
    let sorted = collected.session_blobs();
    faults.equal("collected entries", sorted.entries.len(), 41);
    faults.equal("collected control", sorted.control.len(), 8);
    faults.equal("collected others", sorted.others.len(), order.len() - 49);
}

/// How the listing begins for such an item, and its CID.
fn describe(item: &SessionItem) -> (&'static str, Cid) {
    match item {
        SessionItem::Genesis(entry) => ("genesis", entry.cid().cid()),
        SessionItem::Entry(entry) => ("entry", entry.cid().cid()),
        SessionItem::Payload { block, .. } => ("payload of", block.cid()),
        SessionItem::Config { block, .. } => ("config named by", block.cid()),
        SessionItem::File { block, .. } => ("file of", block.cid()),
        SessionItem::Control(control) => {
            let what = match control.value() {
                Control::Capability(_) => "chain-cap",
                Control::Tombstone(_) => "chain-tombstone",
                Control::Ref(_) => "chain-ref",
            };
            (what, control.cid().cid())
        }
    }
}

/// A file that was cut is told, unless it was cut between two blocks: then what is there is whole.
fn check_cuts(car: &[u8], faults: &mut Faults) {
    let (roots, blocks) = read_car(car, CidForms::V1).unwrap();
    let borders: Vec<usize> =
        (0..=blocks.len()).map(|count| write_car(&roots, &blocks[..count]).len()).collect();
    let sample = (0..car.len()).step_by(37).chain(borders.iter().flat_map(|border| [border - 1, *border]));
    for cut in sample {
        let read = read_session(&car[..cut], 4_096);
        match borders.iter().position(|border| *border == cut) {
            None => faults.equal("cut", read.unwrap_err().code, Code::CarTruncated),
            Some(count) => {
                let (items, end) = read.unwrap();
                faults.equal("blocks before the cut", items.len(), count);
                faults.equal("root before the cut", end.root.cid(), roots[0]);
            }
        }
    }
}

/// Blocks that are moved, repeated, foreign or follow the head.
fn check_order(car: &[u8], faults: &mut Faults) {
    let (roots, blocks) = read_car(car, CidForms::V1).unwrap();
    let changed = |change: &dyn Fn(&mut Vec<Block>)| {
        let mut blocks = blocks.clone();
        change(&mut blocks);
        session_code(&write_car(&roots, &blocks))
    };
    let order = Err(Code::CarOrder);
    faults.equal("payload before genesis", changed(&|blocks| blocks.swap(0, 1)), order);
    faults.equal("control out of order", changed(&|blocks| blocks.swap(2, 3)), order);
    faults.equal("ref before tombstone", changed(&|blocks| blocks.swap(7, 8)), order);
    faults.equal("control after an entry", changed(&|blocks| blocks.swap(9, 10)), order);
    faults.equal("config before payload", changed(&|blocks| blocks.swap(13, 14)), order);
    faults.equal("payload before its entry", changed(&|blocks| blocks.swap(15, 16)), order);
    let swap_entries = |blocks: &mut Vec<Block>| {
        blocks.swap(15, 17);
        blocks.swap(16, 18);
    };
    faults.equal("entry 4 before entry 3", changed(&swap_entries), order);
    let foreign = Block::of(Codec::Raw, &b"named by nobody"[..]);
    faults.equal("a block nobody names", changed(&|blocks| blocks.insert(12, foreign.clone())), order);

    // Any two blocks that change places: there is one order, so each such file is refused.
    for first in 0..blocks.len() {
        for second in (first + 1..blocks.len()).step_by(7) {
            let swapped = changed(&|blocks| blocks.swap(first, second));
            faults.equal(&format!("blocks {first} and {second}"), swapped.is_err(), true);
        }
    }

    let repeat = |from: usize, to: usize| {
        changed(&|blocks| {
            let block = blocks[from].clone();
            blocks.insert(to, block);
        })
    };
    let dup = Err(Code::CarDup);
    for (what, from, to) in [
        ("genesis", 0, 2),
        ("capability", 2, 3),
        ("entry", 10, 11),
        ("payload", 11, 12),
        ("payload of before", 11, 14),
        ("config", 14, 17),
    ] {
        faults.equal(what, repeat(from, to), dup);
    }

    let entries = blocks.iter().filter(|block| Decoded::<Entry>::decode(block.bytes().clone()).is_ok());
    let entry_39 = entries.rev().nth(1).unwrap().cid();
    let early_root = write_car(&[entry_39], &blocks);
    // The root is a claim; what stands above it is for the verifier.
    faults.equal("an entry after the root", session_code(&early_root), Ok(()));
    faults.equal("no root", session_code(&write_car(&[], &blocks)), Err(Code::CarRoot));
    let twice = [roots[0], roots[0]];
    faults.equal("two roots", session_code(&write_car(&twice, &blocks)), Err(Code::CarRoot));
    let raw = Cid::sha256(Codec::Raw, b"");
    faults.equal("a raw root", session_code(&write_car(&[raw], &blocks)), Err(Code::CarRoot));
}

/// One changed byte anywhere is refused: hashes cover what lengths and CIDs do not.
fn check_changes(car: &[u8], faults: &mut Faults) {
    for at in (0..car.len()).step_by(211).chain(0..120) {
        let mut changed = car.to_vec();
        changed[at] ^= 0x10;
        // A changed root is another file, in which the head is missing.
        let is_fine = read_session(&changed, 8_192)
            .is_ok_and(|(items, end)| items.iter().any(|item| describe(item).1 == end.root.cid()));
        if is_fine {
            faults.equal("changed byte", at, usize::MAX);
        }
    }
}

const FOREIGN: &[(&str, CidForms, usize)] = &[
    ("car/gateway-raw-block.car", CidForms::V1, 3),
    ("car/path_gateway_dag_dag-cbor-traversal.car", CidForms::V1, 3),
    ("car/path_gateway_tar_inside-root.car", CidForms::V1, 4),
    ("car/path_gateway_tar_outside-root.car", CidForms::V1, 2),
    ("car/path_gateway_unixfs_symlink.car", CidForms::V0AndV1, 3),
    ("car/trustless_gateway_car_dir-with-dag-cbor-with-links.car", CidForms::V1, 9),
    ("car/trustless_gateway_car_file-3k-and-3-blocks-missing-block.car", CidForms::V0AndV1, 3),
    ("car/trustless_gateway_car_subdir-with-two-single-block-files.car", CidForms::V1, 4),
];

/// Their block is plain CBOR, codec 0x51, which no CID of ours has.
const FOREIGN_CODEC: &[&str] =
    &["car/path_gateway_dag_plain-cbor-that-can-be-dag-cbor.car", "car/path_gateway_dag_plain-cbor.car"];

/// CARs of Kubo. Those with CIDv0 are read when that is asked for; else their root is what is wrong with their header.
fn check_foreign(files: &Files, faults: &mut Faults) {
    for (name, forms, count) in FOREIGN {
        let bytes = files.bytes(name);
        let (roots, blocks) = read_car(&bytes, *forms).unwrap_or_else(|reject| panic!("{name}: {reject}"));
        faults.equal(name, blocks.len(), *count);
        faults.equal(name, roots, vec![blocks[0].cid()]);
        match forms {
            CidForms::V1 => faults.equal(name, write_car(&[blocks[0].cid()], &blocks) == bytes, true),
            CidForms::V0AndV1 => {
                let code = read_car(&bytes, CidForms::V1).unwrap_err().code;
                faults.equal(name, code, Code::CarHeader);
            }
        }
    }
    for name in FOREIGN_CODEC {
        let code = read_car(&files.bytes(name), CidForms::V0AndV1).unwrap_err().code;
        faults.equal(name, code, Code::CarHeader);
    }
    // The file of that CAR lacks a block, and its reader says which.
    let name = "car/trustless_gateway_car_file-3k-and-3-blocks-missing-block.car";
    let (_, blocks) = read_car(&files.bytes(name), CidForms::V0AndV1).unwrap();
    let held: BTreeMap<Cid, &Block> = blocks.iter().map(|block| (block.cid(), block)).collect();
    let mut reader = FileReader::new(blocks[0].cid(), 1_000_000);
    while let Some(block) = reader.wanted().and_then(|wanted| held.get(&wanted)) {
        reader.supply(block).unwrap();
    }
    faults.equal(name, reader.wanted().is_some(), true);
    faults.equal(name, reader.bytes_read(), 1_024);
}

/// Roots and blocks that Seed's client gives, and the files read back.
fn check_files(vectors: &Json, faults: &mut Faults) {
    for record in records(&vectors["vectors"], 8) {
        let size = usize::try_from(record["size"].as_u64().unwrap()).unwrap();
        let name = format!("file of {size} bytes");
        let content: Vec<u8> =
            (0..size).map(|at| u8::try_from((at * 31 + (at >> 8) * 7 + 11) % 256).unwrap()).collect();
        let mut builder = FileBuilder::new(Layout::KUBO);
        let mut blocks: Vec<Block> = content.chunks(100_003).flat_map(|chunk| builder.push(chunk)).collect();
        let (last, file) = builder.finish();
        blocks.extend(last);
        faults.equal(&name, file.root.to_string().as_str(), text(record, "root"));
        faults.equal(&name, file.size, size as u64);

        let held: BTreeMap<Cid, Block> = blocks.into_iter().map(|block| (block.cid(), block)).collect();
        // Seed lists equal chunks once, and every block under the raw codec: its digest is what counts.
        let digests: Vec<[u8; 32]> = held.keys().map(|cid| *cid.digest()).collect();
        for listed in record["blobs"].as_array().unwrap() {
            let cid: Cid = text(listed, "cid").parse().unwrap();
            faults.equal(&name, digests.contains(cid.digest()), true);
        }
        let distinct = record["blobs"].as_array().unwrap().len();
        faults.equal(&name, held.len(), distinct);

        let mut reader = FileReader::new(file.root, size as u64);
        let mut back = Vec::new();
        while let Some(wanted) = reader.wanted() {
            if let Step::Bytes(part) = reader.supply(&held[&wanted]).unwrap() {
                back.extend_from_slice(part.as_ref());
            }
        }
        faults.equal(&name, back == content, true);

        let mut ours = FileBuilder::new(Layout::THROUGHLINE);
        let _ = ours.push(&content);
        let ours = ours.finish().1;
        let expected = if size <= 1_048_576 { Cid::sha256(Codec::Raw, &content) } else { file.root };
        faults.equal(&name, ours.root, expected);
    }
}
