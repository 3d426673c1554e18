//! Files: CARs of anybody, CARs of sessions, UnixFS nodes.

use std::ops::ControlFlow;

use throughline_protocol::block::{Block, sha256};
use throughline_protocol::car::session::{SessionItem, SessionReader};
use throughline_protocol::car::{
    CarEvent, CarReader, CidForms, CollectLimits, collect, write_block, write_header,
};
use throughline_protocol::code::{Code, Reject};
use throughline_protocol::id::{Cid, Codec};
use throughline_protocol::limits;
use throughline_protocol::unixfs::{FileBuilder, FileReader, Layout, Step, links};
use throughline_protocol::verify::Auditor;

use super::check_reject;
use crate::differ::answers::{audit, audit_with};

/// How the file comes in: whole, byte by byte, or in pieces that the file itself decides.
fn pieces(data: &[u8], how: usize) -> impl Iterator<Item = &[u8]> {
    let size = match how {
        0 => data.len().max(1),
        1 => 1,
        _ => 1 + usize::from(sha256(data)[0]),
    };
    data.chunks(size)
}

/// Reads a file in pieces; whatever they are, the same comes out.
fn read<T: PartialEq + std::fmt::Debug>(
    data: &[u8],
    mut one_way: impl FnMut(&mut dyn Iterator<Item = &[u8]>) -> (Vec<T>, Result<(), Reject>),
) -> (Vec<T>, Result<(), Reject>) {
    let whole = one_way(&mut pieces(data, 0));
    for how in [1, 2] {
        // Byte by byte costs a call for each byte.
        if how == 1 && data.len() > 4_096 {
            continue;
        }
        assert_eq!(one_way(&mut pieces(data, how)), whole, "in other pieces, another outcome");
    }
    if let Err(reject) = &whole.1 {
        check_reject(reject);
    }
    whole
}

/// Any CAR: blocks hash to their CIDs, sections have their limits, pieces do not matter, and what was read can be written again.
pub(in crate::fuzz) fn car(data: &[u8]) {
    for forms in [CidForms::V1, CidForms::V0AndV1] {
        let (events, end) = read(data, |pieces| {
            let mut reader = CarReader::new(forms);
            let mut events = Vec::new();
            for piece in pieces {
                reader.push(piece);
                while let Some(event) = reader.next() {
                    match event {
                        Ok(event) => events.push(event),
                        Err(reject) => {
                            assert_eq!(reader.next(), Some(Err(reject.clone())), "an error stays");
                            return (events, Err(reject));
                        }
                    }
                }
                assert!(reader.offset() <= data.len() as u64);
            }
            (events, reader.finish())
        });
        let mut written = Vec::new();
        for event in &events {
            match event {
                CarEvent::Roots(roots) => write_header(&mut written, roots),
                CarEvent::Block(block) => {
                    assert!(block.cid().matches(block.bytes()));
                    assert!(block.bytes().len() <= limits::CAR_SECTION_BYTES_MAX);
                    write_block(&mut written, &block.cid(), block.bytes());
                }
            }
        }
        let exact = matches!(forms, CidForms::V1) && end.is_ok();
        assert!(!exact || written == data, "written again, the file differs");
        collected(data, forms, end);
    }
}

/// Collecting takes as much as its limits say and not a block more.
fn collected(data: &[u8], forms: CidForms, end: Result<(), Reject>) {
    let tight = CollectLimits { blocks_max: 3, bytes_max: 1_024 };
    let wide = CollectLimits { blocks_max: usize::MAX, bytes_max: usize::MAX };
    match collect([data], forms, tight) {
        Ok(content) => {
            assert!(content.blocks.len() <= tight.blocks_max);
            assert!(
                content.blocks.values().map(|block| block.bytes().len()).sum::<usize>() <= tight.bytes_max
            );
        }
        Err(reject) => assert!(reject.code == Code::Budget || end.is_err()),
    }
    let all = collect([data], forms, wide);
    assert_eq!(all.as_ref().err(), end.as_ref().err());
    if let Ok(content) = all {
        let count = content.blocks.len();
        let sorted = content.session_blobs();
        assert_eq!(sorted.entries.len() + sorted.control.len() + sorted.others.len(), count);
    }
}

/// A session's CAR: what is read of it comes in order, and an audit of it ends with one verdict, however it came in.
pub(in crate::fuzz) fn session_car(data: &[u8]) {
    let (items, end) = read(data, |pieces| {
        let mut reader = SessionReader::new();
        let mut items = Vec::new();
        for piece in pieces {
            reader.push(piece);
            while let Some(item) = reader.next() {
                match item {
                    Ok(item) => items.push(item),
                    Err(reject) => return (items, Err(reject)),
                }
            }
        }
        (items, reader.finish().map(|_| ()))
    });
    if let Some(first) = items.first() {
        assert!(matches!(first, SessionItem::Genesis(_)), "the genesis stands first");
    }
    let report = audit(data);
    assert_eq!(audit(data), report);
    // A file that is whole in form is judged alike as a stream and as a set.
    if end.is_ok()
        && let Some(SessionItem::Genesis(genesis)) = items.first()
    {
        let session = genesis.value().session(genesis.cid());
        let as_set = audit_with(data, Auditor::over_set(session)).expect("a set is never out of order");
        assert_eq!(as_set.verdict, report.verdict, "as a set and as a stream");
        assert_eq!(as_set.valid_through, report.valid_through, "as a set and as a stream");
    }
}

/// One node of a file, with its bytes as a leaf: whoever follows it reads no more than it says.
pub(in crate::fuzz) fn unixfs(data: &[u8]) {
    match links(data) {
        Ok(links) => assert!(links.len() <= data.len()),
        Err(reject) => check_reject(&reject),
    }
    let node = Block::of(Codec::DagPb, data);
    let mut reader = FileReader::new(node.cid(), 1 << 20);
    if let ControlFlow::Break(reject) = follow(&mut reader, &node) {
        check_reject(&reject);
    }
    // As a file of ours it reads back whole.
    let mut builder = FileBuilder::new(Layout::THROUGHLINE);
    let mut blocks: Vec<Block> = builder.push(data);
    let (rest, built) = builder.finish();
    blocks.extend(rest);
    let held = |cid: Cid| blocks.iter().find(|block| block.cid() == cid);
    let mut reader = FileReader::new(built.root, data.len() as u64);
    let mut read_back = Vec::new();
    while let Some(wanted) = reader.wanted() {
        match reader.supply(held(wanted).expect("a block that was built")).expect("a file of ours") {
            Step::Bytes(bytes) => read_back.extend_from_slice(bytes.as_ref()),
            Step::Node => {}
        }
    }
    assert_eq!(read_back, data);
}

fn follow(reader: &mut FileReader, node: &Block) -> ControlFlow<Reject> {
    // A node that names itself cannot be made; a chain of the same node can only be one step.
    for _ in 0..4 {
        if reader.wanted() != Some(node.cid()) {
            return ControlFlow::Continue(());
        }
        match reader.supply(node) {
            Ok(Step::Bytes(bytes)) => assert!(bytes.as_ref().len() <= node.bytes().len()),
            Ok(Step::Node) => {}
            Err(reject) => return ControlFlow::Break(reject),
        }
        assert!(reader.bytes_read() <= 1 << 20);
    }
    ControlFlow::Continue(())
}
