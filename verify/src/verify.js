// Verification of a session's file (R-VE-1 to R-VE-4): five checks and one verdict, in the shape of `throughline verify --json`.
// Says what it checked and nothing more: never complete, never latest. Reads no clock.

import { CarReader } from './car.js'
import { cidFromText, compareBytes } from './cid.js'
import { fault, Reject } from './codes.js'
import { SessionFile } from './file.js'
import { principalText } from './principal.js'
import { Placed, select } from './select.js'

const VERSION = '0.1.0'

/** Which check a code belongs to. */
function checkOf (code) {
  if (code === 'E_CID_MISMATCH') return 'hash'
  if (code === 'E_SIG' || code === 'E_SIG_LAYOUT' || code.startsWith('E_KEY_')) return 'signature'
  const authority = ['E_CAP_', 'E_NOT_HOLDER', 'E_EPOCH_GAP', 'E_TOMB_ISSUER', 'E_CLASS', 'E_REVOKED', 'E_FENCED']
  return authority.some((prefix) => code.startsWith(prefix)) ? 'authority' : 'chain'
}

const at = (node) => (node ? { cid: node.cid, seq: node.seq } : null)
const byCid = (a, b) => compareBytes(cidFromText(a).bytes, cidFromText(b).bytes) // not the order of their texts
const signerText = (node) => principalText(node.blob.get('signer'))

/** Problems in the order in which they are told: what somebody is to blame for first; of the file, then of entries by seq. */
function ordered (problems) {
  const rank = ({ code, seq }) => (fault(code) === 'none' ? 2 ** 54 : 0) + (seq ?? -1)
  return [...problems].sort((a, b) => rank(a) - rank(b) || (a.seq === null ? 0 : byCid(a.cid, b.cid)))
}

/** What is wrong with entries in their places. A control blob that does not count is no fault of the session. */
function placeProblems (file, placed) {
  const problems = []
  for (const [cid, { code, detail }] of placed.refusals) {
    const blob = placed.blobs.get(cid)
    problems.push({ code, detail, seq: blob ? blob.seq : null, cid })
  }
  for (const blob of file.blobs) {
    if (blob.isEntry && blob.genesis !== file.genesis) {
      problems.push({ code: 'E_SESSION_MISMATCH', detail: 'an entry of another session', seq: blob.seq, cid: blob.cid })
    }
  }
  return problems
}

/**
 * Whether selection returns another head than the one told although that is held and valid. A fork or a tail explains it; without
 * one, something that is not held decides.
 */
function unexplained (told, placed, result) {
  const node = placed.nodes.get(told)
  const tail = result.revoked.length > 0 || result.fenced.some(({ holderEntry }) => holderEntry)
  return node !== undefined && node !== result.head && !tail && ['OK', 'SEALED'].includes(result.state)
}

function verdictOf (problems, result) {
  if (problems.some(({ code }) => fault(code) !== 'none')) return 'corrupt'
  if (problems.length > 0 || result.state === 'INCOMPLETE') return 'incomplete'
  if (result.state === 'INVALID') return 'corrupt'
  if (result.state === 'FROZEN') return 'frozen'
  if (result.state === 'FORKED') return 'forked'
  if (result.revoked.length > 0) return 'revoked-tail'
  if (result.fenced.some((node) => node.holderEntry)) return 'fenced-tail'
  return result.state === 'SEALED' ? 'sealed' : 'valid'
}

function tailOf (result, placed) {
  const kind = result.revoked.length > 0 ? 'revoked' : 'fenced'
  const nodes = kind === 'revoked' ? result.revoked : result.fenced.filter((node) => node.holderEntry)
  if (nodes.length === 0) return null
  const sorted = [...nodes].sort((a, b) => a.seq - b.seq || byCid(a.cid, b.cid))
  const [from, to] = [sorted[0], sorted.at(-1)]
  let anchor = kind === 'revoked' ? from : null
  while (anchor && !result.anchors.has(anchor)) anchor = anchor.parent
  return {
    entries: nodes.length,
    from: at(from),
    kind,
    lastAnchor: at(anchor),
    signer: signerText(from),
    to: at(to),
    tombstone: kind === 'revoked' ? placed.grants.tombstoneOf(from.blob)?.cid ?? null : null
  }
}

function forkOf (result) {
  if (result.branches.length === 0) return null
  const branches = result.branches.map((node) => ({ head: node.cid, rank: 'undecided', seq: node.seq, signer: signerText(node), why: result.why }))
  return { at: at(result.head), branches: branches.sort((a, b) => byCid(a.head, b.head)) }
}

/** The deepest of PIN and of account- or device-signed entries on the path to the head. */
function anchoredThrough (result) {
  for (let node = result.head; node; node = node.parent) {
    if (!result.anchors.has(node)) continue
    const by = result.pins.get(node) ?? (node.role === 'owner' || node.role === 'device' ? `${node.role}-entry` : null)
    if (by !== null) return { by, ...at(node) }
  }
  return null
}

function signersOf (nodes) {
  const signers = new Map()
  for (const node of nodes) {
    const known = signers.get(node.blob.signer) ?? {
      capability: node.blob.cidIn('capability'),
      entries: 0,
      epochs: [],
      principal: signerText(node),
      role: node.role === 'writer' ? 'holder' : node.role
    }
    known.entries++
    if (!known.epochs.includes(node.epoch)) known.epochs.push(node.epoch)
    signers.set(node.blob.signer, known)
  }
  for (const { epochs } of signers.values()) epochs.sort((a, b) => a - b)
  return [...signers.values()].sort((a, b) => b.entries - a.entries || (a.principal < b.principal ? -1 : 1))
}

