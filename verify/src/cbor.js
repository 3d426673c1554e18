// The strict DAG-CBOR profile (R-BY-1 to R-BY-4). The reader is our own, because each fault has its code and the order of
// refusals is part of the protocol; the writer, which writes every value again, is cborg with what makes DAG-CBOR of it, which
// shares no code with the reader. Maps are Map objects (no key is magic), bytes are views into the input, links are CIDs,
// integers are numbers.

import { encodeOptions } from '@ipld/dag-cbor'
import { encode as write } from 'cborg'
import { refuse } from './codes.js'
import { cidFromBytes, compareBytes, plain, sameBytes } from './cid.js'
import { DEPTH_OPEN, HEADS } from './limits.js'

// @ipld/dag-cbor refuses the empty key, which DAG-CBOR allows and anybody may send.
const OPTIONS = { ...encodeOptions, typeEncoders: { ...encodeOptions.typeEncoders, Map: () => null } }
const writeAgain = (value) => write(value, OPTIONS)

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })

const UINT = 0; const NINT = 1; const BYTES = 2; const TEXT = 3; const ARRAY = 4; const MAP = 5; const TAG = 6; const SIMPLE = 7

class Reader {
  constructor (bytes, limit) {
    this.bytes = bytes
    this.at = 0
    this.limit = limit
    this.depth = 0 // deepest level seen
    this.links = 0
    this.nonAscii = Infinity // the lowest level of a map with a key that is not ASCII
    this.argument = 0
  }

  /** Reads a head, leaves its argument in `this.argument` and returns its major type. Not for major 7. */
  head (initial) {
    const major = initial >> 5
    const info = initial & 31
    const size = info < 24 ? 0 : info < 28 ? 1 << (info - 24) : -1
    if (size < 0) {
      if (info === 31 && major >= BYTES && major <= MAP) refuse('E_CBOR_INDEF', 'an item of indefinite length')
      refuse('E_CBOR_SYNTAX', `reserved head 0x${initial.toString(16)}`)
    }
    let argument = info
    if (size > 0) {
      if (this.at + size > this.bytes.length) refuse('E_CBOR_EOF', 'the bytes end within a head')
      argument = 0
      for (let i = 0; i < size; i++) argument = argument * 256 + this.bytes[this.at++]
    }
    if (major >= BYTES && major <= MAP && argument > this.bytes.length - this.at) {
      refuse('E_CBOR_LEN', `a length of ${argument}, ${this.bytes.length - this.at} bytes remain`)
    }
    if ((size === 1 && argument < 24) || (size > 1 && argument < 2 ** (4 * size))) refuse('E_CBOR_NONCANON', 'a head that is not the shortest')
    this.argument = argument
    return major
  }

  next () {
    if (this.at >= this.bytes.length) refuse('E_CBOR_EOF', 'the bytes end where an item should begin')
    return this.bytes[this.at++]
  }

  take () {
    const from = this.at
    this.at += this.argument
    return this.bytes.subarray(from, this.at)
  }

  text () {
    const bytes = this.take()
    if (bytes.length < 32) {
      let all = 0
      for (const byte of bytes) all |= byte
      if (all < 0x80) return String.fromCharCode.apply(null, bytes)
    }
    try {
      return utf8.decode(bytes)
    } catch {
      return refuse('E_CBOR_UTF8', 'text that is not UTF-8')
    }
  }

  /** Head, then depth, then content: the faults of a head come before E_CBOR_DEPTH, all others after it. */
  item (level) {
    const initial = this.next()
    const major = initial >= 0xe0 ? this.simpleHead(initial) : this.head(initial)
    if (level > this.limit) refuse('E_CBOR_DEPTH', `deeper than ${this.limit} levels`)
    if (level > this.depth) this.depth = level
    switch (major) {
      case UINT:
        if (this.argument > Number.MAX_SAFE_INTEGER) refuse('E_CBOR_INTRANGE', 'an integer above 2^53 - 1')
        return this.argument
      case NINT:
        if (this.argument >= Number.MAX_SAFE_INTEGER) refuse('E_CBOR_INTRANGE', 'an integer below -(2^53 - 1)')
        return -1 - this.argument
      case BYTES: return this.take()
      case TEXT: return this.text()
      case ARRAY: return this.array(level)
      case MAP: return this.map(level)
      case TAG: return this.tag(level)
      default: return simple(initial & 31)
    }
  }

