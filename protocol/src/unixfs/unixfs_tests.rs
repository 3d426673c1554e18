use std::collections::BTreeMap;

use proptest::prelude::*;

use super::dagpb::{FileData, Link, Node};
use super::*;
use crate::block::Block;
use crate::code::Code;
use crate::id::Codec;

/// Small enough that a few bytes make several levels.
const TINY: Layout = Layout { single_block_bytes_max: 4, chunk_bytes: 4, links_max: 3 };

fn build(layout: Layout, content: &[u8], step: usize) -> (BTreeMap<Cid, Block>, BuiltFile) {
    let mut builder = FileBuilder::new(layout);
    let mut blocks = Vec::new();
    for part in content.chunks(step) {
        blocks.extend(builder.push(part));
    }
    let (last, file) = builder.finish();
    blocks.extend(last);
    (blocks.into_iter().map(|block| (block.cid(), block)).collect(), file)
}

fn read(blocks: &BTreeMap<Cid, Block>, root: Cid, bytes_max: u64) -> Result<Vec<u8>, Reject> {
    let mut reader = FileReader::new(root, bytes_max);
    let mut content = Vec::new();
    while let Some(wanted) = reader.wanted() {
        if let Step::Bytes(bytes) = reader.supply(&blocks[&wanted])? {
            content.extend_from_slice(bytes.as_ref());
        }
    }
    assert_eq!(reader.bytes_read(), content.len() as u64);
    Ok(content)
}

/// Depth of every leaf below `cid`.
fn leaf_depths(blocks: &BTreeMap<Cid, Block>, cid: Cid, depth: usize, out: &mut Vec<usize>) {
    if cid.codec() == Codec::Raw {
        out.push(depth);
        return;
    }
    for link in links(blocks[&cid].bytes()).unwrap() {
        leaf_depths(blocks, link, depth + 1, out);
    }
}

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|at| u8::try_from((at * 31 + (at >> 8) * 7 + 11) % 256).unwrap()).collect()
}

proptest! {
    #[test]
    fn files_read_back_and_are_balanced(length in 0_usize..400, step in 1_usize..50) {
        let content = content(length);
        let (blocks, file) = build(TINY, &content, step);
        prop_assert_eq!(file.size, length as u64);
        prop_assert_eq!(&build(TINY, &content, 1000).1, &file, "chunks do not matter");
        prop_assert_eq!(read(&blocks, file.root, 400).unwrap(), content);
        let mut depths = Vec::new();
        leaf_depths(&blocks, file.root, 0, &mut depths);
        let leaves = length.div_ceil(4).max(1);
        prop_assert_eq!(depths.len(), leaves);
        // The least depth that holds so many leaves.
        let levels = (0..).find(|level| 3_usize.pow(*level) >= leaves).unwrap();
        prop_assert!(depths.iter().all(|depth| u32::try_from(*depth) == Ok(levels)));
    }

    #[test]
    fn any_node_is_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = links(&bytes);
        let _ = FileData::decode(&bytes);
        let block = Block::of(Codec::DagPb, bytes);
        let _ = FileReader::new(block.cid(), 1_000).supply(&block);
    }

    #[test]
    fn changed_nodes_are_read_or_refused(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let (blocks, file) = build(TINY, &content(30), 30);
        let mut bytes = blocks[&file.root].bytes().to_vec();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let block = Block::of(Codec::DagPb, bytes);
        let mut reader = FileReader::new(block.cid(), 1_000);
        let _ = reader.supply(&block);
        prop_assert!(reader.bytes_read() <= 1_000);
    }
}

#[test]
fn ours_and_kubos_differ_up_to_a_mebibyte_only() {
    for (length, ours) in [(262_145, Codec::Raw), (1_048_576, Codec::Raw), (1_048_577, Codec::DagPb)] {
        let content = content(length);
        let (_, file) = build(Layout::THROUGHLINE, &content, 10_000);
        let (_, kubo) = build(Layout::KUBO, &content, 10_000);
        assert_eq!(file.root.codec(), ours, "{length}");
        assert_eq!(kubo.root.codec(), Codec::DagPb, "{length}");
        assert_eq!(file.root == kubo.root, ours == Codec::DagPb, "{length}");
    }
}

