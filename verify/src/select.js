// §Selection: which history counts, as a pure function of a set of blobs. No clock, no order, no local state.

import { Grants } from './authority.js'
import { checkBlob } from './blob.js'
import { decode } from './cbor.js'
import { compareBytes } from './cid.js'
import { isAncestor, meet, place, placeGenesis } from './chain.js'
import { Reject, refusal, refuse } from './codes.js'
import { DEPTH_BLOB } from './limits.js'

/** A set of blobs that passed bytes, schema, key and signature, seen from one genesis: what of it is `in`, and why not. */
export class Placed {
  /**
   * @param {string} genesis its CID
   * @param {import('./blob.js').Blob[]} blobs
   */
  constructor (genesis, blobs) {
    this.genesis = genesis
    this.nodes = new Map()
    this.refusals = new Map() // cid → Reject
    this.root = null
    this.blobs = new Map(blobs.map((blob) => [blob.cid, blob]))
    this.children = new Map()
    const first = this.blobs.get(genesis)
    if (first === undefined || first.type !== 'SessionGenesis') {
      for (const blob of this.blobs.values()) if (blob.isEntry && blob.genesis === genesis) this.sayWhyNot(blob)
      return
    }
    this.grants = new Grants(first, blobs.filter((blob) => !blob.isEntry))
    this.growFrom(first)
    for (const blob of this.blobs.values()) if (blob.isEntry && !this.nodes.has(blob.cid) && blob.genesis === genesis) this.sayWhyNot(blob)
  }

  growFrom (first) {
    for (const blob of this.blobs.values()) {
      const prev = blob.isEntry && blob.cidIn('prev')
      if (!prev) continue
      if (this.children.has(prev)) this.children.get(prev).push(blob)
      else this.children.set(prev, [blob])
    }
    const root = this.attempt(first, () => placeGenesis(first, this.grants))
    if (root === null) return
    this.root = root
    const find = (cid) => this.nodes.get(cid)
    const queue = [root]
    for (let i = 0; i < queue.length; i++) {
      for (const child of this.children.get(queue[i].cid) ?? []) {
        if (child.genesis !== root.cid) continue
        const node = this.attempt(child, () => place(child, queue[i], this.grants, find))
        if (node !== null) queue.push(node)
      }
    }
  }

  attempt (blob, act) {
    let node = null
    const reject = refusal(() => { node = act() })
    if (reject === null) this.nodes.set(blob.cid, node)
    else this.refusals.set(blob.cid, reject)
    return node
  }

  /** An entry of this session that no parent took in: its prev is of another kind, elsewhere, refused, or not held. */
  sayWhyNot (blob) {
    if (this.refusals.has(blob.cid) || blob.type === 'SessionGenesis') return
    const prev = blob.cidIn('prev')
    const parent = this.blobs.get(prev)
    if (parent === undefined) this.refusals.set(blob.cid, new Reject('E_INCOMPLETE', `prev ${prev} is not held`))
    else if (!parent.isEntry) this.refusals.set(blob.cid, new Reject('E_PREV_TYPE', `prev is a ${parent.type}`))
    else if (parent.genesis !== blob.genesis) this.refusals.set(blob.cid, new Reject('E_SESSION_MISMATCH', 'prev is an entry of another session'))
  }
}

/**
 * Why a Ref does not count for this session (R-CO-4), or null.
 * @param {import('./blob.js').Blob} ref
 * @param {Placed} placed
 */
export function judgeRef (ref, placed) {
  return refusal(() => {
    const heads = ref.get('heads')
    if (heads.length !== 1) refuse('E_REF_MISMATCH', `one head expected, found ${heads.length}`)
    if (ref.map.has('redirect')) refuse('E_REF_MISMATCH', 'a Ref with a redirect')
    const genesis = placed.root.cid
    if (ref.cidIn('genesisBlob') !== genesis) refuse('E_REF_MISMATCH', 'genesisBlob is another session')
    if (ref.get('path') !== `/session-${genesis}`) refuse('E_REF_MISMATCH', 'path does not name the genesis')
    const role = placed.grants.role(ref)
    const head = placed.nodes.get(heads[0].toString())
    if (head === undefined) refuse('E_INCOMPLETE', 'the head of the Ref is not held')
    if (ref.get('generation') !== head.epoch + 1) refuse('E_REF_MISMATCH', `generation ${head.epoch + 1} expected`)
    const byHolder = ref.signer === head.holder && (role === 'owner' || role === 'writer')
    if (role !== 'owner' && role !== 'device' && !byHolder) refuse('E_CAP_ROLE', 'a Ref by neither account, device nor holder')
    if (!ref.map.has('visibility')) {
      const allowed = role === 'owner' || role === 'device' ? head.class !== 'confidential' : head.class === 'public'
      if (!allowed) refuse('E_CLASS', `a public Ref on a ${head.class} session`)
    }
  })
}

