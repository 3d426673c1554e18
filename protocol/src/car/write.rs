//! Writing a CAR.

use crate::codec::{Map, Value, encode_map};
use crate::id::Cid;

/// Appends the header of a CAR with these roots.
pub fn write_header(out: &mut Vec<u8>, roots: &[Cid]) {
    let roots: Vec<Value<'_>> = roots.iter().map(|cid| Value::Link(*cid)).collect();
    let header = encode_map(&Map::new().with("roots", roots).with("version", 1_i64));
    write_length(out, header.len());
    out.extend(header);
}

/// Appends a block.
pub fn write_block(out: &mut Vec<u8>, cid: &Cid, bytes: &[u8]) {
    let cid = cid.to_bytes();
    write_length(out, cid.len() + bytes.len());
    out.extend(cid);
    out.extend(bytes);
}

fn write_length(out: &mut Vec<u8>, mut length: usize) {
    loop {
        let [low, ..] = length.to_le_bytes();
        length >>= 7;
        if length == 0 {
            out.push(low & 0x7f);
            return;
        }
        out.push(low | 0x80);
    }
}
