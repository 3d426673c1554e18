// One frame of a stream (R-ST-1): a minimal varint length and one canonical map. What the fields mean is no matter of a
// verifier.

import { countHeads, decode } from './cbor.js'
import { refuse } from './codes.js'
import { DEPTH_BLOB, FRAME, FRAME_HEADS } from './limits.js'
import { isMap } from './schema.js'

/**
 * Reads a frame that fills its bytes.
 * @param {Uint8Array} bytes
 * @returns {Map<string, any>}
 */
export function readFrame (bytes) {
  let length = 0
  let at = 0
  for (;; at++) {
    if (at === 4 || at >= bytes.length) refuse('E_FRAME_LEN', 'no length of at most 4 bytes')
    length += (bytes[at] & 0x7f) * 2 ** (7 * at)
    if (bytes[at] < 0x80) break
  }
  if ((at > 0 && bytes[at] === 0) || length > FRAME) refuse('E_FRAME_LEN', `a length of ${length}`)
  if (length !== bytes.length - at - 1) refuse('E_FRAME_LEN', `a length of ${length}, ${bytes.length - at - 1} bytes remain`)
  const body = bytes.subarray(at + 1)
  countHeads(body, FRAME_HEADS, 'E_BUDGET')
  const { value, nonAscii } = decode(body, DEPTH_BLOB)
  if (!isMap(value)) refuse('E_SCHEMA_TYPE', 'a frame is a map')
  if (nonAscii < Infinity) refuse('E_SCHEMA_KEY', 'a key that is not ascii')
  return value
}
