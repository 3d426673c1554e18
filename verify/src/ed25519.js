// The one Ed25519 predicate (R-SG-3). It is our own composition of noble's curve arithmetic: no library's `verify` is
// asked, since they differ on keys and signatures with torsion, and no platform crypto stands in for it.

import { ed25519 } from '@noble/curves/ed25519.js'
import { sha512 } from '@noble/hashes/sha2.js'
import { bytesToHex } from '@noble/hashes/utils.js'
import { Reject, refuse } from './codes.js'
import { sameBytes } from './cid.js'

const Point = ed25519.Point
const P = Point.Fp.ORDER
const L = Point.Fn.ORDER

const KEYS_KEPT = 4_096
// A table of multiples makes a multiplication cheaper and costs time and memory: a key gets a small one after a few signatures,
// a large one when it has many. The base point goes with the sum of all.
const TABLES_AFTER = new Map([[8, 6], [512, 8]]) // signatures → bits of a window
const TABLES = 64

const keys = new Map()
let tables = 0
let checked = 0

function littleEndian (bytes) {
  let value = 0n
  for (let i = bytes.length; i-- > 0;) value = (value << 8n) | BigInt(bytes[i])
  return value
}

/** The negated point of a usable key, else the refusal: point, canonical, small, torsion, in this order. */
function judgeKey (bytes) {
  let point
  try {
    point = Point.fromBytes(bytes, true)
  } catch {
    return new Reject('E_KEY_POINT', 'the key is no point of the curve')
  }
  const y = littleEndian(bytes) & ((1n << 255n) - 1n)
  const negativeZero = point.X === 0n && bytes[31] >= 0x80
  if (y >= P || negativeZero) return new Reject('E_KEY_NONCANON', 'the key is not in its canonical encoding')
  if (point.isSmallOrder()) return new Reject('E_KEY_SMALL', 'the key has small order')
  if (!point.isTorsionFree()) return new Reject('E_KEY_TORSION', 'the key has a torsion component')
  return { negated: point.negate(), uses: 0 }
}

function usableKey (bytes) {
  const name = bytesToHex(bytes)
  let key = keys.get(name)
  if (key === undefined) {
    if (keys.size >= KEYS_KEPT) { keys.clear(); tables = 0 }
    key = judgeKey(bytes)
    keys.set(name, key)
  }
  if (key instanceof Reject) throw key
  const bits = TABLES_AFTER.get(++key.uses)
  if (bits !== undefined && tables < TABLES) {
    key.negated.precompute(bits, true)
    tables++
  }
  return key.negated
}

/**
 * Refuses a key that no signature can be judged under.
 * @param {Uint8Array} key 32 bytes
 */
export function checkKey (key) {
  usableKey(key)
}

/**
 * Refuses a signature that is not one by `key` over `message`: S below the group order, R canonical and not the neutral
 * element, R = S·B − k·A exactly (without the cofactor).
 * @param {Uint8Array} signature 64 bytes
 * @param {Uint8Array} message
 * @param {Uint8Array} key 32 bytes
 */
export function checkSignature (signature, message, key) {
  const negated = usableKey(key)
  if (++checked === 512) Point.BASE.precompute(8, true)
  const r = signature.subarray(0, 32)
  const s = littleEndian(signature.subarray(32))
  if (s >= L) refuse('E_SIG', 'S is not below the group order')
  const hash = sha512.create().update(r).update(key).update(message).digest()
  const k = littleEndian(hash) % L
  const point = Point.BASE.multiplyUnsafe(s).add(negated.multiplyUnsafe(k))
  if (point.is0() || !sameBytes(point.toBytes(), r)) refuse('E_SIG', 'the signature does not verify')
}
