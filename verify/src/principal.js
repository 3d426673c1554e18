// Principals (R-ID-1) and agents (R-ID-4), read from text. Within this package a principal is its hex, so that two are
// equal when the strings are.

import { base58btc } from 'multiformats/bases/base58'
import { bytesToHex } from '@noble/hashes/utils.js'
import { refuse } from './codes.js'
import { IRI, PATH, SEGMENT } from './limits.js'

/** @param {Uint8Array} bytes of a principal: with another prefix E_KEY_CODEC, then of another length E_SCHEMA_LEN */
export function checkPrincipal (bytes) {
  if (bytes[0] !== 0xed || bytes[1] !== 0x01) refuse('E_KEY_CODEC', 'a principal begins with ed01')
  if (bytes.length !== 34) refuse('E_SCHEMA_LEN', `a principal has 34 bytes, found ${bytes.length}`)
}

export const hex = bytesToHex

/** The text of a principal, `z6Mk…`. */
export function principalText (bytes) {
  return base58btc.encode(bytes)
}

function principalFromText (text) {
  let bytes
  try {
    bytes = base58btc.decode(text)
  } catch {
    return null
  }
  const fits = bytes.length === 34 && bytes[0] === 0xed && bytes[1] === 0x01
  return fits && base58btc.encode(bytes) === text ? hex(bytes) : null
}

/** Whether `text` is a `path`: `/seg` once or more, at most 256 bytes. */
export function isPath (text) {
  if (text.length > PATH || !/^(\/[A-Za-z0-9._~-]+)+$/.test(text)) return false
  return text.slice(1).split('/').every((seg) => seg.length <= SEGMENT && seg !== '.' && seg !== '..')
}

/**
 * An agent's account (hex) and path ('' when there is none).
 * @param {string} text
 * @returns {{account: string, path: string}}
 */
export function parseAgent (text) {
  const found = text.length <= IRI && /^hm:\/\/(z[1-9A-HJ-NP-Za-km-z]+)(\/.*)?$/s.exec(text)
  const account = found && principalFromText(found[1])
  const path = found?.[2] ?? ''
  if (!account || (path !== '' && !isPath(path))) refuse('E_CAP_SCOPE', 'an agent is hm:// and a principal, then a clean path or nothing')
  return { account, path }
}