  /** The head of major type 7, which has no shortest form. */
  simpleHead (initial) {
    const info = initial & 31
    if (info > 27) refuse('E_CBOR_SYNTAX', `reserved head 0x${initial.toString(16)}`)
    if (info >= 24 && this.at + (1 << (info - 24)) > this.bytes.length) refuse('E_CBOR_EOF', 'the bytes end within a head')
    return SIMPLE
  }

  array (level) {
    const values = []
    for (let left = this.argument; left > 0; left--) values.push(this.item(level + 1))
    return values
  }

  map (level) {
    const values = new Map()
    let before = null
    for (let left = this.argument; left > 0; left--) {
      const initial = this.next()
      // a key of another kind is refused for its kind, once its head is sound
      if ((initial >= 0xe0 ? this.simpleHead(initial) : this.head(initial)) !== TEXT) refuse('E_CBOR_KEYTYPE', 'a key that is not text')
      const from = this.at
      const key = this.text()
      const raw = this.bytes.subarray(from, this.at)
      if (raw.length !== key.length && level < this.nonAscii) this.nonAscii = level
      if (before !== null) {
        const order = raw.length - before.length || compareBytes(raw, before)
        if (order === 0) refuse('E_CBOR_DUPKEY', 'a key that stands twice')
        if (order < 0) refuse('E_CBOR_KEYORDER', 'keys out of order')
      }
      before = raw
      values.set(key, this.item(level + 1))
    }
    return values
  }

  /** Only 42 over a byte string. Other content is read first, so its own faults and its depth come before E_CBOR_TAG. */
  tag (level) {
    if (this.argument !== 42) refuse('E_CBOR_TAG', `tag ${this.argument}`)
    const initial = this.next()
    if (initial >> 5 !== BYTES) {
      this.at--
      this.item(level + 1)
      refuse('E_CBOR_TAG', 'tag 42 over something else than bytes')
    }
    this.head(initial)
    const bytes = this.take()
    if (bytes.length === 0 || bytes[0] !== 0) refuse('E_CID_PREFIX', 'a link without its 0x00')
    this.links++
    return cidFromBytes(bytes.subarray(1))
  }
}

function simple (info) {
  if (info > 24) refuse('E_CBOR_FLOAT', 'a float')
  if (info === 20) return false
  if (info === 21) return true
  if (info === 22) return null
  return refuse('E_CBOR_SIMPLE', 'a simple value other than true, false and null')
}

/**
 * Refuses bytes of more than `max` heads before any becomes a value (R-BY-7): one head after the other, whatever they make up.
 * Where the bytes are no head the reader says why.
 */
export function countHeads (bytes, max, code = 'E_TOO_BIG') {
  if (bytes.length <= max) return
  let at = 0
  for (let heads = 1; at < bytes.length; heads++) {
    if (heads > max) refuse(code, `more than ${max} items`)
    const major = bytes[at] >> 5
    const info = bytes[at] & 31
    at++
    if (info > 27) return
    const size = info < 24 ? 0 : 1 << (info - 24)
    if (at + size > bytes.length) return
    let argument = size === 0 ? info : 0
    for (let i = 0; i < size; i++) argument = argument * 256 + bytes[at++]
    if (major !== BYTES && major !== TEXT) continue
    if (argument > bytes.length - at) return
    at += argument
  }
}

/** `decode` for payloads, config blocks and blobs of any type: 64 levels unless told, and a bound on how many items there are. */
export function decodeOpen (bytes, depth = DEPTH_OPEN) {
  countHeads(bytes, HEADS)
  return decode(bytes, depth)
}

/**
 * Reads the one item that `bytes` are. `nonAscii` is the lowest level of a map with a key that is not ASCII, else Infinity.
 * @param {Uint8Array} bytes
 * @param {number} limit levels of nesting
 * @returns {{value: any, depth: number, links: number, nonAscii: number}}
 */
export function decode (bytes, limit) {
  const reader = new Reader(plain(bytes), limit)
  const value = reader.item(1)
  if (reader.at !== bytes.length) refuse('E_CBOR_TRAILING', `${bytes.length - reader.at} bytes after the item`)
  if (!sameBytes(writeAgain(value), bytes)) refuse('E_CBOR_NONCANON', 'written again, the bytes differ')
  return { value, depth: reader.depth, links: reader.links, nonAscii: reader.nonAscii }
}

/** The canonical bytes of a value as `decode` gives it. */
export function encode (value) {
  return plain(writeAgain(value))
}
