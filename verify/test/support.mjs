// What the tests share: the vectors, keys by name, a builder of small sessions.

import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { ed25519 } from '@noble/curves/ed25519.js'
import { encode } from '../src/cbor.js'
import { skipTarget } from '../src/chain.js'
import { cidOf } from '../src/cid.js'
import { base58btc } from 'multiformats/bases/base58'
import { readBlob, refusal, signBlob } from '../src/index.js'

export const root = new URL('../../', import.meta.url)
export const vectors = new URL('tests/vectors/', root)
export const bytesOf = (path) => new Uint8Array(readFileSync(new URL(path, vectors)))
export const json = (path) => JSON.parse(readFileSync(new URL(path, vectors), 'utf8'))
export const unhex = (text) => Uint8Array.from(Buffer.from(text, 'hex'))
export const codeOf = (act) => refusal(act)?.code ?? 'ok'

const sha256 = (text) => new Uint8Array(createHash('sha256').update(text).digest())
const keys = new Map()

/** The test key of a name: seed and principal. */
export function key (name) {
  if (!keys.has(name)) {
    const seed = sha256(`throughline test key ${name}`)
    keys.set(name, { seed, principal: Uint8Array.from([0xed, 0x01, ...ed25519.getPublicKey(seed)]) })
  }
  return keys.get(name)
}

export const BASE_TS = 1767225600000

/** A payload block with the fields its type needs, made different by `label`. */
export function payloadBlock (type, label) {
  const own = { SessionUserMessage: { body: [] }, SessionModelResponse: { content: [] } }[type] ?? {}
  return encode({ salt: sha256(`salt ${label}`), ...own })
}

/**
 * Builds blobs of one session, signed or not. Every method returns {cid, bytes, …} with the parents' facts that children need.
 */
export class Builder {
  constructor ({ signed = true, agentPath = '/test' } = {}) {
    this.signed = signed
    this.owner = key('account')
    this.agent = `hm://${base58btc.encode(this.owner.principal)}${agentPath}`
    this.payloads = new Map()
  }

  make (signer, fields) {
    const { seed, principal } = key(signer)
    const present = Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined))
    const bytes = this.signed ? signBlob(present, seed) : encode({ ...present, signer: principal, sig: new Uint8Array(64) })
    return { bytes, link: cidOf(bytes), ts: fields.ts }
  }

  /** space and capability of an entry by `signer`. */
  header (signer, capability) {
    return signer === 'account' ? {} : { space: this.owner.principal, capability: capability?.link }
  }

  capability (delegate, role, more = {}) {
    return { ...this.make('account', { type: 'Capability', ts: BASE_TS, delegate: key(delegate).principal, role, ...more }), role }
  }

  genesis (signer, { capability, holder, ...more } = {}) {
    const made = this.make(signer, {
      type: 'SessionGenesis',
      ts: BASE_TS,
      agent: this.agent,
      nonce: sha256('nonce').slice(0, 16),
      holder: holder && key(holder).principal,
      ...this.header(signer, capability),
      ...more
    })
    const node = { ...made, seq: 0, epoch: 0, signer, parent: null }
    node.skip = node
    this.root = node
    return node
  }

  /** An entry on `parent`; `fields` come last and may spoil anything. */
  entry (type, signer, parent, { capability, epoch = parent.epoch, label = '', ...fields } = {}) {
    const seq = fields.seq ?? parent.seq + 1
    const skip = skipTarget(parent)
    const own = this.ownFields(type, signer, parent, capability, seq, label)
    const made = this.make(signer, {
      type,
      ts: BASE_TS + 1000 * seq,
      seq,
      prev: parent.link,
      genesis: this.root.link,
      epoch: epoch || undefined,
      skip: skip === parent ? undefined : skip.link,
      ...this.header(signer, capability),
      ...own,
      ...fields
    })
    return { ...made, seq, epoch, signer, parent, skip }
  }

  ownFields (type, signer, parent, capability, seq, label) {
    if (type === 'SessionHandoff') return {}
    if (type === 'SessionSeal') {
      const signers = new Set()
      for (let node = parent; node; node = node.parent) signers.add(node.signer)
      const participants = [...signers].map((name) => key(name).principal).sort(Buffer.compare)
      return { count: seq, participants, firstTs: BASE_TS, lastTs: parent.ts }
    }
    if (type === 'SessionNote') return { kind: 'resume' }
    const block = payloadBlock(type, label)
    const link = cidOf(block)
    this.payloads.set(link.toString(), { cid: link, bytes: block })
    const payload = { cid: link, size: block.length }
    if (type === 'SessionUserMessage') return { payload, origin: capability?.role === 'agent-session-writer' ? 'trigger' : undefined }
    return { payload, model: { id: 'm', provider: 'p' } }
  }
}

