// Refusals and whose fault each is. The words are the ones of docs/errors.md; they never change.

const FAULT = {
  none: ['E_VERSION', 'E_INCOMPLETE', 'E_REF_INCONSISTENT'],
  peer: ['E_TOO_BIG', 'E_CBOR_', 'E_CID', 'E_KEY_CODEC', 'E_CAR_', 'E_FRAME_LEN']
}

/**
 * Whose fault a code is: `peer` (who handed the bytes over), `author` (whose key signed them), `none` (nobody's yet).
 * @param {string} code
 * @returns {'peer' | 'author' | 'none'}
 */
export function fault (code) {
  if (FAULT.none.includes(code)) return 'none'
  return FAULT.peer.some((prefix) => code.startsWith(prefix)) ? 'peer' : 'author'
}

/**
 * Why bytes, a blob or a set were refused. Thrown, but no Error: a stack trace for each of a million bad inputs would
 * cost more than judging them.
 */
export class Reject {
  /**
   * @param {string} code the stable code
   * @param {string} detail lower case: what was expected and what came; no text of the refused blob but its keys
   */
  constructor (code, detail) {
    this.code = code
    this.detail = detail
  }

  get message () {
    return `${this.code}: ${this.detail}`
  }
}

/**
 * @param {string} code
 * @param {string} detail
 * @returns {never}
 */
export function refuse (code, detail) {
  throw new Reject(code, detail)
}

/**
 * The refusal that `act` throws, or null. Anything else that is thrown is a bug and goes on.
 * @param {() => void} act
 * @returns {Reject | null}
 */
export function refusal (act) {
  try {
    act()
    return null
  } catch (error) {
    if (error instanceof Reject) return error
    throw error
  }
}
