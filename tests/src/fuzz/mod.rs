//! Fuzz targets: hostile bytes in, properties checked. `docs/TESTING.md` §Fuzzing tells how to run them for long.
//!
//! A target is a function of bytes that returns when every property holds and panics when one does not. Most say: what is accepted
//! is written back byte for byte, and nothing that is printed reads back as something else. Three things run them:
//!
//! ```text
//! tests/fuzz (libFuzzer, nightly) ─┐
//! bin fuzz-smoke (stable, seeded) ─┼─▶ TARGETS ─▶ protocol, node
//! suite: fuzz:: (runs the binary) ─┘      └─ corpus: tests/fuzz/corpus/<target>
//! ```
//!
//! The stable runner also holds each input to a bound on memory ([`heap`]): a decoder that allocates what a length declares fails it.

pub mod heap;
pub mod seeds;
pub mod sets;
pub mod smoke;
mod targets;

use heap::Bound;

/// One fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name; also that of its corpus directory and of its binary.
    pub name: &'static str,
    /// Checks the properties for one input.
    pub run: fn(&[u8]),
    /// Longest input, in bytes.
    pub bytes_max: usize,
    /// What one input may hold of memory at a time.
    pub heap: Bound,
    /// Mutants in a smoke run; fewer where one input costs more.
    pub mutants: usize,
}

const fn target(name: &'static str, run: fn(&[u8]), heap: Bound) -> Target {
    Target { name, run, bytes_max: 4_096, heap, mutants: 6_000 }
}

const fn costly(mut target: Target, mutants: usize) -> Target {
    target.mutants = mutants;
    target
}

const fn long(mut target: Target, bytes_max: usize) -> Target {
    target.bytes_max = bytes_max;
    target
}

/// A value costs many times the byte that encodes it, and a target holds it several times: decoded, owned, written back.
const BLOB: Bound = Bound { per_byte: 1_024, fixed: 64 << 10 };
const TEXT: Bound = Bound { per_byte: 256, fixed: 64 << 10 };

/// Every target. `tests/fuzz/fuzz_targets` has one binary for each; a test holds the two lists together.
pub const TARGETS: &[Target] = &[
    target("codec", targets::values::codec, BLOB),
    target("cid", targets::values::cid, TEXT),
    target("identifier", targets::values::identifier, TEXT),
    long(target("entry", targets::blobs::entry, BLOB), 17_000),
    long(target("control", targets::blobs::control, BLOB), 9_000),
    target("seed", targets::blobs::seed, BLOB),
    target("payload", targets::payloads::payload, BLOB),
    target("draft", targets::payloads::draft, BLOB),
    long(target("frame_chain", targets::frames::chain, BLOB), 65_536),
    long(target("frame_append", targets::frames::append, BLOB), 65_536),
    target("frame_handoff", targets::frames::handoff, BLOB),
    costly(target("frame_proof", targets::frames::proof, BLOB), 2_000),
    costly(long(target("announcement", targets::frames::announcement, BLOB), 17_000), 2_000),
    costly(long(target("car", targets::files::car, BLOB), 65_536), 2_000),
    costly(long(target("session_car", targets::files::session_car, BLOB), 262_144), 400),
    target("unixfs", targets::files::unixfs, BLOB),
    target("ticket", targets::texts::ticket, TEXT),
    target("config", targets::texts::config, Bound { per_byte: 1_024, fixed: 256 << 10 }),
    costly(
        long(target("claude", targets::claude::claude, Bound { per_byte: 1_024, fixed: 1 << 20 }), 65_536),
        800,
    ),
    target("chain_state", targets::values::chain_state, BLOB),
    costly(target("select", targets::select::select, Bound { per_byte: 65_536, fixed: 8 << 20 }), 800),
    costly(target("api", targets::api::api, Bound { per_byte: 16_384, fixed: 16 << 20 }), 400),
];

/// One entry of every kind that has words, in the order in which the first byte of a `payload` input chooses.
#[must_use]
pub fn kinds_of_payload() -> &'static [throughline_protocol::entry::Entry] {
    &targets::payloads::KINDS
}

/// The target of this name.
#[must_use]
pub fn named(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// Runs a target by name: what the binaries of `tests/fuzz` do.
///
/// # Panics
/// When there is none of this name, or a property does not hold.
pub fn run(name: &str, data: &[u8]) {
    let target = named(name).unwrap_or_else(|| panic!("no target {name}"));
    (target.run)(data);
}
