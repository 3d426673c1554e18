// Payloads (R-PA-1 to R-PA-4): the words of an entry. They have no type; the entry's type, and a note's kind, decide.

import { sha256 } from '@noble/hashes/sha2.js'
import { decodeOpen } from './cbor.js'
import { cidOf, sameBytes } from './cid.js'
import { refuse } from './codes.js'
import * as limits from './limits.js'
import { refuseRepeated } from './blobs.js'
import {
  anyBytes, block, bytes, checkFields, checkKeys, closed, entry, ext, fields, id, isMap, list, name, open, openMap, refuseNulls, text, typeFault,
  uint
} from './schema.js'

const json = text
const lineNumber = (value) => {
  uint(value)
  if (value === 0) typeFault('a line number of at least 1')
}
const source = closed({ format: id, file: block, line: lineNumber, 'id?': id, 'ts?': id, 'group?': id, 'parent?': id, 'lines?': list(uint) })
const attachment = closed({ cid: block, 'name?': name, size: uint, mediaType: id })
const error = closed({ message: text, 'code?': id, 'raw?': json })
const opaque = open({ provider: id, kind: name, raw: json })
/** An opaque that stands where nothing else can has no `type`. */
const bareOpaque = (value) => {
  opaque(value)
  if (value.has('type')) refuse('E_CBOR_NONCANON', 'type is spelled out')
}

const CONTENT = {
  text: open({ text, 'citations?': list(json), 'phase?': id, 'thoughtSignature?': text }),
  reasoning: open({
    'text?': text,
    'summary?': list(text),
    'signature?': text,
    'redacted?': text,
    'encrypted?': text,
    binding: closed({ 'api?': id, model: name, provider: id, 'account?': bytes(32) })
  }),
  toolCall: open({ callId: id, 'providerCallId?': text, name, input: json, 'thoughtSignature?': text }),
  media: open({ cid: block, size: uint, mediaType: id, 'name?': name }),
  refusal: open({ text }),
  opaque
}

const typed = open({ type: name })
const content = (value) => {
  typed(value)
  const type = value.get('type')
  if (Object.hasOwn(CONTENT, type)) CONTENT[type](value)
}

/** Seed's comment block. What of it is there may be empty. */
const seedBlock = open({ id, type: name, 'text??': text, 'link??': text, 'annotations??': list(openMap), children: (value) => list(seedBlock)(value) })

const distinctCalls = (map) => {
  refuseRepeated(map.get('content').filter((part) => part.get('type') === 'toolCall').map((part) => part.get('callId')))
}

const shape = (table) => fields({ ...table, salt: bytes(32), 'x?': ext })

/** Fields by entry type, and by `note` and kind. */
export const PAYLOADS = new Map(Object.entries({
  SessionGenesis: shape({
    'title?': name,
    'source?': source,
    'environment?': closed({ 'os?': text, 'cwd?': text, 'repo?': text, 'branch?': text, 'commit?': text, 'tools?': list(name) })
  }),
  SessionUserMessage: shape({
    body: list(seedBlock),
    'context?': text,
    'attachments?': list(attachment, 64),
    'participant?': closed({ id, 'role?': id, 'channel?': name }),
    'clientMessageId?': id,
    'envelope?': anyBytes,
    'source?': source
  }),
  SessionModelResponse: shape({ content: list(content), '!calls': distinctCalls, 'error?': error, 'usageRaw?': json, 'source?': source }),
  SessionToolCall: shape({ 'input?': json, 'output?': json, 'content?': list(content), 'error?': text, 'source?': source }),
  'note title': shape({ title: name }),
  'note compaction': shape({ 'summary?': text, 'trigger?': id, 'preTokens?': uint, 'opaque?': bareOpaque, 'preserved?': list(entry) }),
  'note rewind': shape({ 'reason?': text }),
  'note error': shape({ message: text, 'code?': id, 'raw?': json }),
  'note import': shape({
    format: id,
    segments: list(closed({ cid: block, offset: uint, length: uint, firstLine: uint, lines: uint })),
    'skipped?': list(closed({ line: uint, offset: uint, length: uint, reason: id })),
    'repaired?': list(closed({ line: uint, what: text })),
    'raw?': list(closed({ line: uint, kind: name }))
  }),
  config: fields({ salt: bytes(32), 'tools?': json, 'system?': text, 'sampling?': json })
}))

/** Which of `PAYLOADS` an entry's payload is. */
export function payloadKind (blob) {
  return blob.type === 'SessionNote' ? `note ${blob.get('kind')}` : blob.type
}

function readMap (block) {
  if (block.length > limits.PAYLOAD) refuse('E_TOO_BIG', `a payload of ${block.length} bytes`)
  const facts = decodeOpen(block)
  if (!isMap(facts.value)) refuse('E_SCHEMA_TYPE', 'a payload is a map')
  if (facts.nonAscii < Infinity) refuse('E_SCHEMA_KEY', 'a key that is not ascii')
  return facts
}

/**
 * Reads a payload of one kind.
 * @param {Uint8Array} block
 * @param {string} kind a key of PAYLOADS
 * @returns {Map<string, any>}
 */
export function readPayload (block, kind) {
  const rule = PAYLOADS.get(kind)
  if (rule === undefined) refuse('E_TYPE', 'no payload of this kind')
  const { value } = readMap(block)
  checkKeys(value, rule)
  checkFields(value, rule)
  refuseNulls(value)
  return value
}

/**
 * Checks that a block is the payload that an entry names.
 * @param {import('./blob.js').Blob} blob
 * @param {Uint8Array} block
 * @returns {Map<string, any>} the payload's fields
 */
export function checkPayload (blob, block) {
  const named = blob.get('payload')
  if (!named.get('cid').equals(cidOf(block))) refuse('E_CID_MISMATCH', 'the payload does not hash to the CID that the entry names')
  if (named.get('size') !== block.length) refuse('E_SCHEMA_LEN', `a payload of ${named.get('size')} bytes was named, found ${block.length}`)
  const map = readPayload(block, payloadKind(blob))
  const envelope = blob.get('envelope')
  if (!envelope && map.has('envelope')) refuse('E_SCHEMA_EXCLUSIVE', 'an envelope that the entry does not name')
  if (envelope && !(map.has('envelope') && sameBytes(sha256(map.get('envelope')), envelope))) {
    refuse('E_CID_MISMATCH', 'the envelope does not hash to what the entry names')
  }
  return map
}
