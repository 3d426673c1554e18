// What stands where in the CAR of a session (R-FI-3). Takes the blocks in file order, checks each by itself, and says which
// are blobs, which are words and files, and what is wrong. The first fault of the file itself ends the reading; a fault of one
// blob does not.

import { readBlob, checkSigned } from './blob.js'
import { decodeOpen } from './cbor.js'
import { cidFromBytes, compareBytes, DAG_CBOR, DAG_PB, isFile, isLink, matches, SHA2_256 } from './cid.js'
import { Reject, refusal, refuse } from './codes.js'
import { CAR_NAMED, CAR_SEEN, DEPTH_BLOB, INVENTORY_BLOCKS } from './limits.js'
import { checkPayload, payloadKind, readPayload } from './payload.js'

const CONTROL_RANK = ['Capability', 'CapabilityTombstone', 'Ref']

/** Every link inside a value. */
function * linksIn (value) {
  if (isLink(value)) yield value
  else if (value instanceof Map) for (const inner of value.values()) yield * linksIn(inner)
  else if (Array.isArray(value)) for (const inner of value) yield * linksIn(inner)
}

/** The files that words name: attachments, media, the segments of an import. A link of another form is one to no file. */
function filesIn (kind, words) {
  const under = (key) => words.get(key) ?? []
  const named = {
    SessionUserMessage: () => under('attachments'),
    SessionModelResponse: () => under('content').filter((content) => content.get('type') === 'media'),
    SessionToolCall: () => under('content').filter((content) => content.get('type') === 'media'),
    'note import': () => under('segments')
  }[kind]
  const links = (named?.() ?? []).map((file) => file.get('cid'))
  return links.filter(isFile).map(String)
}

/** The `type` of a blob; null of what is none. */
function typeOf (bytes) {
  const map = decodeOpen(bytes, DEPTH_BLOB).value
  return map instanceof Map ? map.get('type') : null
}

const isOurs = (type) => typeof type === 'string' && (type.startsWith('Session') || CONTROL_RANK.includes(type))

/** Whether a block is an entry or a control blob by its form. */
function isBlob (cid, bytes) {
  if (cid.code !== DAG_CBOR || cid.multihash.code !== SHA2_256) return false
  let type = null
  refusal(() => { type = typeOf(bytes) })
  return isOurs(type)
}

/** The links of a DAG-CBOR block; what cannot be read has none. */
function cborLinks (bytes) {
  let value = null
  const reject = refusal(() => { value = decodeOpen(bytes).value })
  return reject === null ? [...linksIn(value)] : []
}

/** The links of a dag-pb node: the CIDs of its PBLinks, a CIDv0 as the CIDv1 that it stands for. What is no such node has none. */
function pbLinks (bytes) {
  const links = []
  const reject = refusal(() => {
    const once = new Set()
    for (const [field, value] of pbFields(bytes)) {
      if (field === 2 && value !== null) links.push(pbLink(value))
      else if (field !== 1 || value === null || once.has(field)) refuse('E_SCHEMA_TYPE', 'no dag-pb node')
      once.add(field)
    }
  })
  return reject === null ? links : []
}

/** The CID of one PBLink: hash, name, size, each at most once, and nothing else. */
function pbLink (bytes) {
  const found = new Map()
  for (const [field, value] of pbFields(bytes)) {
    const known = field === 3 ? value === null : (field === 1 || field === 2) && value !== null
    if (!known || found.has(field)) refuse('E_SCHEMA_TYPE', 'no link of a dag-pb node')
    found.set(field, value)
  }
  const cid = found.get(1)
  if (cid === undefined) refuse('E_SCHEMA_TYPE', 'a link without a CID')
  const isV0 = cid.length === 34 && cid[0] === 0x12 && cid[1] === 0x20
  return cidFromBytes(isV0 ? Uint8Array.of(1, DAG_PB, ...cid) : cid)
}

