// CARv1 (R-FI-3): one root, blocks as they come. Reads a stream in pieces of any size and holds at most one section. It says
// where a file is broken; what the blocks mean is `verify.js`.

import { decode, encode } from './cbor.js'
import { isLink, readCid } from './cid.js'
import { Reject, refuse } from './codes.js'
import * as limits from './limits.js'
import { isMap } from './schema.js'

/** A minimal varint at `at`: [value, offset behind it], null when more bytes are needed. */
function varint (bytes, at, max, code) {
  let value = 0
  for (let n = 0; n < 4; n++) {
    if (at + n >= bytes.length) return null
    const byte = bytes[at + n]
    value += (byte & 0x7f) * 2 ** (7 * n)
    if (byte < 0x80) {
      if ((byte === 0 && n > 0) || value === 0 || value > max) refuse(code, `a length of ${value}`)
      return [value, at + n + 1]
    }
  }
  return refuse(code, 'a length of more than 4 bytes')
}

function readHeader (bytes) {
  let header
  try {
    header = decode(bytes, limits.DEPTH_BLOB).value
  } catch (error) {
    if (!(error instanceof Reject)) throw error
    refuse('E_CAR_HEADER', `a header that is not DAG-CBOR (${error.code})`)
  }
  const roots = isMap(header) ? header.get('roots') : null
  if (header?.size !== 2 || header.get('version') !== 1 || !Array.isArray(roots)) refuse('E_CAR_HEADER', 'roots and version 1 expected')
  if (!roots.every(isLink)) refuse('E_CAR_HEADER', 'a root that is no link')
  if (roots.length !== 1) refuse('E_CAR_ROOT', `one root expected, found ${roots.length}`)
  return roots[0]
}

/** Takes the bytes of a CAR piece by piece. */
export class CarReader {
  /** @param {(root: import('./cid.js').CID) => void} [onRoot] judges the root before anything after it is read */
  constructor (onRoot = () => {}) {
    this.root = null
    this.onRoot = onRoot
    this.rest = new Uint8Array(0)
  }

  /**
   * The blocks that `chunk` completes: [{cid, bytes}]. Blocks before a fault come first; the fault is then thrown by the
   * next step of the generator.
   * @param {Uint8Array} chunk
   */
  * push (chunk) {
    const bytes = new Uint8Array(this.rest.length + chunk.length)
    bytes.set(this.rest)
    bytes.set(chunk, this.rest.length)
    let at = 0
    try {
      for (;;) {
        const inHeader = this.root === null
        const head = inHeader
          ? varint(bytes, at, limits.CAR_HEADER, 'E_CAR_HEADER')
          : varint(bytes, at, limits.CAR_SECTION, 'E_CAR_VARINT')
        if (head === null || bytes.length - head[1] < head[0]) return
        const [length, from] = head
        const section = bytes.subarray(from, from + length)
        at = from + length
        if (inHeader) {
          this.root = readHeader(section)
          this.onRoot(this.root)
          continue
        }
        const [cid, end] = readCid(section, 0)
        yield { cid, bytes: section.slice(end) }
      }
    } finally {
      this.rest = bytes.slice(at)
    }
  }

  /** Says that no more bytes come. */
  end () {
    if (this.root === null) refuse('E_CAR_TRUNCATED', 'the file ends within its header')
    if (this.rest.length > 0) refuse('E_CAR_TRUNCATED', 'the file ends within a block')
  }
}

function lengthBytes (length) {
  const bytes = []
  for (; length >= 0x80; length = Math.floor(length / 128)) bytes.push((length % 128) | 0x80)
  return [...bytes, length]
}

/**
 * Writes a CAR: for tests and fixtures.
 * @param {import('./cid.js').CID} root
 * @param {{cid: import('./cid.js').CID, bytes: Uint8Array}[]} blocks
 */
export function writeCar (root, blocks) {
  const header = encode({ roots: [root], version: 1 })
  const parts = [Uint8Array.from(lengthBytes(header.length)), header]
  for (const { cid, bytes } of blocks) parts.push(Uint8Array.from(lengthBytes(cid.bytes.length + bytes.length)), cid.bytes, bytes)
  const out = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0))
  let at = 0
  for (const part of parts) { out.set(part, at); at += part.length }
  return out
}

