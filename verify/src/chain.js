// One entry on its parent (R-CH, R-AU-2 to R-AU-4, R-EN-6, R-EN-7; `in` and `auth` of §Selection), in the order of R-VE-1: links,
// capability, role, epoch, holder, first failure wins. Looks at nothing but ancestors and capabilities; revocation and other branches are `select.js`.

import { compareBytes } from './cid.js'
import { refuse } from './codes.js'
import { hex, parseAgent } from './principal.js'

const CLASSES = ['public', 'internal', 'confidential']
const FREE_TYPES = ['SessionUserMessage', 'SessionToolCall', 'SessionNote']

/** An entry in its place. `holder` is who may append after it (hex) or null; `skip` of a genesis is itself. */
class Node {
  constructor (blob, parent, facts) {
    this.blob = blob
    this.parent = parent
    Object.assign(this, facts) // role, opens, holderEntry, holder, skip, class
  }

  get seq () { return this.blob.seq }
  get epoch () { return this.blob.epoch }
  get cid () { return this.blob.cid }
}

/** The ancestor of `node` (or itself) at `seq`, by skip pointers. */
export function ancestorAt (node, seq) {
  while (node.seq > seq) node = node.skip.seq >= seq ? node.skip : node.parent
  return node
}

/** Whether `a` is an ancestor of `b`, or `b` itself. */
export function isAncestor (a, b) {
  return a.seq <= b.seq && ancestorAt(b, a.seq) === a
}

/** The deepest common ancestor. */
export function meet (nodes) {
  return nodes.reduce((a, b) => {
    const seq = Math.min(a.seq, b.seq)
    a = ancestorAt(a, seq)
    b = ancestorAt(b, seq)
    while (a !== b) [a, b] = a.skip === b.skip ? [a.parent, b.parent] : [a.skip, b.skip]
    return a
  })
}

/** Where the skip of a child of `parent` leads (R-CH-3). */
export function skipTarget (parent) {
  const j = parent.skip
  const jj = j.skip
  return parent.seq - j.seq === j.seq - jj.seq ? jj : parent
}

/**
 * The genesis as root of a session, or a refusal.
 * @param {import('./blob.js').Blob} blob
 * @param {import('./authority.js').Grants} grants
 */
export function placeGenesis (blob, grants) {
  if (parseAgent(blob.get('agent')).account !== blob.owner) refuse('E_CAP_SCOPE', 'the agent belongs to another account than the owner')
  const role = grants.role(blob)
  if (role !== 'owner' && role !== 'device' && role !== 'writer') refuse('E_CAP_ROLE', `a ${role} makes no session`)
  if (role === 'writer' && blob.map.has('holder')) refuse('E_GENESIS', 'a server names no holder')
  if (role === 'writer' && blob.get('class') === 'public') refuse('E_CLASS_DOWNGRADE', 'a server makes no public session')
  const holder = blob.map.has('holder') ? hex(blob.get('holder')) : blob.signer
  const holderEntry = blob.signer === holder && (role === 'owner' || role === 'writer')
  const node = new Node(blob, null, { role, opens: false, holderEntry, holder, class: blob.get('class') ?? 'internal' })
  node.skip = node
  return node
}

function checkLinks (blob, parent) {
  if (parent.blob.type === 'SessionSeal') refuse('E_SEALED', 'nothing follows a seal')
  if (blob.seq !== parent.seq + 1) refuse('E_SEQ', `seq ${parent.seq + 1} expected, found ${blob.seq}`)
  const target = skipTarget(parent)
  if (blob.cidIn('skip') !== (target === parent ? null : target.cid)) refuse('E_SKIP', `skip leads to entry ${target.seq}`)
  if (blob.ts < parent.blob.ts) refuse('E_TS_ORDER', 'ts is lower than that of prev')
}

function ancestorLinks (blob) {
  const names = ['response', 'answers', 'from', 'to'].map((field) => blob.get(field)).filter(Boolean)
  return [...names, ...(blob.type === 'SessionNote' ? blob.get('entries') ?? [] : [])]
}

