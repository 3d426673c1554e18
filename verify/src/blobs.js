// The signed blob types and their fields (R-EN-1 to R-EN-5, R-EN-8, Control blobs), and Seed's own. What a blob is by
// itself; what its place makes of it is `chain.js` and `select.js`.

import { compareBytes } from './cid.js'
import { refuse } from './codes.js'
import * as limits from './limits.js'
import {
  agent, block, bytes, cap, closed, entry, ext, fields, id, label, list, ms, name, notSigner, oneOf, openList, openMap, principal,
  seedPath, skipIsPrev, text, typeFault, uint, version
} from './schema.js'

// A table is in the order in which fields are judged (R-BY-6). `type` is judged before any of them.
const SIGNED = { ts: ms, signer: principal, type: () => {} }
const OURS = { '!v': version, 'v?': () => {}, ...SIGNED }
const SIG = { sig: bytes(64) }
const OUR_END = { 'x?': ext, ...SIG }

/** space and capability of an entry: both or neither; a space is not the signer. */
const together = (map) => {
  if (map.has('space') !== map.has('capability')) refuse('E_SCHEMA_MISSING', 'space and capability come together')
}
const HEADER = { ...OURS, 'space?': principal, 'capability?': cap, '!together': together, '!space': notSigner('space') }
const CHAIN = {
  seq: uint,
  genesis: entry,
  prev: entry,
  'epoch?': uint,
  'skip?': entry,
  '!seq': (map) => { if (map.get('seq') === 0) refuse('E_SEQ', 'only a genesis has seq 0') },
  '!skip': skipIsPrev
}
const ENTRY = { ...HEADER, ...CHAIN }

const payload = closed({
  cid: entry,
  size: (value) => {
    uint(value)
    if (value === 0) refuse('E_SCHEMA_LEN', 'a payload has at least 1 byte')
    if (value > limits.PAYLOAD) refuse('E_TOO_BIG', `a payload has at most ${limits.PAYLOAD} bytes`)
  }
})

const distinctCalls = (map) => refuseRepeated((map.get('calls') ?? []).map((call) => call.get('callId')))

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

const noteKind = (value) => {
  id(value)
  oneOf(...Object.keys(NOTES))(value)
}
const NOTE = { ...ENTRY, kind: noteKind }
const NOTE_SHAPES = new Map(Object.entries(NOTES).map(([kind, own]) => [kind, fields({ ...NOTE, ...own, ...OUR_END })]))
// A note of unknown kind may have the keys of any: its kind is what is wrong with it.
const ANY_NOTE = Object.fromEntries(Object.values(NOTES).flatMap(Object.keys).map((key) => [key.replace(/\??$/, '?'), () => {}]))
const NOTE_SHAPE = fields({ ...NOTE, ...ANY_NOTE, ...OUR_END })

// `asciiLevels`: how deep keys have to be ASCII. `ownMax`: a bound that is told after the version and the keys.
const OURS_BY_ITSELF = { ours: true, depth: limits.DEPTH_BLOB, asciiLevels: limits.DEPTH_BLOB, ownMax: Infinity }
const ENTRY_BY_ITSELF = { ...OURS_BY_ITSELF, entry: true, max: limits.ENTRY }
const entryType = (own, more = {}) => ({ ...ENTRY_BY_ITSELF, shape: fields({ ...ENTRY, ...own, ...OUR_END }), ...more })
/** What a type that begins with `Session` and is not known is judged by, until it is told that it is not known. */
export const UNKNOWN_ENTRY = ENTRY_BY_ITSELF
const seedType = (own, more = {}) => ({ max: limits.BLOCK, depth: limits.DEPTH_OPEN, asciiLevels: 1, ownMax: Infinity, shape: fields({ ...SIGNED, ...own, ...SIG }), ...more })
const SEED_CONTROL = { max: limits.CONTROL, depth: limits.DEPTH_BLOB, asciiLevels: limits.DEPTH_BLOB }
const context = (value, map) => {
  if (Array.isArray(value) && value.length !== 2) refuse('E_SCHEMA_LEN', 'a context is a response and a genesis')
  list(entry)(value, map)
}

