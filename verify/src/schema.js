// Kinds of fields and closed maps (docs/PROTOCOL.md, Kinds of fields; order of refusals R-BY-6). A kind is a function
// (value, map) that refuses or returns; `map` is the map the field stands in, for fields that are compared with another.

import { encode } from './cbor.js'
import { CID, DAG_CBOR, SHA2_256, sameBytes } from './cid.js'
import { refuse } from './codes.js'
import * as limits from './limits.js'
import { checkPrincipal, parseAgent } from './principal.js'

const utf8 = new TextEncoder()
export const typeFault = (what) => refuse('E_SCHEMA_TYPE', `${what} expected`)

// C0, DEL, C1 and the characters with the Unicode property Bidi_Control
// eslint-disable-next-line no-control-regex
const UNSAFE = /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/

const isBytes = (value) => value instanceof Uint8Array
const isMap = (value) => value instanceof Map
const isLink = (value) => value instanceof CID

function byteLength (text) {
  return text.length < 64 && !/[^\x00-\x7f]/.test(text) ? text.length : utf8.encode(text).length // eslint-disable-line no-control-regex
}

/** Bytes of one length. */
export const bytes = (length) => (value) => {
  if (!isBytes(value)) typeFault('bytes')
  if (value.length !== length) refuse('E_SCHEMA_LEN', `${length} bytes expected, found ${value.length}`)
}

export const anyBytes = (value) => { if (!isBytes(value)) typeFault('bytes') }

export const principal = (value) => {
  if (!isBytes(value)) typeFault('a principal')
  checkPrincipal(value)
}

/** A rule that a principal is left out when it is the signer. */
export const notSigner = (field) => (map) => {
  if (map.has(field) && sameBytes(map.get(field), map.get('signer'))) refuse('E_CBOR_NONCANON', `${field} is the signer`)
}

export const block = (value) => { if (!isLink(value)) typeFault('a link') }

export const cap = (value) => {
  block(value)
  if (value.code !== DAG_CBOR) refuse('E_CID_CODEC', 'a dag-cbor link expected')
}

export const entry = (value) => {
  cap(value)
  if (value.multihash.code !== SHA2_256) refuse('E_CID_HASH', 'a sha2-256 link expected')
}

/** A rule that a skip is left out when it is prev. */
export const skipIsPrev = (map) => {
  if (map.get('skip')?.equals(map.get('prev'))) refuse('E_CBOR_NONCANON', 'skip is prev')
}

/** A version that this program knows is never written; a higher one was refused before. */
export const version = (map) => {
  if (!map.has('v')) return
  const value = map.get('v')
  if (value === null) refuse('E_SCHEMA_NULL', 'v is null')
  if (isNothing(value)) refuse('E_CBOR_NONCANON', 'v is there and empty')
  if (typeof value !== 'number') typeFault('a version')
  refuse('E_CBOR_NONCANON', 'version 1 is spelled out')
}

export const uint = (value) => {
  if (typeof value !== 'number') typeFault('an unsigned integer')
  if (value < 0) refuse('E_CBOR_INTRANGE', 'a negative number')
}

export const ms = (value) => {
  uint(value)
  if (value >= limits.MS_END) refuse('E_CBOR_INTRANGE', 'milliseconds of 2^48 or more')
}

export const text = (value) => { if (typeof value !== 'string') typeFault('text') }

function bounded (value, max) {
  text(value)
  const length = byteLength(value)
  if (length < 1 || length > max) refuse('E_SCHEMA_LEN', `text of 1 to ${max} bytes expected, found ${length}`)
}

export const id = (value) => {
  bounded(value, limits.ID)
  if (!/^[\x21-\x7e]+$/.test(value)) refuse('E_SCHEMA_TEXT', 'printable ascii expected')
}

export const name = (value) => {
  bounded(value, limits.NAME)
  if (UNSAFE.test(value)) refuse('E_SCHEMA_TEXT', 'control or bidi characters')
}

export const agent = (value) => {
  text(value)
  parseAgent(value)
}

/** Seed's label: at most 512 bytes, at its ends no character with the Unicode property White_Space (not JavaScript's `trim`). */
export const label = (value) => {
  bounded(value, limits.LABEL)
  if (/^\p{White_Space}|\p{White_Space}$/u.test(value)) refuse('E_SCHEMA_TEXT', 'a label is trimmed')
}

