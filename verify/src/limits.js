// Every bound of docs/PROTOCOL.md (Bytes, Kinds of fields, Entries, Streams). Bytes unless a name says otherwise.
// It must never grow a bound that depends on the machine or on the input.

export const ENTRY = 16_384
export const CONTROL = 8_192 // Ref, Capability, CapabilityTombstone, SessionHandoff
export const PAYLOAD = 1_048_576
export const BLOCK = 2_097_152 // raw blocks, and Seed's other types, which have no bound of their own
export const FRAME = 2_162_688
export const FRAME_HEADS = 32_768 // CBOR heads of one frame
export const EXT = 4_096
export const LINKS = 256

export const DEPTH_BLOB = 16 // entries, control blobs, frames
export const DEPTH_OPEN = 64 // payloads, Seed's documents
export const HEADS = 131_072 // CBOR heads of one payload, config block or blob

export const ID = 128
export const NAME = 256
export const IRI = 512
export const LABEL = 512
export const PATH = 256
export const SEGMENT = 128

export const MS_END = 2 ** 48

export const CAR_HEADER = 16_384 // a header with one root has 58 bytes
export const CAR_SECTION = BLOCK + 64 // a CID and a block
export const CAR_SEEN = 65_536 // blocks beside entries that are remembered, to find one that stands twice
export const CAR_NAMED = 65_536 // blocks that the payload and the files of one entry may name

export const INVENTORY_ABSENT = 65_536 // payloads that are not here, and redactions, that are told apart
export const INVENTORY_NAMED = 262_144 // files, and config blocks, of one session that are counted
export const INVENTORY_BLOCKS = 1_048_576 // blocks of files that are looked at
