// Verification of a session's file (R-VE-1 to R-VE-4): five checks and one verdict, in the shape of `throughline verify --json`.
// Says what it checked and nothing more: never complete, never latest. Reads no clock.

import { CarReader } from './car.js'
import { isAncestor, meet } from './chain.js'
import { cidFromText, compareBytes } from './cid.js'
import { fault, Reject } from './codes.js'
import { SessionFile } from './file.js'
import { INVENTORY_ABSENT, INVENTORY_BLOCKS, INVENTORY_NAMED } from './limits.js'
import { principalText } from './principal.js'
import { byPlace, Placed, select } from './select.js'

const VERSION = '0.1.0'
const MODELS = 256 // listed in a report

/** Which check a code belongs to. */
function checkOf (code) {
  if (code === 'E_CID_MISMATCH') return 'hash'
  if (code === 'E_SIG' || code === 'E_SIG_LAYOUT' || code.startsWith('E_KEY_')) return 'signature'
  const authority = ['E_CAP_', 'E_NOT_HOLDER', 'E_EPOCH_GAP', 'E_TOMB_ISSUER', 'E_CLASS', 'E_REVOKED', 'E_FENCED']
  return authority.some((prefix) => code.startsWith(prefix)) ? 'authority' : 'chain'
}

const at = (node) => (node ? { cid: node.cid, seq: node.seq } : null)
const byCid = (a, b) => compareBytes(cidFromText(a).bytes, cidFromText(b).bytes) // not the order of their texts
/** What is not known comes first. */
const nullFirst = (order) => (a, b) => (a === null || b === null ? (a === null ? 0 : 1) - (b === null ? 0 : 1) : order(a, b))
const bySeq = nullFirst((a, b) => a - b) // of two safe integers the sign of the difference is right
const byName = nullFirst(byCid)
const signerText = (node) => principalText(node.blob.get('signer'))

