//! Every bound of the protocol in one place. `docs/PROTOCOL.md` states the same numbers, those of
//! fields in §Kinds of fields.
//!
//! A bound is a property of the format, not a tuning knob: two verifiers that differ in one of these would
//! disagree about what is valid.

/// Largest signed entry, in bytes.
pub const ENTRY_BYTES_MAX: usize = 16_384;
/// Largest payload block, in bytes.
pub const PAYLOAD_BYTES_MAX: usize = 1_048_576;
/// Largest Ref, Capability, CapabilityTombstone and SessionHandoff, in bytes.
pub const CONTROL_BYTES_MAX: usize = 8_192;
/// Largest raw block, in bytes (the block size limit of the IPFS world).
pub const RAW_BLOCK_BYTES_MAX: usize = 2_097_152;
/// Largest value of the `x` extension map, encoded, in bytes.
pub const EXT_BYTES_MAX: usize = 4_096;
/// Largest frame body on a stream: one raw block and 64 KiB of envelope, in bytes.
pub const FRAME_BYTES_MAX: usize = RAW_BLOCK_BYTES_MAX + 65_536;
/// Largest announcement, in bytes.
pub const ANNOUNCEMENT_BYTES_MAX: usize = 16_384;

/// Nesting of an entry and of a control blob; a scalar at the top is level 1.
pub const ENTRY_DEPTH_MAX: usize = 16;
/// Nesting of a payload, a Change and a Comment.
pub const PAYLOAD_DEPTH_MAX: usize = 64;
/// CBOR heads in a payload, a config block and a blob of Seed: a value in memory is many times the one byte that may encode it,
/// so bytes alone bound nothing.
pub const PAYLOAD_HEADS_MAX: usize = 131_072;
/// Links in one entry.
pub const ENTRY_LINKS_MAX: usize = 256;

/// Largest integer of our own types: 2^53 − 1, the largest that every JSON reader keeps.
pub const INTEGER_MAX: u64 = (1 << 53) - 1;
/// Largest `ts`: the last millisecond below 2^48.
pub const TS_MS_MAX: u64 = (1 << 48) - 1;
/// How far ahead of its own clock who puts another key's entry in order lets it be, in milliseconds; see [`crate::clock`].
pub const FUTURE_TS_MS_MAX: u64 = 5 * 60 * 1000;

/// Calls in one model response.
pub const CALLS_MAX: usize = 128;
/// Blobs that one tool call says it produced.
pub const PRODUCED_MAX: usize = 64;
/// Entries that one redaction names.
pub const REDACTION_ENTRIES_MAX: usize = 200;
/// Distinct signers that a seal lists.
pub const SEAL_PARTICIPANTS_MAX: usize = 256;
/// Items that a tombstone keeps.
pub const TOMBSTONE_KEEP_MAX: usize = 64;
/// Tombstones that a handoff names.
pub const HANDOFF_TOMBSTONES_MAX: usize = 64;
/// Attachments of one user message.
pub const ATTACHMENTS_MAX: usize = 64;

/// CIDs in a range request's locator and in an answer's skip path.
pub const LOCATOR_MAX: usize = 64;
/// Sessions in one `heads` request.
pub const HEADS_SESSIONS_MAX: usize = 1_024;
/// CIDs in one `blobs` request.
pub const BLOBS_MAX: usize = 64;
/// Hashes in one `control` request.
pub const CONTROL_HAVE_MAX: usize = 4_096;
/// Blobs in one control frame.
pub const CONTROL_FRAME_MAX: usize = 256;
/// Blobs in all control frames of one range answer: every capability that a node keeps of an owner and a tombstone of each, so that an
/// owner of many revocations is still judged.
pub const CONTROL_BLOBS_MAX: usize = 16_384;
/// Bytes of all control blobs of one range answer.
pub const CONTROL_TOTAL_BYTES_MAX: usize = 8_388_608;
/// Blobs up to which a range answer also brings some that no verdict on its session needs.
pub const CONTROL_SPARE_BLOBS_MAX: usize = 256;
/// The same in bytes.
pub const CONTROL_SPARE_BYTES_MAX: usize = 1_048_576;

/// Entries of one append request.
pub const APPEND_ENTRIES_MAX: usize = 256;

/// Chunk of a UnixFS file and largest file that is one raw block, in bytes.
pub const FILE_CHUNK_BYTES: usize = 262_144;
/// Files up to this size are one raw block; above it they are UnixFS with chunks of [`FILE_CHUNK_BYTES`].
pub const FILE_SINGLE_BLOCK_BYTES_MAX: usize = 1_048_576;

/// Capabilities that one request carries.
pub const GRANTS_MAX: usize = 4;
/// Owners in one `heads` request or answer.
pub const HEADS_OWNERS_MAX: usize = 1_024;
/// Entries in one frame of a range answer.
pub const ENTRIES_FRAME_MAX: usize = 4_096;
/// Size at which an answer that streams begins the next frame, in bytes.
pub const FRAME_TARGET_BYTES: usize = 1_048_576;
/// The same for the entries of a range answer, in bytes: small enough that the first are verified while the next are on their
/// way, and that every core has one to verify. What a server chooses; nobody else has to.
pub const ENTRIES_TARGET_BYTES: usize = 262_144;
/// Entries at which a range answer begins the next frame, for the same reason: most of what an entry costs is its signature.
pub const ENTRIES_TARGET: usize = 64;
/// CBOR items of one frame; the largest honest frame (4,096 entries with payloads) has under 21,000.
pub const FRAME_ITEMS_MAX: usize = 32_768;
/// Entries that a conflict answer shows.
pub const CONFLICT_BETWEEN_MAX: usize = 64;
/// Addresses in a ticket, an offer and a hint.
pub const ADDRESSES_MAX: usize = 8;
/// One address, in bytes.
pub const ADDRESS_BYTES_MAX: usize = 512;
/// Tools that a prepared target lists.
pub const PREPARED_TOOLS_MAX: usize = 256;
/// The detail of an error answer, in bytes.
pub const ERROR_DETAIL_BYTES_MAX: usize = 1_024;
/// Control blobs beside an announced blob.
pub const ANNOUNCEMENT_CONTROL_MAX: usize = 2;
/// How far a peer proof's time may lie from the answerer's clock, in milliseconds.
pub const PEER_PROOF_WINDOW_MS: u64 = 10 * 60 * 1000;

/// Header of a CAR, in bytes.
pub const CAR_HEADER_BYTES_MAX: usize = 16_384;
/// Section of a CAR: one raw block and its CID, in bytes.
pub const CAR_SECTION_BYTES_MAX: usize = RAW_BLOCK_BYTES_MAX + 64;
/// Children of a UnixFS node (the balanced layout of Kubo and Seed).
pub const FILE_LINKS_MAX: usize = 174;
/// Levels of a UnixFS file that are followed; 174^8 leaves are more than any file has.
pub const FILE_DEPTH_MAX: usize = 8;