/** Seed's path, which may be empty: begins with a slash, does not end with one, none of its forbidden characters. */
export const seedPath = (value) => {
  text(value)
  if (value === '') return
  // eslint-disable-next-line no-control-regex
  if (!/^\//.test(value) || /\/$/.test(value) || /['"\\\u0000\n\r\t]/.test(value)) refuse('E_SCHEMA_TEXT', 'a path begins with / and has clean segments')
}

/** One word of a list. */
export const oneOf = (...words) => (value) => {
  if (!words.includes(value)) typeFault(words.join(' or '))
}

/** An array of at most `max`. */
export const list = (kind, max = Infinity) => (value, map) => {
  if (!Array.isArray(value)) typeFault('an array')
  if (value.length > max) refuse('E_SCHEMA_LEN', `at most ${max} items, found ${value.length}`)
  for (const item of value) {
    if (item === null) refuse('E_SCHEMA_NULL', 'null in an array')
    kind(item, map)
  }
}

/** An array whose inside is not ours to judge. */
export const openList = (value) => { if (!Array.isArray(value)) typeFault('an array') }

/** A map whose inside is not ours to judge. */
export const openMap = (value) => { if (!isMap(value)) typeFault('a map') }

/** Null at any depth, also under keys that are not ours. */
export function refuseNulls (value) {
  if (value === null) refuse('E_SCHEMA_NULL', 'null where nothing is null')
  if (isMap(value)) value.forEach(refuseNulls)
  else if (Array.isArray(value)) value.forEach(refuseNulls)
}

export const ext = (value) => {
  openMap(value)
  if (encode(value).length > limits.EXT) refuse('E_TOO_BIG', `x of more than ${limits.EXT} bytes`)
  refuseNulls(value)
}

/** Absent, empty, zero or false: what an optional field is left out for. */
export function isNothing (value) {
  return value === '' || value === 0 || value === false || value.length === 0 || value.size === 0
}

/**
 * Makes a shape of a table. `'name'` is a required field, `'name?'` an optional one that is left out when empty, `'name??'` an
 * optional one that may be there and empty, `'!word'` a rule over the whole map. Fields are judged and rules asked in the order
 * of the table, which is the order of docs/PROTOCOL.md (R-BY-6).
 * @param {Record<string, Function>} table
 */
export function fields (table) {
  const steps = Object.entries(table).map(([name, kind]) => {
    const key = name.replace(/\?+$/, '')
    return { key, kind, optional: key !== name, lean: name === `${key}?`, rule: name.startsWith('!') }
  })
  const keys = steps.filter(({ rule }) => !rule)
  return { steps, known: new Set(keys.map(({ key }) => key)), required: keys.filter(({ optional }) => !optional).map(({ key }) => key) }
}

/** The shape of an inner map: its fields are judged in the canonical order of their keys (R-BY-6). */
function innerFields (table) {
  const shape = fields(table)
  shape.steps.sort((a, b) => a.key.length - b.key.length || (a.key < b.key ? -1 : 1))
  return shape
}

function checkMissing (map, shape) {
  for (const key of shape.required) if (!map.has(key)) refuse('E_SCHEMA_MISSING', `${key} is missing`)
}

/** UNKNOWN, then MISSING. */
export function checkKeys (map, shape) {
  for (const key of map.keys()) if (!shape.known.has(key)) refuse('E_SCHEMA_UNKNOWN', `unknown field ${visible(key)}`)
  checkMissing(map, shape)
}

/** Field by field: NULL, NONCANON, then what the kind refuses. Fields that are not of the shape are passed over. */
export function checkFields (map, shape) {
  for (const { key, kind, lean, rule } of shape.steps) {
    if (rule) {
      kind(map)
      continue
    }
    const value = map.get(key)
    if (value === undefined) continue
    if (value === null) refuse('E_SCHEMA_NULL', `${key} is null`)
    if (lean && isNothing(value)) refuse('E_CBOR_NONCANON', `${key} is there and empty`)
    kind(value, map)
  }
}

/** A closed map of these fields. */
export const closed = (table) => {
  const shape = innerFields(table)
  return (value) => {
    openMap(value)
    checkKeys(value, shape)
    checkFields(value, shape)
  }
}

/** A map of which these fields are known and checked, and others kept. */
export const open = (table) => {
  const shape = innerFields(table)
  return (value) => {
    openMap(value)
    checkMissing(value, shape)
    checkFields(value, shape)
  }
}

function visible (key) {
  return /^[\x21-\x7e]{1,40}$/.test(key) ? key : 'of another spelling'
}

export { isMap, isBytes }