/** [field number, bytes, or null of a varint] of a protobuf message of varints and bytes. */
function * pbFields (bytes) {
  let at = 0
  const varint = () => {
    for (let value = 0n, n = 0n; n < 10n && at < bytes.length; n++) {
      const byte = bytes[at++]
      value |= BigInt(byte & 0x7f) << (7n * n)
      if (byte >= 0x80) continue
      return value < 2n ** 64n ? value : refuse('E_SCHEMA_TYPE', 'a varint of more than 64 bits')
    }
    return refuse('E_SCHEMA_TYPE', 'a varint without an end')
  }
  while (at < bytes.length) {
    const key = varint()
    const argument = varint()
    const wire = key & 7n
    if (wire !== 0n && wire !== 2n) refuse('E_SCHEMA_TYPE', 'a field of another kind')
    if (wire === 2n && argument > BigInt(bytes.length - at)) refuse('E_SCHEMA_TYPE', 'a field that is cut short')
    const from = at
    if (wire === 2n) at += Number(argument)
    yield [Number(key >> 3n), wire === 2n ? bytes.subarray(from, at) : null]
  }
}

/** Reads the blocks of one session's file. */
export class SessionFile {
  constructor () {
    this.root = null
    this.genesis = null // CID text
    this.blobs = [] // that passed by themselves
    this.problems = [] // {code, detail, seq, cid}
    this.broken = false // a fault of the file: nothing after it was read
    this.payloads = new Map() // CIDs of the entries whose payload came along and was checked, with the links to files in it
    this.blocks = new Map() // config blocks and blocks of files, with what they link
    this.seen = new Set()
    this.named = new Map() // what may follow the last entry: cid → {rank, read}
    this.files = new Set() // of these, what its payload and files link
    this.rank = 0
    this.lastControl = null
    this.lastEntry = null
  }

  /** Notes a fault of one blob. */
  note (reject, seq = null, cid = null) {
    this.problems.push({ code: reject.code, detail: reject.detail, seq, cid })
  }

  /** Notes a fault of the file. */
  stop (reject) {
    this.broken = true
    this.note(reject)
  }

  /**
   * Takes the root: the CID of an entry.
   * @param {import('./cid.js').CID} cid
   */
  takeRoot (cid) {
    if (cid.code !== DAG_CBOR || cid.multihash.code !== SHA2_256) refuse('E_CAR_ROOT', `${cid} is not the CID of an entry`)
    this.root = cid.toString()
  }

  /**
   * Takes the next block. False when reading should end.
   * @param {import('./cid.js').CID} cid
   * @param {Uint8Array} bytes
   */
  take (cid, bytes) {
    const name = cid.toString()
    try {
      if (!matches(cid, bytes)) refuse('E_CID_MISMATCH', `${bytes.length} bytes given for ${name} hash to something else`)
      if (this.seen.has(name)) refuse('E_CAR_DUP', `${name} stands twice`)
      const expected = this.named.get(name)
      // By its form first: an entry or a control blob that an entry names as its payload or config is none the less what it is.
      if (expected === undefined || isBlob(cid, bytes)) this.takeBlob(cid, name, bytes)
      else this.takeNamed(expected, cid, bytes)
    } catch (error) {
      if (!(error instanceof Reject)) throw error
      this.stop(error)
    }
    return !this.broken
  }

  takeNamed ({ rank, read }, cid, bytes) {
    if (rank < this.rank) refuse('E_CAR_ORDER', 'an entry is followed by its payload, its config block, its files')
    this.rank = rank
    read(bytes, cid)
    const name = cid.toString()
    if (rank > 0 && (this.blocks.size < INVENTORY_BLOCKS || this.blocks.has(name))) {
      this.blocks.set(name, cid.code === DAG_PB ? pbLinks(bytes).map(String) : [])
    }
    this.remember(name)
  }

  /** What has to be told from a block that stands twice: the genesis, and of the others the first 65,536. */
  remember (name) {
    if (this.seen.size <= CAR_SEEN) this.seen.add(name)
  }

