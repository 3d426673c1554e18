//! dag-pb nodes and the UnixFS message in them: the parts that a file needs, by hand.
//!
//! Protobuf is read strictly where it could be read two ways: lengths fit, varints are at most ten bytes, no field stands
//! twice that may stand once.

use crate::car::CidForms;
use crate::code::{Code, Reject};
use crate::id::Cid;

/// A link of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) cid: Cid,
    /// Bytes of all blocks below the link; informative.
    pub(super) total_bytes: u64,
}

/// A dag-pb node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node<'a> {
    pub(super) links: Vec<Link>,
    pub(super) data: &'a [u8],
}

impl<'a> Node<'a> {
    /// Reads a node.
    pub(super) fn decode(bytes: &'a [u8]) -> Result<Self, Reject> {
        let mut links = Vec::new();
        let mut data = None;
        for field in Fields(bytes) {
            match field? {
                (2, Field::Bytes(link)) => links.push(Link::decode(link)?),
                (1, Field::Bytes(bytes)) if data.is_none() => data = Some(bytes),
                (number, _) => return Err(malformed(&format!("unexpected field {number} of a node"))),
            }
        }
        Ok(Node { links, data: data.unwrap_or_default() })
    }

    /// The bytes: links first, then data, which is the canonical order.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for link in &self.links {
            write_bytes(&mut out, 2, &link.encode());
        }
        write_bytes(&mut out, 1, self.data);
        out
    }
}

impl Link {
    fn decode(bytes: &[u8]) -> Result<Self, Reject> {
        let (mut cid, mut has_name, mut total_bytes) = (None, false, None);
        for field in Fields(bytes) {
            match field? {
                (1, Field::Bytes(bytes)) if cid.is_none() => {
                    let (read, rest) = CidForms::V0AndV1.read(bytes)?;
                    if !rest.is_empty() {
                        return Err(Reject::new(
                            Code::CidTrailing,
                            format!("{} bytes follow a link", rest.len()),
                        ));
                    }
                    cid = Some(read);
                }
                (2, Field::Bytes(_)) if !has_name => has_name = true,
                (3, Field::Varint(value)) if total_bytes.is_none() => total_bytes = Some(value),
                (number, _) => return Err(malformed(&format!("unexpected field {number} of a link"))),
            }
        }
        let cid = cid.ok_or_else(|| malformed("a link without a CID"))?;
        Ok(Link { cid, total_bytes: total_bytes.unwrap_or(0) })
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        write_bytes(&mut out, 1, &self.cid.to_bytes());
        // A name is written although a file's links have none: every implementation does.
        write_bytes(&mut out, 2, b"");
        write_uint(&mut out, 3, self.total_bytes);
        out
    }
}

/// The UnixFS message of a file's node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileData<'a> {
    /// Bytes in this node itself.
    pub(super) inline: &'a [u8],
    /// Bytes of the file below and in this node.
    pub(super) file_bytes: u64,
    /// Bytes of the file below each link.
    pub(super) block_bytes: Vec<u64>,
}

const TYPE_RAW: u64 = 0;
const TYPE_FILE: u64 = 2;

impl<'a> FileData<'a> {
    /// Reads the message; a node that is no file is `E_TYPE`.
    pub(super) fn decode(bytes: &'a [u8]) -> Result<Self, Reject> {
        let (mut kind, mut inline, mut file_bytes) = (None, None, None);
        let mut block_bytes = Vec::new();
        for field in Fields(bytes) {
            match field? {
                (1, Field::Varint(value)) if kind.is_none() => kind = Some(value),
                (2, Field::Bytes(bytes)) if inline.is_none() => inline = Some(bytes),
                (3, Field::Varint(value)) if file_bytes.is_none() => file_bytes = Some(value),
                (4, Field::Varint(value)) => block_bytes.push(value),
                (4, Field::Bytes(packed)) => read_packed(packed, &mut block_bytes)?,
                // hashType and fanout are a shard's; mode and mtime say nothing about the bytes.
                (5..=8, _) => {}
                (number, _) => return Err(malformed(&format!("unexpected field {number} of a file"))),
            }
        }
        if !matches!(kind, Some(TYPE_RAW | TYPE_FILE)) {
            return Err(Reject::new(Code::Type, "expected a file, got another kind of UnixFS node"));
        }
        let inline = inline.unwrap_or_default();
        Ok(FileData { inline, file_bytes: file_bytes.unwrap_or(inline.len() as u64), block_bytes })
    }

    /// The bytes of a node without data of its own.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        write_uint(&mut out, 1, TYPE_FILE);
        if !self.inline.is_empty() {
            write_bytes(&mut out, 2, self.inline);
        }
        write_uint(&mut out, 3, self.file_bytes);
        for bytes in &self.block_bytes {
            write_uint(&mut out, 4, *bytes);
        }
        out
    }
}

fn malformed(what: &str) -> Reject {
    Reject::new(Code::SchemaType, format!("dag-pb: {what}"))
}

enum Field<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
}

/// The fields of a protobuf message. Ends after the first error.
struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Field<'a>), Reject>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

impl<'a> Fields<'a> {
    fn field(&mut self) -> Result<(u64, Field<'a>), Reject> {
        let key = self.varint()?;
        let field = match key & 7 {
            0 => Field::Varint(self.varint()?),
            2 => {
                let length = usize::try_from(self.varint()?).unwrap_or(usize::MAX);
                let (bytes, rest) = self
                    .0
                    .split_at_checked(length)
                    .ok_or_else(|| malformed("a length larger than the bytes that remain"))?;
                self.0 = rest;
                Field::Bytes(bytes)
            }
            _ => return Err(malformed("a field of a wire type that is not used")),
        };
        Ok((key >> 3, field))
    }

    fn varint(&mut self) -> Result<u64, Reject> {
        let mut value = 0_u64;
        for (index, &byte) in self.0.iter().enumerate().take(10) {
            let bits = u64::from(byte & 0x7f);
            if index == 9 && bits > 1 {
                break;
            }
            value |= bits << (7 * index);
            if byte & 0x80 == 0 {
                self.0 = &self.0[index + 1..];
                return Ok(value);
            }
        }
        Err(malformed("a varint that is cut short or too long"))
    }
}

fn read_packed(packed: &[u8], out: &mut Vec<u64>) -> Result<(), Reject> {
    let mut rest = Fields(packed);
    while !rest.0.is_empty() {
        out.push(rest.varint()?);
    }
    Ok(())
}

fn write_varint(out: &mut Vec<u8>, mut value: u64) {
    loop {
        let [low, ..] = value.to_le_bytes();
        value >>= 7;
        if value == 0 {
            out.push(low & 0x7f);
            return;
        }
        out.push(low | 0x80);
    }
}

fn write_uint(out: &mut Vec<u8>, number: u64, value: u64) {
    write_varint(out, number << 3);
    write_varint(out, value);
}

fn write_bytes(out: &mut Vec<u8>, number: u64, bytes: &[u8]) {
    write_varint(out, number << 3 | 2);
    write_varint(out, bytes.len() as u64);
    out.extend(bytes);
}
