// The signed blob types and their fields (R-EN-1 to R-EN-5, R-EN-8, Control blobs), and Seed's own. What a blob is by
// itself; what its place makes of it is `chain.js` and `select.js`.

import { compareBytes } from './cid.js'
import { refuse } from './codes.js'
import * as limits from './limits.js'
import {
  agent, block, bool, bytes, cap, closed, entry, ext, fields, id, label, list, ms, name, notSigner, oneOf,
  openMap, positive, principal, seedPath, skip, text, uint
} from './schema.js'

const SIGNED = { ts: ms, sig: bytes(64), type: text, signer: principal }
const HEADER = { ...SIGNED, 'space?': notSigner, 'capability?': cap, 'v?': uint, 'x?': ext }
const ENTRY = { ...HEADER, seq: positive, prev: entry, genesis: entry, 'epoch?': uint, 'skip?': skip }

const payload = closed({
  cid: entry,
  size: (value) => {
    uint(value)
    if (value === 0) refuse('E_SCHEMA_LEN', 'a payload has at least 1 byte')
    if (value > limits.PAYLOAD) refuse('E_TOO_BIG', `a payload has at most ${limits.PAYLOAD} bytes`)
  }
})

const calls = (value, map) => {
  list(closed({ name, callId: id }), 128)(value, map)
  refuseRepeated(value.map((call) => call.get('callId')))
}

/** R-EN-8, in an entry and in its payload. */
export function refuseRepeated (ids) {
  if (new Set(ids).size !== ids.length) refuse('E_SCHEMA_EXCLUSIVE', 'two calls of one response under one callId')
}

const usage = closed({ 'input?': uint, 'output?': uint, 'cacheRead?': uint, 'cacheWrite?': uint, 'cacheWrite1h?': uint, 'reasoning?': uint })

const keep = (value, map) => {
  list(closed({ seq: uint, head: entry, genesis: entry }), 64)(value, map)
  for (let i = 1; i < value.length; i++) {
    const [a, b] = [value[i - 1], value[i]]
    const order = compareBytes(a.get('genesis').bytes, b.get('genesis').bytes) || compareBytes(a.get('head').bytes, b.get('head').bytes)
    if (order >= 0) refuse('E_CBOR_NONCANON', 'keep is not ascending')
  }
}

const NOTES = {
  title: { payload },
  error: { payload },
  import: { payload },
  compaction: { from: entry, to: entry, payload },
  rewind: { to: entry, 'payload?': payload },
  redaction: { entries: list(entry, 200) },
  class: { class: oneOf('public', 'internal', 'confidential') },
  close: { 'reason?': name },
  resume: {},
  delete: {}
}

/** Keys of any note, for a note of unknown kind: its kind is what is wrong with it. */
const ANY_NOTE = Object.fromEntries(Object.values(NOTES).flatMap(Object.keys).map((key) => [key.replace(/\??$/, '?'), () => {}]))
const NOTE = { ...ENTRY, kind: (value) => { id(value); oneOf(...Object.keys(NOTES))(value) } }
const NOTE_SHAPES = new Map(Object.entries(NOTES).map(([kind, own]) => [kind, fields({ ...NOTE, ...own })]))
const NOTE_SHAPE = fields({ ...NOTE, ...ANY_NOTE })

const entryType = (own, more = {}) => ({ entry: true, ours: true, max: limits.ENTRY, depth: limits.DEPTH_BLOB, shape: fields({ ...ENTRY, ...own }), ...more })
const seedType = (own, more = {}) => ({ max: limits.BLOCK, depth: limits.DEPTH_BLOB, shape: fields({ ...SIGNED, ...own }), ...more })
const pair = list(entry)
const context = (value, map) => {
  if (Array.isArray(value) && value.length !== 2) refuse('E_SCHEMA_LEN', 'a context is a response and a genesis')
  pair(value, map)
}

