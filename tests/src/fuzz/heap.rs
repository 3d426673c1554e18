//! How much memory one input makes a target hold: the allocator counts, for the thread that asks.
//!
//! What other threads allocate is not counted, so a target whose work runs on threads of its own is bounded by the process only.
#![allow(
    unsafe_code,
    reason = "an allocator is an unsafe trait; this one passes every call on to the system's"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// What one input may hold at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// For each byte of the input, in bytes.
    pub per_byte: usize,
    /// In any case, in bytes.
    pub fixed: usize,
}

impl Bound {
    /// The bound for an input of this length, in bytes.
    #[must_use]
    pub fn bytes(self, input_bytes: usize) -> usize {
        self.fixed + self.per_byte * input_bytes
    }
}

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator, counting. Make it the global one of a binary.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counting;

fn count(bytes: isize) {
    // A thread that is ending has no counters any more.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(held.get())));
    });
}

fn signed(bytes: usize) -> isize {
    isize::try_from(bytes).unwrap_or(isize::MAX)
}

// SAFETY: every call goes to `System` unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(signed(layout.size()));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-signed(layout.size()));
        // SAFETY: the caller keeps the contract of `dealloc`; the block came from `System`.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // Both blocks are there while the bytes are copied.
        count(signed(new_size));
        // SAFETY: the caller keeps the contract of `realloc`; the block came from `System`.
        let moved = unsafe { System.realloc(block, layout, new_size) };
        count(-signed(layout.size()));
        moved
    }
}

/// Runs `act`; gives the most bytes that this thread held meanwhile beyond what it held before. 0 when [`Counting`] is not the
/// allocator.
pub fn peak_of(act: impl FnOnce()) -> usize {
    let before = HELD.get();
    PEAK.set(before);
    act();
    usize::try_from(PEAK.get() - before).unwrap_or(0)
}
