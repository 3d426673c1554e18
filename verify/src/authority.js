// What a capability allows (R-CO-1, R-CO-2, R-AU-2, R-EN-6). Revocation is not looked at here: it is causal, and `select.js`
// weighs it.

import { refuse } from './codes.js'
import { blakeCidOf, compareBytes } from './cid.js'
import { hex, isPath, parseAgent } from './principal.js'

const ROLES = {
  'agent-session-writer': 'writer',
  'agent-session-contributor': 'contributor',
  'agent-session-reader': 'reader',
  AGENT: 'device'
}

/** `device`, `writer`, `contributor`, `reader`, or null for a role that grants nothing here. */
export function roleOf (capability) {
  const role = capability.get('role')
  if (role === 'WRITER') return capability.get('label') === 'agent-session-writer' ? 'writer' : null
  return Object.hasOwn(ROLES, role ?? '') ? ROLES[role] : null
}

/** Whether a path grants for this agent and session. */
function covers (path, agentPath, genesis) {
  if (path === undefined || path === `/session-${genesis}`) return true
  return isPath(path) && (agentPath === path || agentPath.startsWith(path + '/'))
}

/** The capabilities that are held, whichever of their two CIDs names them (R-ID-5), and what of them is revoked. */
export class Grants {
  /**
   * @param {import('./blob.js').Blob} genesis
   * @param {import('./blob.js').Blob[]} controls
   */
  constructor (genesis, controls) {
    this.owner = genesis.owner
    this.genesis = genesis.cid
    this.agent = parseAgent(genesis.get('agent'))
    this.held = new Map()
    this.revoked = new Map() // sha2-256 CID of the capability, or the CID that was cited → tombstone
    const others = []
    for (const blob of controls) {
      if (blob.type === 'Capability') {
        this.held.set(blob.cid, blob)
        this.held.set(blakeCidOf(blob.bytes).toString(), blob)
      } else if (blob.type === 'CapabilityTombstone' && blob.signer === this.owner) {
        others.push(blob)
      }
    }
    for (const tombstone of others) {
      const cited = tombstone.cidIn('capability')
      const name = this.held.get(cited)?.cid ?? cited
      const before = this.revoked.get(name)
      if (before === undefined || compareBytes(tombstone.link.bytes, before.link.bytes) < 0) this.revoked.set(name, tombstone)
    }
  }

  /**
   * Under which role `blob` acts for this session: `owner`, or what its capability grants.
   * @param {import('./blob.js').Blob} blob
   * @returns {string}
   */
  role (blob) {
    if (blob.space === null && blob.signer === this.owner) return 'owner'
    if (blob.space === null) refuse('E_CAP_MISSING', 'the signer is not the owner and cites no capability')
    if (blob.owner !== this.owner) refuse('E_CAP_ISSUER', 'the space is not the owner of the session')
    if (blob.signer === this.owner) return 'owner' // Seed's types may spell the space out
    const cited = blob.cidIn('capability')
    if (cited === null) refuse('E_CAP_MISSING', 'the signer is not the owner and cites no capability')
    const capability = this.held.get(cited)
    if (capability === undefined) refuse('E_INCOMPLETE', `cites a capability that is not held: ${cited}`)
    if (capability.signer !== this.owner) refuse('E_CAP_ISSUER', 'the capability is not signed by the owner')
    if (capability.map.has('audience')) refuse('E_CAP_AUDIENCE', 'the capability has an audience')
    if (hex(capability.get('delegate')) !== blob.signer) refuse('E_CAP_MISSING', 'the capability is granted to another key')
    const role = roleOf(capability)
    if (role === null) refuse('E_CAP_ROLE', 'the capability has a role that grants nothing')
    const path = capability.get('path')
    if (role === 'device' ? path !== undefined : !covers(path, this.agent.path, this.genesis)) {
      refuse('E_CAP_SCOPE', 'the capability does not cover this session')
    }
    return role
  }

  /** The tombstone of the capability that `blob` cites, or null. */
  tombstoneOf (blob) {
    const cited = blob.cidIn('capability')
    return (cited !== null && this.revoked.get(this.held.get(cited)?.cid ?? cited)) || null
  }
}
