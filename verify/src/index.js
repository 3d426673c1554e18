// What this package offers. Pure: bytes in, decisions out; no clock, network, file or platform crypto.

export { Blob, checkBlob, readBlob, signBlob, signedBytes } from './blob.js'
export { cidFromBytes, cidFromText, cidOf, matches } from './cid.js'
export { fault, refusal, Reject } from './codes.js'
export { checkPayload, readPayload } from './payload.js'
export { Placed, select, selectSet } from './select.js'
export { CarVerifier, verifyCar } from './verify.js'
export { CarReader, writeCar } from './car.js'
export { judgeRef } from './select.js'
export { readFrame } from './frame.js'
