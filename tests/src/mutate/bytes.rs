//! Mutations that know nothing of the format but a few words of it: flips, splices, insertions, heads of CBOR items.

use super::Rng;

/// Heads of CBOR items that have broken decoders before: long forms, indefinite lengths, huge counts, floats, tags.
const HEADS: &[&[u8]] = &[
    &[0x00],
    &[0x17],
    &[0x18, 0x18],
    &[0x18, 0x00],
    &[0x1b, 0x00, 0x1f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
    &[0x1b, 0x00, 0x20, 0, 0, 0, 0, 0, 0],
    &[0x1b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
    &[0x20],
    &[0x3b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
    &[0x40],
    &[0x58, 0x40],
    &[0x5a, 0xff, 0xff, 0xff, 0xff],
    &[0x5f],
    &[0x60],
    &[0x7f],
    &[0x7b, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
    &[0x80],
    &[0x9a, 0xff, 0xff, 0xff, 0xff],
    &[0x9b, 0x00, 0x00, 0x00, 0x01, 0, 0, 0, 0],
    &[0x9f],
    &[0xa0],
    &[0xba, 0xff, 0xff, 0xff, 0xff],
    &[0xbf],
    &[0xd8, 0x2a],
    &[0xd8, 0x2a, 0x58, 0x25, 0x00, 0x01, 0x71, 0x12, 0x20],
    &[0xd9, 0xd9, 0xf7],
    &[0xf4],
    &[0xf5],
    &[0xf6],
    &[0xf7],
    &[0xf8, 0xff],
    &[0xf9, 0x7e, 0x00],
    &[0xfb, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0],
    &[0xff],
];

/// Words of our formats, and text that readers trip over.
const WORDS: &[&[u8]] = &[
    b"type",
    b"sig",
    b"signer",
    b"ts",
    b"space",
    b"capability",
    b"payload",
    b"genesis",
    b"prev",
    b"seq",
    b"epoch",
    b"skip",
    b"kind",
    b"holder",
    b"x",
    b"v",
    b"op",
    b"k",
    b"SessionGenesis",
    b"SessionNote",
    b"SessionHandoff",
    b"SessionSeal",
    b"CapabilityTombstone",
    b"\"type\":",
    b"{\"",
    b"[[[[",
    b"\\u0000",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b"\xe2\x80\xae",
    b"\n",
    b"\r\n",
    b"0x",
    b"1e400",
    b"-0",
];

/// A mutant of `input`, at most `bytes_max` long. `others` are spliced in.
#[must_use]
pub fn mutant(rng: &mut Rng, input: &[u8], others: &[Vec<u8>], bytes_max: usize) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=rng.below(4) {
        step(rng, &mut bytes, others);
        bytes.truncate(bytes_max);
    }
    bytes
}

fn step(rng: &mut Rng, bytes: &mut Vec<u8>, others: &[Vec<u8>]) {
    match rng.below(12) {
        0 | 1 => flip(rng, bytes),
        2 => overwrite(rng, bytes),
        3 => insert(rng, bytes, HEADS),
        4 => insert(rng, bytes, WORDS),
        5 => {
            let length = 1 + rng.below(8);
            let random = rng.bytes(length);
            put(rng, bytes, &random);
        }
        6 => {
            bytes.drain(range(rng, bytes.len()));
        }
        7 => {
            let copied = bytes[range(rng, bytes.len())].to_vec();
            put(rng, bytes, &copied);
        }
        8 => {
            let cut = rng.below(bytes.len() + 1);
            bytes.truncate(cut);
        }
        9 if !others.is_empty() => {
            let other = rng.pick(others).clone();
            let spliced = &other[range(rng, other.len())];
            put(rng, bytes, spliced);
        }
        10 if !others.is_empty() => {
            let other = rng.pick(others).clone();
            bytes.truncate(rng.below(bytes.len() + 1));
            bytes.extend(&other[rng.below(other.len() + 1)..]);
        }
        _ => count_up_or_down(rng, bytes),
    }
}

fn flip(rng: &mut Rng, bytes: &mut [u8]) {
    if !bytes.is_empty() {
        let at = rng.below(bytes.len());
        bytes[at] ^= 1 << rng.below(8);
    }
}

fn overwrite(rng: &mut Rng, bytes: &mut [u8]) {
    let head = *rng.pick(HEADS);
    if bytes.len() >= head.len() {
        let at = rng.below(bytes.len() - head.len() + 1);
        bytes[at..at + head.len()].copy_from_slice(head);
    }
}

/// One more or one less: what lengths, counts and numbers are off by.
fn count_up_or_down(rng: &mut Rng, bytes: &mut [u8]) {
    if !bytes.is_empty() {
        let at = rng.below(bytes.len());
        bytes[at] = if rng.once_in(2) { bytes[at].wrapping_add(1) } else { bytes[at].wrapping_sub(1) };
    }
}

fn insert(rng: &mut Rng, bytes: &mut Vec<u8>, words: &[&[u8]]) {
    let word = *rng.pick(words);
    put(rng, bytes, word);
}

fn put(rng: &mut Rng, bytes: &mut Vec<u8>, what: &[u8]) {
    let at = rng.below(bytes.len() + 1);
    bytes.splice(at..at, what.iter().copied());
}

/// A part of `length` bytes, short ones more often.
fn range(rng: &mut Rng, length: usize) -> std::ops::Range<usize> {
    let start = rng.below(length + 1);
    let longest = if rng.once_in(4) { length } else { 16 };
    let end = (start + 1 + rng.below(longest)).min(length);
    start..end.max(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_gives_one_mutant_and_none_is_too_long() {
        let input: Vec<u8> = (0..200).collect();
        let others = [vec![7; 90], Vec::new()];
        let mut distinct = std::collections::BTreeSet::new();
        for seed in 0..500 {
            let make = || mutant(&mut Rng::seeded(seed), &input, &others, 256);
            let mutant = make();
            assert_eq!(mutant, make());
            assert!(mutant.len() <= 256);
            distinct.insert(mutant);
        }
        assert!(distinct.len() > 450, "{} distinct mutants", distinct.len());
        for seed in 0..200 {
            let _ = mutant(&mut Rng::seeded(seed), &[], &[], 64);
        }
    }
}
