//! Reading a CAR, section by section.

use super::CidForms;
use crate::block::Block;
use crate::code::{Code, Reject};
use crate::id::Cid;
use crate::limits::{CAR_HEADER_BYTES_MAX, CAR_SECTION_BYTES_MAX};

/// A CAR being read. Push bytes, then take events until there are none; at the end of the input call
/// [`CarReader::finish`].
#[derive(Debug)]
pub struct CarReader {
    forms: CidForms,
    buffer: Vec<u8>,
    /// How much of `buffer` was used up.
    used: usize,
    /// Offset in the file of the first byte of `buffer`.
    buffer_offset: u64,
    state: State,
}

#[derive(Debug)]
enum State {
    Header,
    Blocks,
    Failed(Reject),
}

/// What a CAR holds, in order: its roots once, then its blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CarEvent {
    /// The roots.
    Roots(Vec<Cid>),
    /// A block; its bytes hash to its CID.
    Block(Block),
}

impl CarReader {
    /// A reader at the start of a file.
    #[must_use]
    pub fn new(forms: CidForms) -> Self {
        CarReader { forms, buffer: Vec::new(), used: 0, buffer_offset: 0, state: State::Header }
    }

    /// Takes the next bytes of the file. Take all events before pushing more, so that only one incomplete section is
    /// held.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.used);
        self.buffer_offset += self.used as u64;
        self.used = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next event; none when more bytes are needed. After an error it is the same error for ever.
    ///
    /// # Errors
    /// In a `Some`: `E_CAR_HEADER` for a header that is not that of a CAR v1 or has a root of a form not taken, `E_CAR_VARINT` for a section length that
    /// is zero, not minimal or too large, an `E_CID…` code for a CID of a form not taken, `E_CID_MISMATCH` for bytes that
    /// hash to something else.
    #[expect(clippy::should_implement_trait, reason = "an iterator that ends is done; this one may go on")]
    pub fn next(&mut self) -> Option<Result<CarEvent, Reject>> {
        let event = match &self.state {
            State::Failed(reject) => return Some(Err(reject.clone())),
            State::Header => self.header().map(|roots| roots.map(CarEvent::Roots)),
            State::Blocks => self.block().map(|block| block.map(CarEvent::Block)),
        };
        match event {
            Ok(event) => event.map(Ok),
            Err(reject) => {
                let reject = reject.within(&format!("at byte {}", self.offset()));
                self.state = State::Failed(reject.clone());
                Some(Err(reject))
            }
        }
    }

    /// Offset in the file of the section that comes next.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.buffer_offset + self.used as u64
    }

    /// Says that the file ends here.
    ///
    /// # Errors
    /// `E_CAR_TRUNCATED` when it ends inside the header or a section, or events were not taken; the earlier error when
    /// there was one.
    pub fn finish(self) -> Result<(), Reject> {
        match self.state {
            State::Failed(reject) => Err(reject),
            State::Header => Err(Reject::new(Code::CarTruncated, "the file ends inside the header")),
            State::Blocks if self.used < self.buffer.len() => {
                let what = format!("at byte {}: the file ends inside a section", self.offset());
                Err(Reject::new(Code::CarTruncated, what))
            }
            State::Blocks => Ok(()),
        }
    }

    fn header(&mut self) -> Result<Option<Vec<Cid>>, Reject> {
        let bad = |what: &str| Reject::new(Code::CarHeader, what.to_owned());
        let length = match section_length(&self.buffer[self.used..], CAR_HEADER_BYTES_MAX) {
            Ok(None) => return Ok(None),
            Ok(Some(length)) => length,
            Err(reject) => return Err(bad(&reject.detail)),
        };
        let Some(header) = self.section(length) else { return Ok(None) };
        let roots = read_header(header, self.forms)?;
        self.used += length.total();
        self.state = State::Blocks;
        Ok(Some(roots))
    }

    fn block(&mut self) -> Result<Option<Block>, Reject> {
        let Some(length) = section_length(&self.buffer[self.used..], CAR_SECTION_BYTES_MAX)? else {
            return Ok(None);
        };
        let Some(section) = self.section(length) else { return Ok(None) };
        let (cid, bytes) = self.forms.read(section)?;
        let block = Block::check(cid, bytes)?;
        self.used += length.total();
        Ok(Some(block))
    }

    /// The section's content, when all of it is here.
    fn section(&self, length: SectionLength) -> Option<&[u8]> {
        self.buffer.get(self.used + length.prefix..self.used + length.total())
    }
}