  takeBlob (cid, name, bytes) {
    if (cid.code !== DAG_CBOR || cid.multihash.code !== SHA2_256) refuse('E_CAR_ORDER', `${name} is named by nothing before it`)
    const type = typeOf(bytes)
    if (!isOurs(type)) refuse('E_CAR_ORDER', `${name} is named by nothing before it`)
    if (this.genesis === null && type !== 'SessionGenesis') refuse('E_CAR_ORDER', 'the genesis comes first')
    const blob = readBlob(bytes) // what cannot be read has no place: a fault of the file
    if (blob.isEntry) this.checkEntryPlace(blob)
    else this.checkControlPlace(blob)
    if (!blob.isEntry || blob.type === 'SessionGenesis') this.remember(name) // other entries ascend: one that stands twice shows by its place
    const refused = refusal(() => checkSigned(blob))
    if (refused === null) this.blobs.push(blob)
    else this.note(refused, blob.isEntry ? blob.seq : null, name)
    if (blob.isEntry) this.expectNamed(blob, refused === null)
  }

  checkControlPlace (blob) {
    const rank = CONTROL_RANK.indexOf(blob.type)
    if (this.lastEntry.seq > 0) refuse('E_CAR_ORDER', 'a control blob after the first entry')
    const last = this.lastControl
    if (last !== null && (rank - last.rank || compareBytes(blob.link.bytes, last.bytes)) <= 0) {
      refuse('E_CAR_ORDER', 'capabilities, tombstones, Refs, each ascending by CID')
    }
    this.lastControl = { rank, bytes: blob.link.bytes }
    this.named = new Map()
  }

  checkEntryPlace (blob) {
    if (this.genesis === null) this.genesis = blob.cid
    else {
      if (blob.type === 'SessionGenesis') refuse('E_CAR_ORDER', 'a second genesis')
      const last = this.lastEntry
      if (blob.cid === last.cid) refuse('E_CAR_DUP', `${blob.cid} stands twice`)
      const order = blob.seq - last.seq || compareBytes(blob.link.bytes, last.link.bytes)
      if (order <= 0) refuse('E_CAR_ORDER', `entry ${blob.seq} stands after entry ${last.seq}`)
    }
    this.lastEntry = blob
  }

  /** What may follow an entry. Words of one whose signature is wrong stand there and are not looked at. */
  expectNamed (blob, signed) {
    this.named = new Map()
    this.files = new Set()
    this.rank = 0
    const payload = blob.get('payload')
    const config = blob.get('config')
    if (payload) this.named.set(payload.get('cid').toString(), { rank: 0, read: (bytes) => this.readWords(blob, bytes, signed) })
    if (config && !this.named.has(config.toString())) {
      this.named.set(config.toString(), { rank: 1, read: (bytes) => this.noting(blob, () => readPayload(bytes, 'config')) })
    }
  }

  noting (blob, act) {
    try {
      return act()
    } catch (error) {
      if (!(error instanceof Reject)) throw error
      this.note(error, blob.seq, blob.cid)
      return null
    }
  }

  readWords (blob, bytes, signed) {
    const words = signed ? this.noting(blob, () => checkPayload(blob, bytes)) : null
    if (words !== null) this.payloads.set(blob.cid, filesIn(payloadKind(blob), words))
    this.expectFiles(cborLinks(bytes))
  }

  /** Adds the files that a payload or a file names: what may follow it. */
  expectFiles (links) {
    const read = (bytes, cid) => this.expectFiles(cid.code === DAG_PB ? pbLinks(bytes) : [])
    for (const link of links.filter(isFile)) {
      const name = link.toString()
      this.files.add(name)
      if (!this.named.has(name)) this.named.set(name, { rank: 2, read })
    }
    if (this.files.size > CAR_NAMED) refuse('E_BUDGET', `more than ${CAR_NAMED} blocks that one entry names`)
  }
}