#[test]
fn a_builder_holds_no_more_than_a_small_file() {
    let mut builder = FileBuilder::new(Layout::THROUGHLINE);
    let blocks = builder.push(&vec![0; 10 * 1_048_576]);
    assert_eq!(blocks.len(), 39);
}

/// A node of parts with these declared sizes, and the blocks.
fn node(parts: &[(&Block, u64)], file_bytes: u64) -> Block {
    let links = parts.iter().map(|(block, _)| Link { cid: block.cid(), total_bytes: 0 }).collect();
    let block_bytes = parts.iter().map(|(_, bytes)| *bytes).collect();
    let data = FileData { inline: &[], file_bytes, block_bytes }.encode();
    Block::of(Codec::DagPb, Node { links, data: &data }.encode())
}

fn read_all(blocks: &[&Block], root: &Block, bytes_max: u64) -> Result<Vec<u8>, Code> {
    let blocks = blocks.iter().chain([&root]).map(|block| (block.cid(), (*block).clone())).collect();
    read(&blocks, root.cid(), bytes_max).map_err(|reject| reject.code)
}

#[test]
fn sizes_that_do_not_add_up_are_refused() {
    let leaf = Block::of(Codec::Raw, vec![1; 10]);
    let good = node(&[(&leaf, 10), (&leaf, 10)], 20);
    assert_eq!(read_all(&[&leaf], &good, 20), Ok(vec![1; 20]));
    assert_eq!(read_all(&[&leaf], &good, 19), Err(Code::TooBig));
    for bad in [
        node(&[(&leaf, 10), (&leaf, 10)], 21),
        node(&[(&leaf, 9), (&leaf, 11)], 20),
        node(&[(&leaf, u64::MAX), (&leaf, 21)], 20),
        node(&[(&node(&[(&leaf, 10)], 10), 11)], 11),
    ] {
        let inner = node(&[(&leaf, 10)], 10);
        assert_eq!(read_all(&[&leaf, &inner], &bad, 100), Err(Code::SchemaLen));
    }
    // Empty parts would make an endless walk of nothing.
    let empty = Block::of(Codec::Raw, Vec::new());
    let nothing = node(&[(&empty, 0), (&empty, 0)], 0);
    assert_eq!(read_all(&[&empty], &nothing, 100), Err(Code::SchemaLen));
    assert_eq!(read_all(&[], &empty, 0), Ok(Vec::new()));
}

#[test]
fn a_graph_that_names_one_node_often_costs_its_declared_size() {
    let mut block = Block::of(Codec::Raw, vec![1]);
    let mut size = 1_u64;
    let mut blocks = vec![block.clone()];
    for _ in 0..7 {
        block = node(&[(&block, size); 10], size * 10);
        size *= 10;
        blocks.push(block.clone());
    }
    let held: Vec<&Block> = blocks.iter().collect();
    assert_eq!(read_all(&held, &block, 1_000), Err(Code::TooBig));
    let deep = node(&[(&block, size)], size);
    assert_eq!(read_all(&held, &deep, size), Err(Code::CborDepth));
}

#[test]
fn only_files_are_read() {
    let directory = Node { links: Vec::new(), data: b"\x08\x01" }.encode();
    assert_eq!(read_all(&[], &Block::of(Codec::DagPb, directory), 10), Err(Code::Type));
    assert_eq!(read_all(&[], &Block::of(Codec::DagCbor, &b"\xa0"[..]), 10), Err(Code::Type));
    // A leaf as Kubo wrote it before raw leaves: type file, five bytes inline.
    let inline = FileData { inline: b"hello", file_bytes: 5, block_bytes: Vec::new() }.encode();
    let leaf = Block::of(Codec::DagPb, Node { links: Vec::new(), data: &inline }.encode());
    assert_eq!(read_all(&[], &leaf, 10), Ok(b"hello".to_vec()));
    let other = Block::of(Codec::Raw, vec![1]);
    let mut reader = FileReader::new(leaf.cid(), 10);
    assert_eq!(reader.supply(&other).unwrap_err().code, Code::CidMismatch);
    assert_eq!(reader.wanted(), Some(leaf.cid()));
}