/** PIN: heads that account or live device fixed: node → by what. */
function pins (placed) {
  const { grants, nodes, root } = placed
  const found = { 'owner-ref': [], 'device-ref': [], keep: [] }
  for (const blob of placed.blobs.values()) {
    if (blob.type === 'Ref') {
      const reject = judgeRef(blob, placed)
      if (reject !== null && reject.code !== 'E_CLASS') continue
      const role = grants.role(blob)
      if (role === 'owner') found['owner-ref'].push(blob.get('heads')[0])
      else if (role === 'device' && grants.tombstoneOf(blob) === null) found['device-ref'].push(blob.get('heads')[0])
    } else if (blob.type === 'CapabilityTombstone' && blob.signer === grants.owner) {
      for (const item of blob.get('keep') ?? []) if (item.get('genesis').toString() === root.cid) found.keep.push(item.get('head'))
    }
  }
  const pinned = new Map()
  for (const [by, links] of Object.entries(found)) {
    for (const link of links) {
      const node = nodes.get(link.toString())
      if (node !== undefined && !pinned.has(node)) pinned.set(node, by)
    }
  }
  return pinned
}

/** Marks every ancestor-or-self of the nodes in `from`. Nodes come in an order in which parents precede children. */
function withAncestors (nodes, from) {
  const marked = new Set(from)
  for (let i = nodes.length; i-- > 0;) if (marked.has(nodes[i]) && nodes[i].parent) marked.add(nodes[i].parent)
  return marked
}

/** Whether each is an ancestor of the next, in order of seq. */
function isChain (nodes) {
  const sorted = [...nodes].sort((a, b) => a.seq - b.seq)
  return sorted.every((node, i) => i === 0 || isAncestor(sorted[i - 1], node))
}

const deepest = (nodes) => nodes.reduce((a, b) => (b.seq > a.seq ? b : a))

/** Entries of `set` that no other of it descends from, by one pass over all nodes. */
function tips (all, set) {
  const members = new Set(set)
  const covered = new Set()
  for (let i = all.length; i-- > 0;) {
    const node = all[i]
    if (node.parent && (members.has(node) || covered.has(node))) covered.add(node.parent)
  }
  return set.filter((node) => !covered.has(node))
}

/**
 * Selection over a set. `head` is the head, or the meet of FROZEN and FORKED, or null where the genesis does not count.
 * @param {Placed} placed
 */
export function select (placed) {
  const none = { head: null, base: null, valid: [], pending: [], passed: [], fenced: [], revoked: [], branches: [], evidence: [], pins: new Map(), anchors: new Set() }
  if (placed.root === null) {
    const reject = placed.refusals.get(placed.genesis) ?? new Reject('E_INCOMPLETE', 'the genesis is not held')
    return { ...none, state: reject.code === 'E_INCOMPLETE' ? 'INCOMPLETE' : 'INVALID', reject }
  }
  const all = [...placed.nodes.values()] // parents precede children
  const { grants } = placed
  const dead = (node) => node.role !== 'owner' && grants.tombstoneOf(node.blob) !== null
  const pinned = pins(placed)
  const anchors = new Set(pinned.keys())
  for (const node of all) {
    if (node.role === 'owner' || (!dead(node) && (node.role === 'device' || node.holderEntry))) anchors.add(node)
  }
  const anchored = withAncestors(all, anchors)
  const valid = new Set()
  for (const node of all) if ((!dead(node) || anchored.has(node)) && (node.parent === null || valid.has(node.parent))) valid.add(node)
  const list = all.filter((node) => valid.has(node))
  const revoked = all.filter((node) => !valid.has(node))
  const common = { ...none, valid: list, revoked, evidence: evidence(all), pins: pinned, anchors }
  if (list.length === 0) return { ...common, state: 'REVOKED_UNANCHORED' }
  return finish(common, selectValid(all, list, [...pinned.keys()], placed.root))
}

/** The order of entries in a report: by seq, then epoch, then CID. */
export const byPlace = (a, b) => a.seq - b.seq || a.epoch - b.epoch || compareBytes(a.blob.link.bytes, b.blob.link.bytes)