/** What each type is: its fields, its bounds, whether it is an entry and whether it is ours (`v`, `x`). */
export const TYPES = new Map(Object.entries({
  SessionGenesis: {
    ...ENTRY_BY_ITSELF,
    barred: [['prev', 'seq', 'genesis', 'epoch', 'skip'], 'E_GENESIS'],
    shape: fields({
      ...HEADER,
      agent,
      nonce: bytes(16),
      'holder?': principal,
      'class?': oneOf('public', 'confidential'),
      'parent?': closed({ entry, session: entry }),
      'continues?': entry,
      '!holder': notSigner('holder'),
      'payload?': payload,
      ...OUR_END
    })
  },
  SessionUserMessage: entryType({
    'origin?': oneOf('trigger', 'hook', 'import', 'relayed'),
    'answers?': entry,
    'envelope?': bytes(32),
    '!relayed': (map) => {
      const relayed = map.get('origin') === 'relayed'
      if (relayed && !map.has('envelope')) refuse('E_SCHEMA_MISSING', 'envelope is missing')
      if (!relayed && map.has('envelope')) refuse('E_SCHEMA_EXCLUSIVE', 'an envelope without origin relayed')
    },
    payload
  }),
  SessionModelResponse: entryType({
    model: closed({ id: name, 'api?': id, provider: id }),
    'calls?': list(closed({ name, callId: id }), 128),
    'usage?': usage,
    'stopReason?': name,
    'status?': oneOf('interrupted', 'error'),
    'config?': entry,
    'durationMs?': uint,
    '!calls': distinctCalls,
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
  SessionHandoff: {
    ...ENTRY_BY_ITSELF,
    ownMax: limits.CONTROL,
    barred: [['space', 'capability'], 'E_CAP_ROLE'],
    shape: fields({ ...OURS, ...CHAIN, 'holder?': principal, 'grant?': cap, 'tombstones?': list(entry, 64), 'reason?': name, ...OUR_END })
  },
  SessionSeal: entryType({ count: uint, participants: list(principal, 256), firstTs: ms, lastTs: ms }),
  Capability: seedType({ delegate: principal, 'role?': text, 'path?': seedPath, 'label?': label, 'audience?': principal }, SEED_CONTROL),
  CapabilityTombstone: {
    ...OURS_BY_ITSELF,
    max: limits.CONTROL,
    shape: fields({ ...OURS, capability: cap, 'keep?': keep, 'reason?': name, ...OUR_END })
  },
  Ref: seedType({
    'space?': principal,
    'capability?': cap,
    'path?': seedPath,
    heads: list(block),
    'genesisBlob?': block,
    'generation?': uint,
    'visibility?': oneOf('Private'),
    'redirect?': openMap,
    '!private': (map) => {
      if (map.get('visibility') === 'Private' && !/^\/[^/]+$/.test(map.get('path') ?? '')) typeFault('a path of one segment in a private Ref')
    }
  }, SEED_CONTROL),
  Change: seedType({ 'genesis?': block, 'deps?': list(block), 'depth?': uint, 'body??': openMap, 'context?': context }),
  Comment: seedType({
    'id?': text,
    'space?': principal,
    'capability?': cap,
    path: seedPath,
    'version??': list(block),
    'threadRoot?': block,
    'replyParent?': block,
    body: openList,
    'visibility?': oneOf('Private'),
    'context?': context,
    '!thread': (map) => { if (map.has('replyParent') && !map.has('threadRoot')) refuse('E_SCHEMA_MISSING', 'threadRoot is missing') }
  }),
  Contact: seedType({ 'id?': text, 'account?': principal, 'subject?': principal, 'name?': text, 'subscribe?': openMap }),
  Profile: seedType({ 'account?': principal, 'alias?': principal, 'name?': text, 'avatar?': text, 'description?': text })
}))


