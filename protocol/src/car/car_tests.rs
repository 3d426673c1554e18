use proptest::prelude::*;

use super::*;
use crate::block::Block;
use crate::code::Code;

fn blocks() -> Vec<Block> {
    vec![
        Block::of(Codec::DagCbor, &b"\xa0"[..]),
        Block::of(Codec::Raw, vec![7; 300]),
        Block::of(Codec::Raw, Vec::new()),
        Block::of(Codec::DagPb, &b"\x0a\x02\x08\x01"[..]),
    ]
}

fn file(roots: &[Cid], blocks: &[Block]) -> Vec<u8> {
    let mut out = Vec::new();
    write_header(&mut out, roots);
    for block in blocks {
        write_block(&mut out, &block.cid(), block.bytes());
    }
    out
}

fn sample() -> Vec<u8> {
    file(&[blocks()[0].cid()], &blocks())
}

/// Reads a file that comes in chunks of `step` bytes.
fn read(bytes: &[u8], forms: CidForms, step: usize) -> Result<(Vec<Cid>, Vec<Block>), Reject> {
    let mut reader = CarReader::new(forms);
    let (mut roots, mut blocks) = (Vec::new(), Vec::new());
    for chunk in bytes.chunks(step.max(1)) {
        reader.push(chunk);
        while let Some(event) = reader.next() {
            match event? {
                CarEvent::Roots(read) => roots = read,
                CarEvent::Block(block) => blocks.push(block),
            }
        }
    }
    reader.finish().map(|()| (roots, blocks))
}

fn code(bytes: &[u8]) -> Code {
    read(bytes, CidForms::V1, usize::MAX).unwrap_err().code
}

#[test]
fn what_is_written_is_read_in_any_chunks() {
    let roots = vec![blocks()[0].cid()];
    for step in [1, 2, 7, 100, usize::MAX] {
        let read = read(&sample(), CidForms::V1, step);
        assert_eq!(read, Ok((roots.clone(), blocks())), "{step}");
    }
    for count in [0, 23, 24, 255, 256] {
        let roots = vec![blocks()[1].cid(); count];
        assert_eq!(read(&file(&roots, &[]), CidForms::V1, 64), Ok((roots, Vec::new())), "{count}");
    }
}

#[test]
fn every_cut_inside_a_section_is_told() {
    let bytes = sample();
    let mut borders = vec![file(&[blocks()[0].cid()], &[]).len()];
    for block in blocks() {
        let mut section = Vec::new();
        write_block(&mut section, &block.cid(), block.bytes());
        borders.push(borders[borders.len() - 1] + section.len());
    }
    for cut in 0..=bytes.len() {
        let read = read(&bytes[..cut], CidForms::V1, 13);
        if borders.contains(&cut) {
            assert!(read.is_ok(), "{cut}");
        } else {
            assert_eq!(read.unwrap_err().code, Code::CarTruncated, "{cut}");
        }
    }
}

#[test]
fn bad_headers_are_refused() {
    assert_eq!(code(b"\x00"), Code::CarHeader);
    assert_eq!(code(b"\x0a\xa1\x67version\x02"), Code::CarHeader);
    assert_eq!(code(b"\x0a\xa1\x67version\x01"), Code::CarHeader);
    // Declared longer than a header may be: refused before it is waited for.
    assert_eq!(code(b"\x81\x80\x01"), Code::CarHeader);
    assert_eq!(code(&[0xff; 10]), Code::CarHeader);
    let mut version = sample();
    let at = version.windows(7).position(|window| window == b"version").unwrap() + 7;
    version[at] = 2;
    assert_eq!(code(&version), Code::CarHeader);
}

#[test]
fn bad_section_lengths_are_refused_before_anything_is_kept() {
    for length in
        [&[0x00][..], &[0x80, 0x00], &[0xff, 0xff, 0xff, 0x7f], &[0xff; 4], &[0xc1, 0x80, 0x80, 0x01]]
    {
        let bytes = [&sample()[..], length].concat();
        assert_eq!(code(&bytes), Code::CarVarint, "{length:02x?}");
    }
    let largest = Block::of(Codec::Raw, vec![0; crate::limits::RAW_BLOCK_BYTES_MAX]);
    assert!(read(&file(&[largest.cid()], std::slice::from_ref(&largest)), CidForms::V1, 65_536).is_ok());
}