#[derive(Clone, Copy)]
struct SectionLength {
    prefix: usize,
    content: usize,
}

impl SectionLength {
    fn total(self) -> usize {
        self.prefix + self.content
    }
}

/// Bytes of the longest length prefix: no section is as long as 2^28.
const PREFIX_BYTES_MAX: usize = 4;

fn section_length(bytes: &[u8], content_max: usize) -> Result<Option<SectionLength>, Reject> {
    let bad = |what: String| Reject::new(Code::CarVarint, what);
    let mut content = 0_usize;
    for (index, &byte) in bytes.iter().enumerate().take(PREFIX_BYTES_MAX) {
        content |= usize::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 != 0 {
            continue;
        }
        if byte == 0 {
            let what =
                if index == 0 { "a section of length 0" } else { "a length longer than it needs to be" };
            return Err(bad(what.to_owned()));
        }
        if content > content_max {
            return Err(bad(format!("expected at most {content_max} bytes, got {content}")));
        }
        return Ok(Some(SectionLength { prefix: index + 1, content }));
    }
    if bytes.len() < PREFIX_BYTES_MAX {
        return Ok(None);
    }
    Err(bad(format!("expected at most {content_max} bytes, got more")))
}

/// Reads `{"roots": [link, …], "version": 1}` in canonical form.
///
/// By hand, because a root may be a CIDv0, which is no link of our codec.
fn read_header(bytes: &[u8], forms: CidForms) -> Result<Vec<Cid>, Reject> {
    let bad = |what: &str| Reject::new(Code::CarHeader, what.to_owned());
    if bytes.strip_prefix(b"\xa1\x67version\x02").is_some() {
        return Err(bad("expected CAR version 1, got version 2"));
    }
    let rest =
        bytes.strip_prefix(b"\xa2\x65roots").ok_or_else(|| bad("expected a map that begins with roots"))?;
    let (count, mut rest) = array_length(rest).ok_or_else(|| bad("expected an array of roots"))?;
    let mut roots = Vec::new();
    for _ in 0..count {
        let link = rest.strip_prefix(&[0xd8, 42, 0x58]).and_then(<[u8]>::split_first);
        let (&length, after) = link.ok_or_else(|| bad("expected a link in roots"))?;
        let (link, after) =
            after.split_at_checked(usize::from(length)).ok_or_else(|| bad("a root is cut short"))?;
        let cid = link.strip_prefix(&[0]).ok_or_else(|| bad("a root without its 0x00 prefix"))?;
        let (cid, trailing) = forms.read(cid).map_err(|reject| bad(&format!("a root: {reject}")))?;
        if !trailing.is_empty() {
            return Err(bad(&format!("{} bytes follow a root", trailing.len())));
        }
        roots.push(cid);
        rest = after;
    }
    match rest.strip_prefix(b"\x67version") {
        Some([1]) => Ok(roots),
        _ => Err(bad("expected version 1 after the roots, and nothing else")),
    }
}

/// The head of an array of fewer than 65,536 items, in its shortest form.
fn array_length(bytes: &[u8]) -> Option<(usize, &[u8])> {
    match bytes {
        [head @ 0x80..=0x97, rest @ ..] => Some((usize::from(head & 0x1f), rest)),
        [0x98, count @ 24..=u8::MAX, rest @ ..] => Some((usize::from(*count), rest)),
        [0x99, high @ 1..=u8::MAX, low, rest @ ..] => {
            Some((usize::from(*high) << 8 | usize::from(*low), rest))
        }
        _ => None,
    }
}