/** Equivocations among all that is in, dead or alive (R-SE-2): for each opening, of its holder's entries by place, the first that does not descend from the one before it, with that one; for each epoch its two lowest openings. Of holders first, then by signer and place. */
function evidence (all) {
  const opening = new Map() // node → what opened its epoch
  const held = new Map()
  const opened = new Map()
  const put = (map, key, node) => { if (map.has(key)) map.get(key).push(node); else map.set(key, [node]) }
  for (const node of all) {
    const root = node.opens || node.parent === null ? node : opening.get(node.parent)
    opening.set(node, root)
    if (node.holderEntry) put(held, root, node)
    if (node.opens) put(opened, node.epoch, node)
  }
  const found = []
  for (const nodes of held.values()) {
    nodes.sort(byPlace)
    const at = nodes.findIndex((node, i) => i > 0 && !isAncestor(nodes[i - 1], node))
    if (at > 0) found.push({ entries: [nodes[at - 1], nodes[at]], why: 'EV_EQUIVOCATION' })
  }
  for (const nodes of opened.values()) if (nodes.length > 1) found.push({ entries: nodes.sort(byPlace).slice(0, 2), why: 'EV_OWNER_EQUIVOCATION' })
  const signer = ({ entries: [a] }) => a.blob.signer
  return found.sort((a, b) => (a.why < b.why ? -1 : a.why > b.why ? 1 : 0) || (signer(a) < signer(b) ? -1 : signer(a) > signer(b) ? 1 : 0) || byPlace(a.entries[0], b.entries[0]) || byPlace(a.entries[1], b.entries[1]))
}

const epochOf = (valid) => valid.reduce((max, node) => Math.max(max, node.epoch), 0)

/** The part of §Selection that begins with E. */
function selectValid (all, valid, pinned, root) {
  const epoch = epochOf(valid)
  const top = epoch === 0 ? [root] : valid.filter((node) => node.opens && node.epoch === epoch)
  if (top.length > 1) return { state: 'FROZEN', head: meet(top), branches: top, why: 'EV_OWNER_EQUIVOCATION' }
  const base = top[0]
  if (base.blob.type === 'SessionSeal') return { state: 'SEALED', head: base, base }
  const above = valid.filter((node) => isAncestor(base, node))
  const held = new Set(above.filter((node) => node.holderEntry))
  const nearest = (node) => { while (node !== base && !held.has(node)) node = node.parent; return node }
  const fixed = [...new Set(pinned.filter((node) => isAncestor(base, node)).map(nearest))]
  if (!isChain(fixed)) {
    const branches = tips(all, fixed)
    return { state: 'FROZEN', head: meet(branches), base, branches, why: 'EV_EQUIVOCATION' }
  }
  const floor = deepest([base, ...fixed])
  const ahead = [...held].filter((node) => isAncestor(floor, node))
  if (!isChain(ahead)) {
    const branches = tips(all, ahead)
    return { state: 'FORKED', head: meet(branches), base, branches, why: 'EV_EQUIVOCATION' }
  }
  const head = deepest([floor, ...ahead])
  return { state: head.blob.type === 'SessionSeal' ? 'SEALED' : 'OK', head, base }
}

/** What of the valid entries stands where beside the head. */
function finish (common, chosen) {
  const result = { ...common, ...chosen }
  const tops = [result.head, ...result.branches]
  const under = withAncestors(common.valid, tops)
  const beside = common.valid.filter((node) => !under.has(node))
  result.fenced = beside.filter((node) => node.epoch < epochOf(common.valid))
  if (result.state === 'FROZEN' || result.state === 'FORKED') return result // without a head nothing is pending on it
  if (result.state === 'OK') result.pending = beside.filter((node) => node.epoch === result.head.epoch && isAncestor(result.head, node))
  const placed = new Set([...result.fenced, ...result.pending])
  result.passed = beside.filter((node) => !placed.has(node))
  return result
}

/**
 * Selection over `{"blobs": [bytes], "genesis": link}`; blobs that do not pass by themselves are left out. Keys in canonical
 * order, lists ascending by CID bytes.
 * @param {Uint8Array} bytes
 */
export function selectSet (bytes) {
  const map = decode(bytes, DEPTH_BLOB).value
  const blobs = []
  for (const blob of map.get('blobs')) refusal(() => { blobs.push(checkBlob(blob)) })
  const result = select(new Placed(map.get('genesis').toString(), blobs))
  const cids = (nodes) => nodes.map(({ blob }) => blob).sort((a, b) => compareBytes(a.link.bytes, b.link.bytes)).map(({ cid }) => cid)
  return {
    head: result.head?.cid ?? null,
    epoch: result.head?.epoch ?? null,
    state: result.state,
    tails: ['fenced', 'passed', 'revoked'].flatMap((kind) => cids(result[kind]).map((cid) => ({ cid, kind }))),
    valid: cids(result.valid),
    pending: cids(result.pending)
  }
}