/** Problems in the order in which they are told: what somebody is to blame for first; of the file, then of entries by seq. */
function ordered (problems) {
  const isGap = ({ code }) => fault(code) === 'none'
  // A fault of the file names no blob, one of a control blob names no place: what has no number comes first.
  return [...problems].sort((a, b) => isGap(a) - isGap(b) || bySeq(a.seq, b.seq) || byName(a.cid, b.cid))
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

/** Whether the told head is what selection returns, or waits above it (R-VE-2). */
const isToldHead = (node, result) => node !== undefined && (node === result.head || result.pending.includes(node)) && ['OK', 'SEALED'].includes(result.state)

/** What the told head adds when nothing else explains why it is not the head: it is not held, or selection returns another. */
function toldProblem (told, placed, result, problems) {
  const node = placed.nodes.get(told)
  const tail = result.revoked.length > 0 || result.fenced.some(({ holderEntry }) => holderEntry)
  if (told === null) return []
  if (node === undefined) {
    return problems.length === 0 ? [{ code: 'E_INCOMPLETE', detail: 'the told head is not held', seq: null, cid: told }] : []
  }
  if (isToldHead(node, result) || tail || !['OK', 'SEALED'].includes(result.state)) return []
  return [{ code: 'E_REF_INCONSISTENT', detail: 'selection returns another head than the one told', seq: null, cid: told }]
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
  const sorted = [...nodes].sort(byPlace)
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

/** The dispute that stops the session; without one the first equivocation among what is held. */
function forkOf (result) {
  const branch = (node, rank, why) => ({ head: node.cid, rank, seq: node.seq, signer: signerText(node), why })
  if (result.branches.length > 0) {
    return { at: at(result.head), branches: [...result.branches].sort(byPlace).map((node) => branch(node, 'undecided', result.why)) }
  }
  const [first] = result.evidence
  if (first === undefined || result.head === null) return null
  const rank = (node) => (isAncestor(node, result.head) ? 'kept' : 'rejected')
  return { at: at(meet(first.entries)), branches: first.entries.map((node) => branch(node, rank(node), first.why)) }
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
    const capability = node.blob.cidIn('capability')
    const name = JSON.stringify([node.blob.signer, node.role, capability])
    const known = signers.get(name) ?? {
      key: node.blob.signer,
      capability,
      entries: 0,
      epochs: new Set(),
      principal: signerText(node),
      role: node.role === 'writer' ? 'holder' : node.role
    }
    known.entries++
    known.epochs.add(node.epoch)
    signers.set(name, known)
  }
  const order = ['owner', 'device', 'holder', 'contributor']
  const parts = [...signers.values()].sort((a, b) => b.entries - a.entries || (a.key < b.key ? -1 : a.key > b.key ? 1 : 0) ||
    order.indexOf(a.role) - order.indexOf(b.role) || byName(a.capability, b.capability))
  return parts.map(({ key, ...part }) => ({ ...part, epochs: [...part.epochs].sort((a, b) => a - b) }))
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
  return [...models.values()].sort((a, b) => b.responses - a.responses).slice(0, MODELS)
}

/** Links by what became of them. A file of words and files asks for nothing that is not in it. */
const linkCounts = (here, missing, withdrawn) => ({ asked: false, here, linked: here + missing + withdrawn, missing, withdrawn })

/** Adds to a set what there is room for. */
function within (set, bound, values) {
  for (const value of values) if (set.size < bound || set.has(value)) set.add(value)
}

/** Tells of files whether every block below them came. Blocks that several share are looked at once. */
function wholeFiles (blocks) {
  const known = new Map()
  return (root) => {
    const path = []
    let next = root
    for (;;) {
      let whole
      if (next !== undefined) {
        whole = known.get(next)
        if (whole === undefined) {
          const links = known.size < INVENTORY_BLOCKS ? blocks.get(next) : undefined
          whole = links !== undefined
          if (whole) path.push({ name: next, links: [...links], whole })
        }
      } else {
        const { name, whole: all } = path.pop()
        known.set(name, all)
        whole = all
      }
      const above = path.at(-1)
      if (above === undefined) return whole
      above.whole &&= whole
      next = above.links.pop()
    }
  }
}

/** Words and files that the entries name (R-VE-7). */
function inventoryOf (file) {
  const linked = file.blobs.filter((blob) => blob.map.has('payload'))
  const [redacted, configs, files] = [new Set(), new Set(), new Set()]
  for (const blob of file.blobs) {
    const takesBack = (blob.type === 'SessionNote' && blob.get('entries')) || []
    if (redacted.size < INVENTORY_ABSENT) takesBack.forEach((link) => redacted.add(link.toString()))
    if (blob.type === 'SessionModelResponse' && blob.get('config')) within(configs, INVENTORY_NAMED, [blob.get('config').toString()])
    within(files, INVENTORY_NAMED, file.payloads.get(blob.cid) ?? [])
  }
  const deleted = file.blobs.some((blob) => blob.type === 'SessionNote' && blob.get('kind') === 'delete')
  const absent = linked.filter((blob) => !file.payloads.has(blob.cid))
  const takenBack = absent.filter((blob, at) => deleted || (at < INVENTORY_ABSENT && redacted.has(blob.cid))).length
  const configsHere = [...configs].filter((name) => file.blocks.has(name)).length
  const isWhole = wholeFiles(file.blocks)
  const filesHere = [...files].filter(isWhole).length
  const [noConfig, noFile] = [configs.size - configsHere, files.size - filesHere]
  const rest = (gone) => (deleted ? [0, gone] : [gone, 0])
  const [configMissing, configWithdrawn] = rest(noConfig)
  return {
    files: linkCounts(filesHere, ...rest(noFile)),
    payloads: linkCounts(linked.length - absent.length + configsHere, absent.length - takenBack + configMissing, takenBack + configWithdrawn)
  }
}

function checksOf (file, placed, signers, result, problems, told) {
  const failed = new Set(problems.filter(({ code }) => fault(code) !== 'none').map(({ code }) => checkOf(code)))
  const open = result.state === 'INCOMPLETE' || problems.some(({ code }) => fault(code) === 'none')
  const outcome = (name, undecided) => (failed.has(name) ? 'fail' : undecided ? 'unchecked' : 'pass')
  const entries = file.blobs.filter((blob) => blob.isEntry).length
  const blobs = file.blobs.length + file.payloads.size + file.problems.length // given: those that were refused too
  const elsewhere = problems.some(({ code }) => code === 'E_REF_INCONSISTENT')
  const head = told === null || (open && !elsewhere) ? 'unchecked' : isToldHead(placed.nodes.get(told), result) ? 'pass' : 'fail'
  const count = (type) => file.blobs.filter((blob) => blob.type === type).length
  return {
    authority: { capabilities: count('Capability'), result: result.state === 'REVOKED_UNANCHORED' ? 'fail' : outcome('authority', open), tombstones: count('CapabilityTombstone') },
    chain: { entries, result: outcome('chain', open) },
    hash: { blobs, result: outcome('hash', blobs === 0) },
    head: { result: head, told },
    signature: { result: outcome('signature', entries === 0), signers: signers.length }
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
  problems.push(...toldProblem(told, placed, result, problems))
  const sorted = ordered(problems)
  const verdict = verdictOf(sorted, result)
  const first = sorted[0]
  const inventory = inventoryOf(file)
  const signers = signersOf(placed.nodes.values())
  return {
    anchoredThrough: anchoredThrough(result),
    checks: checksOf(file, placed, signers, result, sorted, told),
    files: inventory.files,
    firstProblem: first ? { cid: first.cid, code: first.code, detail: first.detail, fault: fault(first.code), seq: first.seq } : null,
    fork: forkOf(result),
    freshness: { headSeenAgeMs: null, peersAgree: 0, peersAsked: 0, source: 'file' },
    kind: 'verify',
    models: modelsOf(file.blobs),
    payloads: inventory.payloads,
    pending: result.pending.length,
    problems: sorted.length,
    session: file.genesis,
    signers,
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
    this.file = new SessionFile()
    this.reader = new CarReader((root) => this.file.takeRoot(root))
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
        if (!this.file.take(cid, bytes)) return
      }
    })
  }

  /** The report, once all bytes were pushed. */
  end () {
    if (!this.file.broken) this.guarded(() => this.reader.end())
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
