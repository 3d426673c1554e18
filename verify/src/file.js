// What stands where in the CAR of a session (R-FI-3). Takes the blocks in file order, checks each by itself, and says which
// are blobs, which are words and files, and what is wrong. The first fault of the file itself ends the reading; a fault of one
// blob does not.

import { readBlob, checkSigned } from './blob.js'
import { decode } from './cbor.js'
import { cidFromBytes, compareBytes, DAG_CBOR, DAG_PB, isLink, matches, SHA2_256 } from './cid.js'
import { Reject, refusal, refuse } from './codes.js'
import { DEPTH_BLOB, DEPTH_OPEN, LINKS } from './limits.js'
import { checkPayload, readPayload } from './payload.js'

const CONTROL_RANK = ['Capability', 'CapabilityTombstone', 'Ref']

/** Every link inside a value. */
function * linksIn (value) {
  if (isLink(value)) yield value
  else if (value instanceof Map) for (const inner of value.values()) yield * linksIn(inner)
  else if (Array.isArray(value)) for (const inner of value) yield * linksIn(inner)
}

/** The links of a dag-pb node: the CIDs of its PBLinks. Bytes that are no such node have none. */
function pbLinks (bytes) {
  const links = []
  for (const [field, outer] of pbFields(bytes)) {
    if (field !== 2 || links.length >= 65_536) continue
    for (const [inner, value] of pbFields(outer)) {
      if (inner !== 1) continue
      try { links.push(cidFromBytes(value)) } catch (error) { if (!(error instanceof Reject)) throw error }
    }
  }
  return links
}

/** [field number, bytes] of the length-delimited fields of a protobuf message; stops at what it cannot read. */
function * pbFields (bytes) {
  let at = 0
  const varint = () => {
    let value = 0
    for (let n = 0; at < bytes.length && n < 7; n++) {
      const byte = bytes[at++]
      value += (byte & 0x7f) * 2 ** (7 * n)
      if (byte < 0x80) return value
    }
    return NaN
  }
  while (at < bytes.length) {
    const key = varint()
    const wire = key % 8
    const length = varint()
    if (Number.isNaN(key) || Number.isNaN(length)) return
    if (wire === 0) continue
    if (wire !== 2 || at + length > bytes.length) return
    yield [Math.floor(key / 8), bytes.subarray(at, at + length)]
    at += length
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
    this.payloads = new Set() // CIDs of the entries whose payload came along and was checked
    this.seen = new Set()
    this.named = new Map() // what may follow the last entry: cid → {rank, read}
    this.rank = 0
    this.configs = new Set()
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
      if (expected === undefined) return this.takeBlob(cid, name, bytes)
      this.takeNamed(expected, cid, bytes)
      this.seen.add(name)
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
  }

  takeBlob (cid, name, bytes) {
    if (cid.code !== DAG_CBOR || cid.multihash.code !== SHA2_256) refuse('E_CAR_ORDER', `${name} is named by nothing before it`)
    const map = decode(bytes, DEPTH_BLOB).value
    const type = map instanceof Map ? map.get('type') : null
    const ours = typeof type === 'string' && (type.startsWith('Session') || CONTROL_RANK.includes(type))
    if (!ours) refuse('E_CAR_ORDER', `${name} is named by nothing before it`)
    if (this.genesis === null && type !== 'SessionGenesis') refuse('E_CAR_ORDER', 'the genesis comes first')
    const blob = readBlob(bytes) // what cannot be read has no place: a fault of the file
    if (blob.isEntry) this.checkEntryPlace(blob)
    else this.checkControlPlace(blob)
    if (!blob.isEntry || blob.type === 'SessionGenesis') this.seen.add(name) // other entries ascend: one that stands twice shows by its place
    const refused = refusal(() => checkSigned(blob))
    if (refused === null) this.blobs.push(blob)
    else this.note(refused, blob.isEntry ? blob.seq : null, name)
    if (blob.isEntry) this.expectNamed(blob, refused === null)
    return true
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
    this.rank = 0
    const payload = blob.get('payload')
    const config = blob.get('config')
    if (payload) this.named.set(payload.get('cid').toString(), { rank: 0, read: (bytes) => this.readWords(blob, bytes, signed) })
    if (config && !this.configs.has(config.toString())) {
      this.configs.add(config.toString())
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
    if (signed && this.noting(blob, () => checkPayload(blob, bytes)) !== null) this.payloads.add(blob.cid)
    refusal(() => { this.expectFiles(linksIn(decode(bytes, DEPTH_OPEN).value)) }) // what cannot be read names nothing
  }

  expectFiles (links) {
    for (const link of links) {
      if (this.named.size > 64 * LINKS) return
      const name = link.toString()
      if (this.seen.has(name) || this.named.has(name)) continue
      this.named.set(name, { rank: 2, read: (bytes, cid) => { if (cid.code === DAG_PB) this.expectFiles(pbLinks(bytes)) } })
    }
  }
}