function checkAncestors (blob, parent, find) {
  for (const link of ancestorLinks(blob)) {
    const node = find(link.toString())
    if (node === undefined || !isAncestor(node, parent)) refuse('E_ANCESTOR', `${link} is not an ancestor`)
  }
}

/** Refuses a type that the role never signs (E_CAP_ROLE); a writer's and an owner's right depends on who holds. */
function checkRole (type, role) {
  const allowed = role === 'owner' || role === 'writer' || (role === 'device' && FREE_TYPES.includes(type)) ||
    (role === 'contributor' && type === 'SessionUserMessage')
  if (!allowed) refuse('E_CAP_ROLE', `a ${role} does not sign a ${type}`)
}

/** auth(e) for a role that may sign the type: whether it is an entry of the holder (an opening is none), or E_NOT_HOLDER. */
function checkHolder (blob, parent, role, opens) {
  const byHolder = blob.signer === parent.holder && (role === 'owner' || role === 'writer')
  const beside = parent.holder !== null && FREE_TYPES.includes(blob.type) && role !== 'writer'
  if (!opens && !byHolder && !beside) refuse('E_NOT_HOLDER', parent.holder === null ? 'the session is suspended' : 'the signer does not hold the session')
  return byHolder && !opens
}

function checkSeal (blob, parent) {
  const signers = new Map()
  let genesis = parent
  for (let node = parent; node !== null; node = node.parent) {
    signers.set(node.blob.signer, node.blob.get('signer'))
    genesis = node
  }
  const expected = [...signers.values()].sort(compareBytes)
  const told = blob.get('participants')
  const same = told.length === expected.length && told.every((key, i) => compareBytes(key, expected[i]) === 0)
  if (!same || blob.get('count') !== blob.seq || blob.get('firstTs') !== genesis.blob.ts || blob.get('lastTs') !== parent.blob.ts) {
    refuse('E_SEAL', 'the numbers of the seal are not those of the chain')
  }
}

/**
 * An entry as the child of `parent`, or a refusal.
 * @param {import('./blob.js').Blob} blob
 * @param {Node} parent
 * @param {import('./authority.js').Grants} grants
 * @param {(cid: string) => Node | undefined} find entries that were placed
 */
export function place (blob, parent, grants, find) {
  checkLinks(blob, parent)
  checkAncestors(blob, parent, find)
  if (blob.type === 'SessionHandoff' && blob.signer !== grants.owner) refuse('E_CAP_ROLE', 'only the account hands over')
  const role = grants.role(blob)
  const opens = role === 'owner' && (blob.type === 'SessionHandoff' || blob.type === 'SessionSeal')
  checkRole(blob.type, role)
  if (blob.epoch !== parent.epoch + (opens ? 1 : 0)) refuse('E_EPOCH_GAP', `epoch ${parent.epoch + (opens ? 1 : 0)} expected, found ${blob.epoch}`)
  const holderEntry = checkHolder(blob, parent, role, opens)
  if (role === 'writer') {
    if (blob.type === 'SessionUserMessage' && !blob.map.has('origin')) refuse('E_SCHEMA_MISSING', 'origin is missing')
    if (blob.type === 'SessionToolCall' && !blob.map.has('response')) refuse('E_SCHEMA_MISSING', 'response is missing')
  }
  let sessionClass = parent.class
  if (blob.type === 'SessionNote' && blob.get('kind') === 'class') {
    sessionClass = blob.get('class')
    const opening = CLASSES.indexOf(sessionClass) < CLASSES.indexOf(parent.class)
    if (opening && role !== 'owner' && role !== 'device') refuse('E_CLASS_DOWNGRADE', 'only account and device open a session up')
  }
  if (blob.type === 'SessionSeal') checkSeal(blob, parent)
  let holder = parent.holder
  if (opens) holder = blob.map.has('holder') ? hex(blob.get('holder')) : null
  return new Node(blob, parent, { role, opens, holderEntry, holder, skip: skipTarget(parent), class: sessionClass })
}