/** The blobs of a case of select/cases.json, unsigned: id → Blob; and the CID of its genesis. */
export function caseBlobs (record) {
  const builder = new Builder({ signed: false })
  const made = new Map()
  const absent = (id) => ({ link: cidOf(sha256(`absent ${id}`)), seq: 0, epoch: 0, ts: BASE_TS, signer: 'account', parent: null })
  const orphan = (id) => { const node = absent(id); node.skip = node; return node }
  const named = (id) => made.get(id) ?? orphan(id)
  const ordered = [...record.blobs].sort((a, b) => rank(a) - rank(b) || (a.seq ?? 0) - (b.seq ?? 0))
  for (const blob of ordered) made.set(blob.id, build(builder, blob, named))
  const blobs = new Map()
  for (const [id, node] of made) refusal(() => { blobs.set(id, readBlob(node.bytes)) })
  return { blobs, genesis: (builder.root ?? absent('genesis')).link.toString() }
}

const rank = (blob) => ['Capability', 'SessionGenesis'].indexOf(blob.type) + 1 || (blob.type.startsWith('Session') ? 3 : 4)

function build (builder, blob, named) {
  const { type, signer, id } = blob
  const capability = blob.capability === undefined ? undefined : named(blob.capability)
  const ts = BASE_TS + id
  switch (type) {
    case 'Capability': return builder.capability(blob.delegate, blob.role, { ts })
    case 'SessionGenesis': return builder.genesis(signer, { capability, holder: blob.holder })
    case 'CapabilityTombstone': {
      const keep = (blob.keep ?? []).map(named).map((node) => ({ seq: node.seq, head: node.link, genesis: builder.root.link }))
      keep.sort((a, b) => Buffer.compare(a.head.bytes, b.head.bytes))
      return builder.make(signer, { type, ts, capability: capability.link, keep: keep.length ? keep : undefined })
    }
    case 'Ref': {
      const head = named(blob.head)
      return builder.make(signer, {
        type,
        ts,
        path: `/session-${builder.root?.link ?? named(-1).link}`,
        heads: [head.link],
        genesisBlob: (builder.root ?? named(-1)).link,
        generation: head.epoch + 1,
        visibility: 'Private',
        ...builder.header(signer, capability)
      })
    }
    default: {
      const parent = named(blob.prev)
      const holder = blob.holder && key(blob.holder).principal
      builder.root ??= named(-1)
      // the id makes two entries with the same fields differ; ids are below 1,000
      return builder.entry(type, signer, parent, { capability, epoch: blob.epoch ?? 0, label: String(id), seq: blob.seq, holder, ts: BASE_TS + 1000 * blob.seq + id })
    }
  }
}

/** A generator of numbers in [0, 1) that is the same in every run (mulberry32). */
export function random (seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed)
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296
  }
}

export function shuffle (items, next) {
  const out = [...items]
  for (let i = out.length - 1; i > 0; i--) {
    const j = Math.floor(next() * (i + 1));
    [out[i], out[j]] = [out[j], out[i]]
  }
  return out
}