#[test]
fn bad_cids_and_changed_blocks_are_refused() {
    let section = |cid: &[u8], bytes: &[u8]| {
        let mut out = sample();
        out.push(u8::try_from(cid.len() + bytes.len()).unwrap());
        out.extend(cid);
        out.extend(bytes);
        out
    };
    let good = Cid::sha256(Codec::Raw, b"x").to_bytes();
    assert_eq!(code(&section(&good, b"y")), Code::CidMismatch);
    assert_eq!(code(&section(&[0x01, 0x55, 0x00, 0x01, b'x'], b"x")), Code::CidHash);
    assert_eq!(code(&section(&[&[0x12, 0x20][..], &[0; 32]].concat(), b"x")), Code::CidVersion);
    assert_eq!(code(&section(&[&[0x01, 0x55, 0x12, 0x14][..], &[0; 20]].concat(), b"x")), Code::CidDigestlen);
    assert_eq!(code(&section(&[0x01, 0x55], b"")), Code::Cid);
}

#[test]
fn a_failed_reader_stays_failed() {
    let mut reader = CarReader::new(CidForms::V1);
    reader.push(b"\x00");
    let first = reader.next().unwrap().unwrap_err();
    reader.push(&sample());
    assert_eq!(reader.next().unwrap().unwrap_err(), first);
    assert_eq!(reader.finish().unwrap_err(), first);
}

#[test]
fn collecting_takes_repetitions_and_keeps_to_its_limits() {
    let bytes = [&sample()[..], &sample()[file(&[blocks()[0].cid()], &[]).len()..]].concat();
    let most = CollectLimits { blocks_max: 4, bytes_max: 305 };
    let content = collect(bytes.chunks(50), CidForms::V1, most).unwrap();
    assert_eq!(content.blocks.len(), 4);
    for limits in [CollectLimits { blocks_max: 3, ..most }, CollectLimits { bytes_max: 304, ..most }] {
        let reject = collect(bytes.chunks(50), CidForms::V1, limits).unwrap_err();
        assert_eq!(reject.code, Code::Budget, "{limits:?}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        step in 1_usize..50,
    ) {
        let _ = read(&bytes, CidForms::V1, step);
        let _ = read(&bytes, CidForms::V0AndV1, step);
    }

    /// A change is found, or it changed nothing that is read: then writing gives the same bytes.
    #[test]
    fn changed_files_are_refused_or_written_back(
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        step in 1_usize..50,
    ) {
        let mut bytes = sample();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok((roots, blocks)) = read(&bytes, CidForms::V1, step) {
            prop_assert_eq!(file(&roots, &blocks), bytes);
        }
    }
}

/// What a session file is refused for, if it is.
fn session_code(bytes: &[u8]) -> Result<(), Code> {
    let mut reader = session::SessionReader::new();
    reader.push(bytes);
    while let Some(item) = reader.next() {
        item.map_err(|reject| reject.code)?;
    }
    reader.finish().map(|_| ()).map_err(|reject| reject.code)
}

#[test]
fn branches_at_one_seq_stand_in_one_order() {
    let mut one = crate::testing::SessionBuilder::new("car branches");
    let server = one.server1.clone();
    let mut other = one.clone().branch("other");
    one.response(&server, "one", &[]);
    other.response(&server, "other", &[]);
    let block = |entry: &crate::testing::Built| Block::of(Codec::DagCbor, entry.entry.bytes().clone());
    let genesis = block(&one.entries()[0]);
    let mut branches = [block(one.head()), block(other.head())];
    branches.sort_by_key(Block::cid);
    let [low, high] = branches;
    for root in [&low, &high] {
        let file_of = |entries: &[&Block]| {
            let blocks: Vec<Block> = [&genesis].into_iter().chain(entries.iter().copied()).cloned().collect();
            session_code(&file(&[root.cid()], &blocks))
        };
        assert_eq!(file_of(&[&low, &high]), Ok(()));
        assert_eq!(file_of(&[&high, &low]), Err(Code::CarOrder));
        assert_eq!(file_of(&[&low, &high, &low]), Err(Code::CarOrder));
        assert_eq!(file_of(&[&high, &high]), Err(Code::CarDup));
    }
}