function modelsOf (blobs) {
  const models = new Map()
  for (const blob of blobs) {
    const model = blob.get('model')
    if (!model) continue
    const key = JSON.stringify([model.get('provider'), model.get('id')])
    if (!models.has(key)) models.set(key, { id: model.get('id'), provider: model.get('provider'), responses: 0 })
    models.get(key).responses++
  }
  return [...models.keys()].sort().map((key) => models.get(key))
}

function payloadsOf (file, nodes) {
  const linked = file.blobs.filter((blob) => blob.map.has('payload'))
  const redacted = new Set(nodes.flatMap(({ blob }) => (blob.type === 'SessionNote' && blob.get('entries')) || []).map(String))
  const deleted = nodes.some(({ blob }) => blob.type === 'SessionNote' && blob.get('kind') === 'delete')
  const checked = linked.filter((blob) => file.payloads.has(blob.get('payload').get('cid').toString()))
  const absent = linked.filter((blob) => !checked.includes(blob))
  const dropped = absent.filter((blob) => deleted || redacted.has(blob.cid)).length
  return { checked: checked.length, linked: linked.length, missing: absent.length - dropped, notFetched: 0, redacted: dropped }
}

function checksOf (file, placed, result, problems, told, verdict) {
  const failed = new Set(problems.filter(({ code }) => fault(code) !== 'none').map(({ code }) => checkOf(code)))
  const open = problems.some(({ code }) => fault(code) === 'none')
  const outcome = (name, undecided) => (failed.has(name) ? 'fail' : undecided ? 'unchecked' : 'pass')
  const read = file.blobs.length > 0
  const elsewhere = problems.some(({ code }) => code === 'E_REF_INCONSISTENT')
  const headPasses = result.state !== 'FORKED' && result.state !== 'FROZEN' && result.head?.cid === told
  const head = told === null || (open && !elsewhere) ? 'unchecked' : headPasses ? 'pass' : 'fail'
  const count = (type) => file.blobs.filter((blob) => blob.type === type).length
  return {
    authority: { capabilities: count('Capability'), result: outcome('authority', open || !read), tombstones: count('CapabilityTombstone') },
    chain: { entries: file.blobs.filter((blob) => blob.isEntry).length, result: outcome('chain', open || !read) },
    hash: { blobs: file.hashed, result: outcome('hash', !read && file.hashed === 0) },
    head: { result: head, told },
    signature: { result: outcome('signature', !read), signers: new Set([...placed.nodes.values()].map((node) => node.blob.signer)).size }
  }
}

/**
 * The report over everything a file gave.
 * @param {SessionFile} file
 * @param {string | null} told the head that somebody told
 */
function report (file, told) {
  const placed = new Placed(file.genesis, file.blobs)
  const result = select(placed)
  const problems = [...file.problems]
  if (file.genesis !== null) problems.push(...placeProblems(file, placed))
  const toldMissing = told !== null && !file.broken && file.genesis !== null && !file.entries.has(told)
  if (toldMissing) problems.push({ code: 'E_INCOMPLETE', detail: 'the told head is not held', seq: null, cid: told })
  if (unexplained(told, placed, result)) problems.push({ code: 'E_REF_INCONSISTENT', detail: 'selection returns another head than the one told', seq: null, cid: told })
  const sorted = ordered(problems)
  const verdict = verdictOf(sorted, result)
  const nodes = [...placed.nodes.values()]
  const first = sorted[0]
  return {
    anchoredThrough: anchoredThrough(result),
    checks: checksOf(file, placed, result, sorted, told, verdict),
    firstProblem: first ? { cid: first.cid, code: first.code, detail: first.detail, fault: fault(first.code), seq: first.seq } : null,
    fork: forkOf(result),
    freshness: { headSeenAgeMs: null, peersAgree: 0, peersAsked: 0, source: 'file' },
    kind: 'verify',
    models: modelsOf(file.blobs),
    payloads: payloadsOf(file, nodes),
    pending: result.pending.length,
    problems: sorted.length,
    session: file.genesis,
    signers: signersOf(nodes),
    tail: tailOf(result, placed),
    v: 1,
    validThrough: at(result.head),
    verdict,
    verifier: { name: '@throughline/verify', rules: 'protocol-1', version: VERSION }
  }
}

/** Verifies a CAR whose bytes come in pieces of any size. */
export class CarVerifier {
  /** @param {{head?: string | null}} [options] the head that you were told; else the root of the file */
  constructor ({ head = null } = {}) {
    this.reader = new CarReader()
    this.file = new SessionFile()
    this.told = head
  }

  /** @param {() => void} act */
  guarded (act) {
    try {
      act()
    } catch (error) {
      if (!(error instanceof Reject)) throw error
      this.file.stop(error)
    }
  }

  /** @param {Uint8Array} chunk */
  push (chunk) {
    if (this.file.broken) return
    this.guarded(() => {
      for (const { cid, bytes } of this.reader.push(chunk)) {
        if (this.file.root === null) this.file.takeRoot(this.reader.root)
        if (!this.file.take(cid, bytes)) return
      }
    })
  }

  /** The report, once all bytes were pushed. */
  end () {
    if (!this.file.broken) {
      this.guarded(() => {
        this.reader.end()
        if (this.file.root === null) this.file.takeRoot(this.reader.root)
      })
    }
    return report(this.file, this.told ?? this.file.root)
  }
}

/**
 * Verifies a CAR that is in memory.
 * @param {Uint8Array} bytes
 * @param {{head?: string | null}} [options]
 */
export function verifyCar (bytes, options) {
  const verifier = new CarVerifier(options)
  verifier.push(bytes)
  return verifier.end()
}
