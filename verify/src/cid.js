// CIDs in the allowed forms only (R-ID-2, R-ID-3, R-ID-5). A link is multiformats' CID, made here after our own checks;
// its parser, which takes more, is never asked about foreign bytes.

import { CID } from 'multiformats/cid'
import * as Digest from 'multiformats/hashes/digest'
import { base32 } from 'multiformats/bases/base32'
import { sha256 } from '@noble/hashes/sha2.js'
import { blake2b } from '@noble/hashes/blake2.js'
import { refuse } from './codes.js'

export const DAG_CBOR = 0x71
export const RAW = 0x55
export const DAG_PB = 0x70
export const SHA2_256 = 0x12
export const BLAKE2B_256 = 0xb220

const CODECS = [DAG_CBOR, RAW, DAG_PB]

/**
 * The same bytes as a plain Uint8Array: the `slice` of Node's Buffer shares memory, and zeroing the signature of a
 * "copy" would zero the original.
 * @param {Uint8Array} bytes
 */
export function plain (bytes) {
  return bytes.constructor === Uint8Array ? bytes : new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength)
}

/** An unsigned varint at `at`: [value, offset behind it]. A cut one is E_CID, a longer or larger one E_CID_VARINT. */
function varint (bytes, at) {
  let value = 0
  for (let n = 0; n < 9; n++) {
    if (at + n >= bytes.length) refuse('E_CID', 'the CID ends within a varint')
    const byte = bytes[at + n]
    value += (byte & 0x7f) * 2 ** (7 * n)
    if (byte < 0x80) {
      if (byte === 0 && n > 0) refuse('E_CID_VARINT', 'a varint with a needless byte')
      return [value, at + n + 1]
    }
  }
  return refuse('E_CID_VARINT', 'a varint of more than 9 bytes')
}

/**
 * Reads the binary CID at `at` and what follows it: [cid, offset behind it]. Checks each part as it is reached.
 * @param {Uint8Array} bytes
 * @param {number} at
 * @returns {[CID, number]}
 */
export function readCid (bytes, at) {
  if (at >= bytes.length) refuse('E_CID', 'an empty CID')
  let version, codec, hash, length
  [version, at] = varint(bytes, at)
  if (version !== 1) refuse('E_CID_VERSION', `CID version 1 expected, found ${version}`);
  [codec, at] = varint(bytes, at)
  if (!CODECS.includes(codec)) refuse('E_CID_CODEC', `codec 0x${codec.toString(16)}`);
  [hash, at] = varint(bytes, at)
  if (hash !== SHA2_256 && hash !== BLAKE2B_256) refuse('E_CID_HASH', `hash 0x${hash.toString(16)}`);
  [length, at] = varint(bytes, at)
  if (length !== 32) refuse('E_CID_DIGESTLEN', `a digest of 32 bytes expected, found ${length}`)
  if (at + 32 > bytes.length) refuse('E_CID', 'the digest is cut short')
  return [CID.create(1, codec, Digest.create(hash, bytes.slice(at, at + 32))), at + 32]
}

/**
 * The CID that these bytes are, all of them.
 * @param {Uint8Array} bytes
 * @returns {CID}
 */
export function cidFromBytes (bytes) {
  bytes = plain(bytes)
  const [cid, end] = readCid(bytes, 0)
  if (end !== bytes.length) refuse('E_CID_TRAILING', `${bytes.length - end} bytes after the CID`)
  return cid
}

/**
 * The CID that this text is: multibase base32 lower case (`b…`), the one form that is written.
 * @param {string} text
 * @returns {CID}
 */
export function cidFromText (text) {
  if (text.length > 128 || !/^b[a-z2-7]+$/.test(text)) refuse('E_CID', 'expected a CID such as bafyrei…')
  let bytes
  try {
    bytes = base32.decode(text)
  } catch {
    refuse('E_CID', 'not base32')
  }
  if (base32.encode(bytes) !== text) refuse('E_CID', 'not canonical base32')
  return cidFromBytes(bytes)
}

/** The digest of `bytes` under the hash function of `cid`. */
function digestFor (cid, bytes) {
  return cid.multihash.code === SHA2_256 ? sha256(bytes) : blake2b(bytes, { dkLen: 32 })
}

/**
 * Whether `bytes` hash to `cid`.
 * @param {CID} cid
 * @param {Uint8Array} bytes
 */
export function matches (cid, bytes) {
  return sameBytes(digestFor(cid, bytes), cid.multihash.digest)
}

/**
 * The one CID under which blobs and payloads are written: dag-cbor, sha2-256.
 * @param {Uint8Array} bytes
 * @returns {CID}
 */
export function cidOf (bytes) {
  return CID.create(1, DAG_CBOR, Digest.create(SHA2_256, sha256(bytes)))
}

/** The other CID of a control blob: dag-cbor, blake2b-256. */
export function blakeCidOf (bytes) {
  return CID.create(1, DAG_CBOR, Digest.create(BLAKE2B_256, blake2b(bytes, { dkLen: 32 })))
}

/** @returns {boolean} */
export function isLink (value) {
  return value instanceof CID
}

/**
 * Whether a link can name a file or a part of one (R-FI-4).
 * @param {CID} cid
 */
export function isFile (cid) {
  return (cid.code === RAW || cid.code === DAG_PB) && cid.multihash.code === SHA2_256
}

export function sameBytes (a, b) {
  if (a.length !== b.length) return false
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return false
  return true
}

/** -1, 0 or 1: bytewise, a prefix first. */
export function compareBytes (a, b) {
  const length = Math.min(a.length, b.length)
  for (let i = 0; i < length; i++) if (a[i] !== b[i]) return a[i] < b[i] ? -1 : 1
  return Math.sign(a.length - b.length)
}

export { CID }
