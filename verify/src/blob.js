// One blob as it is received (R-BY, R-SG, R-EN-1): bytes, form, schema, key, signature, in this order; and the making of
// one, for tests. Decides what a blob is by itself and never what its place makes of it.

import { ed25519 } from '@noble/curves/ed25519.js'
import { TYPES, UNKNOWN_ENTRY } from './blobs.js'
import { decodeOpen, encode } from './cbor.js'
import { cidOf, plain } from './cid.js'
import { refuse } from './codes.js'
import { checkSignature } from './ed25519.js'
import * as limits from './limits.js'
import { hex } from './principal.js'
import { checkFields, checkKeys, isMap } from './schema.js'

/** A signed blob that was read: its type, its fields by name, its CID (text) and who signed it (hex). */
export class Blob {
  /**
   * @param {Uint8Array} bytes
   * @param {Map<string, any>} map
   * @param {object} rule of its type
   */
  constructor (bytes, map, rule) {
    this.bytes = bytes
    this.map = map
    this.rule = rule
    this.type = map.get('type')
    this.signer = hex(map.get('signer'))
    this.space = map.has('space') ? hex(map.get('space')) : null
    this.owner = this.space ?? this.signer
    this.ts = map.get('ts')
    this.link = cidOf(bytes)
    this.cid = this.link.toString()
  }

  get (field) {
    return this.map.get(field)
  }

  /** The text of the CID in a field, or null. */
  cidIn (field) {
    const link = this.map.get(field)
    return link === undefined ? null : link.toString()
  }

  get isEntry () { return this.rule.entry === true }
  get seq () { return this.map.get('seq') ?? 0 }
  get epoch () { return this.map.get('epoch') ?? 0 }
  get genesis () { return this.type === 'SessionGenesis' ? this.cid : this.cidIn('genesis') }
}

/** R-BY-6 for a blob of the type that `map` names. */
function checkSchema (bytes, map, rule, facts) {
  const tooBig = (max) => { if (bytes.length > max) refuse('E_TOO_BIG', `${bytes.length} bytes, at most ${max}`) }
  tooBig(rule.max)
  if (facts.depth > rule.depth) refuse('E_CBOR_DEPTH', `deeper than ${rule.depth} levels`)
  if (rule.entry && facts.links > limits.LINKS) refuse('E_TOO_MANY_LINKS', `${facts.links} links, at most ${limits.LINKS}`)
  if (rule.ours) {
    const version = map.get('v')
    if (typeof version === 'number' && version > 1) refuse('E_VERSION', `version ${version}`)
  }
  if (facts.nonAscii <= rule.asciiLevels) refuse('E_SCHEMA_KEY', 'a key that is not ascii')
  if (rule === UNKNOWN_ENTRY) refuse('E_TYPE', 'a type that is not known')
  tooBig(rule.ownMax)
  const shape = rule.shapeOf?.(map) ?? rule.shape
  for (const key of rule.barred?.[0] ?? []) if (map.has(key)) refuse(rule.barred[1], `a ${map.get('type')} has no ${key}`)
  try {
    checkKeys(map, shape)
  } catch (error) {
    const onlyPrev = error.code === 'E_SCHEMA_MISSING' && shape.required.every((key) => key === 'prev' || map.has(key))
    if (onlyPrev) refuse('E_PREV_MISSING', 'prev is missing')
    throw error
  }
  checkFields(map, shape)
}

/**
 * Reads a blob and checks all of it but its signature.
 * @param {Uint8Array} bytes
 * @returns {Blob}
 */
export function readBlob (bytes) {
  bytes = plain(bytes)
  if (bytes.length > limits.BLOCK) refuse('E_TOO_BIG', `${bytes.length} bytes, at most ${limits.BLOCK}`)
  const facts = decodeOpen(bytes)
  const map = facts.value
  if (!isMap(map)) refuse('E_SCHEMA_TYPE', 'a blob is a map')
  if (!map.has('type')) refuse('E_SCHEMA_MISSING', 'type is missing')
  const type = map.get('type')
  if (typeof type !== 'string') refuse('E_SCHEMA_TYPE', 'type is text')
  const rule = TYPES.get(type) ?? (type.startsWith('Session') ? UNKNOWN_ENTRY : refuse('E_TYPE', 'a type that is not known'))
  checkSchema(bytes, map, rule, facts)
  return new Blob(bytes, map, rule)
}

/** The blob's bytes with its 64 signature bytes zeroed: what is signed. */
export function signedBytes (blob) {
  const sig = blob.get('sig')
  const zeroed = blob.bytes.slice()
  const at = sig.byteOffset - blob.bytes.byteOffset // `sig` is a view into the bytes, found by parsing
  return zeroed.fill(0, at, at + 64)
}

/**
 * Checks the key and the signature of a blob that was read.
 * @param {Blob} blob
 */
export function checkSigned (blob) {
  checkSignature(blob.get('sig'), signedBytes(blob), blob.get('signer').subarray(2))
}

/**
 * Reads a blob and checks all of it.
 * @param {Uint8Array} bytes
 * @returns {Blob}
 */
export function checkBlob (bytes) {
  const blob = readBlob(bytes)
  checkSigned(blob)
  return blob
}

/**
 * Builds and signs a blob: for tests and fixtures. Checks nothing.
 * @param {Record<string, any>} fields without sig and signer
 * @param {Uint8Array} seed 32 bytes
 * @returns {Uint8Array}
 */
export function signBlob (fields, seed) {
  const signer = new Uint8Array([0xed, 0x01, ...ed25519.getPublicKey(seed)])
  const map = new Map(Object.entries({ ...fields, signer, sig: new Uint8Array(64) }).filter(([, value]) => value !== undefined))
  map.set('sig', ed25519.sign(encode(map), seed))
  return encode(map)
}