/** What each type is: its fields, its bounds, whether it is an entry and whether it is ours (`v`, `x`, ASCII keys). */
export const TYPES = new Map(Object.entries({
  SessionGenesis: {
    entry: true,
    ours: true,
    max: limits.ENTRY,
    depth: limits.DEPTH_BLOB,
    barred: [['prev', 'seq', 'genesis', 'epoch', 'skip'], 'E_GENESIS'],
    shape: fields({
      ...HEADER,
      agent,
      nonce: bytes(16),
      'holder?': notSigner,
      'class?': oneOf('public', 'confidential'),
      'parent?': closed({ entry, session: entry }),
      'continues?': entry,
      'payload?': payload
    })
  },
  SessionUserMessage: entryType({ 'origin?': oneOf('trigger', 'hook', 'import', 'relayed'), 'answers?': entry, 'envelope?': bytes(32), payload }, {
    missing: (map) => map.get('origin') === 'relayed' && !map.has('envelope') && 'envelope',
    after: (map) => { if (map.has('envelope') && map.get('origin') !== 'relayed') refuse('E_SCHEMA_EXCLUSIVE', 'an envelope without origin relayed') }
  }),
  SessionModelResponse: entryType({
    model: closed({ id: name, 'api?': id, provider: id }),
    'calls?': calls,
    'usage?': usage,
    'stopReason?': name,
    'status?': oneOf('interrupted', 'error'),
    'config?': entry,
    'durationMs?': uint,
    payload
  }),
  SessionToolCall: entryType({
    name,
    callId: id,
    'outcome?': oneOf('error', 'denied', 'interrupted', 'timeout', 'unknown'),
    'response?': entry,
    'produced?': list(block, 64),
    'child?': entry,
    'durationMs?': uint,
    payload
  }),
  SessionNote: { ...entryType({}), shapeOf: (map) => NOTE_SHAPES.get(map.get('kind')) ?? NOTE_SHAPE },
  SessionHandoff: entryType({ 'holder?': principal, 'grant?': cap, 'tombstones?': list(entry, 64), 'reason?': name }, {
    max: limits.CONTROL,
    barred: [['space', 'capability'], 'E_CAP_ROLE']
  }),
  SessionSeal: entryType({ count: uint, participants: list(principal, 256), firstTs: ms, lastTs: ms }),
  Capability: seedType({ 'role?': text, 'path?': seedPath, 'label?': label, 'audience?': principal, delegate: principal }, { max: limits.CONTROL }),
  CapabilityTombstone: {
    ours: true,
    max: limits.CONTROL,
    depth: limits.DEPTH_BLOB,
    shape: fields({ ...SIGNED, 'v?': uint, 'x?': ext, capability: cap, 'keep?': keep, 'reason?': name })
  },
  Ref: seedType({
    'space?': principal,
    'capability?': cap,
    'path?': seedPath,
    heads: list(cap),
    genesisBlob: cap,
    'generation?': uint,
    'redirect?': closed({ 'space?': principal, path: seedPath, 'republish?': bool }),
    'visibility?': oneOf('Private')
  }, {
    max: limits.CONTROL,
    after: (map) => {
      if (map.get('visibility') === 'Private' && !/^\/[^/]+$/.test(map.get('path') ?? '')) refuse('E_SCHEMA_TEXT', 'a private Ref has a path of one segment')
    }
  }),
  Change: seedType({ 'genesis?': cap, 'deps?': list(cap), 'depth?': uint, 'body?': openMap, 'context?': context }, { depth: limits.DEPTH_OPEN }),
  Comment: seedType({
    'id?': text,
    'space?': principal,
    'capability?': cap,
    path: seedPath,
    version: list(cap),
    'threadRoot?': cap,
    'replyParent?': cap,
    body: list(openMap),
    'visibility?': oneOf('Private'),
    'context?': context
  }, {
    depth: limits.DEPTH_OPEN,
    missing: (map) => map.has('replyParent') && !map.has('threadRoot') && 'threadRoot'
  }),
  Contact: seedType({ 'id?': text, 'account?': principal, 'subject?': principal, 'name?': text, 'subscribe?': closed({ 'site?': bool, 'profile?': bool }) }),
  Profile: seedType({ 'alias?': principal, 'account?': principal, 'name?': text, 'avatar?': text, 'description?': text })
}))


