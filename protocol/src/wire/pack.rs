//! Cutting a long answer into frames, so that it streams with flat memory on both sides. `docs/PROTOCOL.md` §Streams.

use std::sync::Arc;

use super::chain::{ChainAnswer, EntryItem};
use crate::limits;

/// Something of which an answer holds many.
pub trait Packed: Sized {
    /// How many one frame is to hold at most, which is no more than it may.
    const FRAME_MAX: usize;

    /// The size that a frame of them is to have at most, in bytes, unless a single one is larger.
    const TARGET_BYTES: usize;

    /// About how many bytes it takes in a frame; never fewer than it does.
    fn packed_bytes(&self) -> usize;
}

/// Room for the heads and keys of one item.
const ITEM_OVERHEAD_BYTES: usize = 32;

impl Packed for EntryItem {
    const FRAME_MAX: usize = limits::ENTRIES_TARGET;
    const TARGET_BYTES: usize = limits::ENTRIES_TARGET_BYTES;

    fn packed_bytes(&self) -> usize {
        self.entry.len() + self.payload.as_ref().map_or(0, |payload| payload.len()) + ITEM_OVERHEAD_BYTES
    }
}

impl Packed for Arc<[u8]> {
    // The smaller of what a path frame (64) and a control frame (256) may hold.
    const FRAME_MAX: usize = limits::LOCATOR_MAX;
    const TARGET_BYTES: usize = limits::FRAME_TARGET_BYTES;

    fn packed_bytes(&self) -> usize {
        self.len() + ITEM_OVERHEAD_BYTES
    }
}

/// Collects items and hands out a frame whenever the next item would take it above
/// [`Packed::TARGET_BYTES`] or [`Packed::FRAME_MAX`]. An item larger than that gets a frame of its own, which is still within
/// [`limits::FRAME_BYTES_MAX`]: an entry and a payload are.
pub struct Packer<T> {
    wrap: fn(Vec<T>) -> ChainAnswer,
    items: Vec<T>,
    bytes: usize,
}

impl<T: Packed> Packer<T> {
    /// A packer whose frames `wrap` makes, such as [`ChainAnswer::Entries`].
    #[must_use]
    pub fn new(wrap: fn(Vec<T>) -> ChainAnswer) -> Self {
        Packer { wrap, items: Vec::new(), bytes: 0 }
    }

    /// Adds an item; returns the frame before it, when that is full.
    #[must_use]
    pub fn push(&mut self, item: T) -> Option<ChainAnswer> {
        let bytes = item.packed_bytes();
        let is_full = self.bytes + bytes > T::TARGET_BYTES || self.items.len() >= T::FRAME_MAX;
        let frame = if is_full { self.finish() } else { None };
        self.items.push(item);
        self.bytes += bytes;
        frame
    }

    /// The last frame, if it holds anything.
    #[must_use]
    pub fn finish(&mut self) -> Option<ChainAnswer> {
        self.bytes = 0;
        let items = std::mem::take(&mut self.items);
        (!items.is_empty()).then(|| (self.wrap)(items))
    }
}

/// The frames of all of `items`, made as they are taken. An answer without items has no frame.
pub fn pack<T: Packed>(
    wrap: fn(Vec<T>) -> ChainAnswer,
    items: impl IntoIterator<Item = T>,
) -> impl Iterator<Item = ChainAnswer> {
    let mut items = items.into_iter();
    let mut packer = Packer::new(wrap);
    std::iter::from_fn(move || {
        for item in items.by_ref() {
            if let Some(frame) = packer.push(item) {
                return Some(frame);
            }
        }
        packer.finish()
    })
}

const _: () = assert!(limits::ENTRIES_TARGET <= limits::ENTRIES_FRAME_MAX);
