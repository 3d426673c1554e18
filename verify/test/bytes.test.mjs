// Bytes, CIDs, keys and signatures against public vectors and ours.

import assert from 'node:assert/strict'
import { readdirSync, readFileSync } from 'node:fs'
import test from 'node:test'
import { sha512 } from '@noble/hashes/sha2.js'
import * as dagCbor from '@ipld/dag-cbor'
import { decode, decodeOpen, encode } from '../src/cbor.js'
import { readBlob } from '../src/blob.js'
import { HEADS } from '../src/limits.js'
import { readPayload } from '../src/payload.js'
import { entry } from '../src/schema.js'
import { checkKey, checkSignature } from '../src/ed25519.js'
import { cidFromBytes, cidFromText, cidOf, matches } from '../src/index.js'
import { codeOf, json, root, unhex, vectors } from './support.mjs'

const DEPTH = 64
const read = (bytes) => codeOf(() => decode(bytes, DEPTH))

/** A value with plain objects for its maps. */
function plain (value) {
  if (value instanceof Map) return Object.fromEntries([...value].map(([key, inner]) => [key, plain(inner)]))
  return Array.isArray(value) ? value.map(plain) : value
}

/** How often each answer came. */
function tally (answers) {
  const counts = {}
  for (const answer of answers) counts[answer] = (counts[answer] ?? 0) + 1
  return counts
}

test('dag-cbor: 73 constructed faults have their codes, 5 controls pass', () => {
  const cases = json('dag-cbor/negative-constructed.json')
  assert.equal(cases.length, 78)
  for (const { id, hex, expect } of cases) {
    const bytes = unhex(hex)
    // two of them are faults of a place: a key of a blob, the link of an entry
    if (id === 'CB72-key-nfd') assert.equal(decode(bytes, DEPTH).nonAscii, 1, id)
    else if (id === 'CB71-link-dagpb-codec') assert.equal(codeOf(() => entry(decode(bytes, DEPTH).value)), expect, id)
    else assert.equal(read(bytes), expect, id)
  }
  assert.equal(read(unhex(json('dag-cbor/negative-duplicate-keys.json')[0].hex)), 'E_CBOR_DUPKEY')
})

test('dag-cbor: 125 blocks are read and written again, or lie outside the profile', () => {
  const blocks = json('dag-cbor/codec-fixtures-positive.json')
  assert.equal(blocks.length, 125)
  const answers = blocks.map(({ id, cid, hex }) => {
    const bytes = unhex(hex)
    const answer = read(bytes)
    if (answer === 'ok') {
      assert.deepEqual(encode(decode(bytes, DEPTH).value), bytes, id)
      assert.ok(matches(cidFromText(cid), bytes), id)
    }
    return answer
  })
  assert.deepEqual(tally(answers), { ok: 63, E_CBOR_FLOAT: 21, E_CID_HASH: 15, E_CID_CODEC: 11, E_CID_VERSION: 8, E_CBOR_INTRANGE: 7 })
})

test('what is read, the other codec reads too, as the same value', () => {
  for (const { hex, id } of json('dag-cbor/codec-fixtures-positive.json')) {
    const bytes = unhex(hex)
    if (read(bytes) === 'ok') assert.deepEqual(plain(decode(bytes, DEPTH).value), dagCbor.decode(bytes), id)
  }
})

test('a byte order mark, a key of Object.prototype and a lone surrogate are data or refused, never magic', () => {
  assert.equal(decode(unhex('64efbbbf61'), DEPTH).value, '\ufeffa')
  const map = decode(unhex('a1695f5f70726f746f5f5fa0'), DEPTH).value
  assert.deepEqual([...map.keys()], ['__proto__'])
  assert.equal(read(unhex('63eda080')), 'E_CBOR_UTF8')
})

test('DASL: what the DAG-CBOR and basic profiles refuse is refused; what we refuse beside that has a reason', () => {
  const answers = []
  for (const file of readdirSync(new URL('dasl/', vectors)).sort()) {
    for (const { type, tags, data, name } of json(`dasl/${file}`)) {
      const answer = read(unhex(data))
      const strict = tags.includes('dag-cbor') || tags.includes('basic') || tags.includes('rfc8949')
      if (type !== 'roundtrip' && strict) assert.notEqual(answer, 'ok', `${file}: ${name}`)
      if (type === 'roundtrip') answers.push(answer)
      if (answer === 'ok') assert.deepEqual(encode(decode(unhex(data), DEPTH).value), unhex(data), `${file}: ${name}`)
    }
  }
  assert.deepEqual(tally(answers), { E_CID_HASH: 1, ok: 15, E_CBOR_FLOAT: 7, E_CBOR_INTRANGE: 4, E_CBOR_TAG: 2, E_CBOR_KEYTYPE: 1 })
})

test('RFC 8949, appendix A: the values of the profile are read, the others named', () => {
  const answers = json('cbor/rfc8949-appendix_a.json').map(({ hex, decoded }) => {
    const bytes = unhex(hex)
    const answer = read(bytes)
    if (answer === 'ok' && decoded !== undefined) assert.deepEqual(plain(decode(bytes, DEPTH).value), decoded, hex)
    return answer
  })
  assert.equal(answers.length, 82)
  assert.deepEqual(tally(answers), {
    ok: 34,
    E_CBOR_FLOAT: 22,
    E_CBOR_INDEF: 11,
    E_CBOR_TAG: 8,
    E_CBOR_SIMPLE: 4,
    E_CBOR_INTRANGE: 2,
    E_CBOR_KEYTYPE: 1
  })
})

test('CIDs: binary forms of our profile, one text form', () => {
  const lines = (file) => readFileSync(new URL(`cid/${file}`, vectors), 'utf8').split('\n').filter((line) => line && !line.startsWith('#'))
  const valid = lines('atproto-cid_syntax_valid.txt')
  assert.deepEqual(valid.filter((text) => codeOf(() => cidFromText(text)) === 'ok'), valid.filter((text) => /^bafybei[a-z2-7]{52}$/.test(text)))
  for (const text of lines('atproto-cid_syntax_invalid.txt')) assert.notEqual(codeOf(() => cidFromText(text)), 'ok', text)
  for (const { cbor_base64: base64, cid } of json('cid/atproto-data-model-fixtures.json')) {
    const bytes = new Uint8Array(Buffer.from(base64, 'base64'))
    assert.equal(read(bytes), 'ok')
    assert.equal(cidOf(bytes).toString(), cid)
  }
})

test('multihashes: whole sha2-256 and blake2b-256 only', () => {
  const rows = readFileSync(new URL('multihash/test_cases.csv', vectors), 'utf8').trim().split('\n').slice(1)
  assert.ok(rows.length > 250)
  for (const row of rows) {
    const [algorithm, bits, , multihash] = row.split(',')
    const whole = (algorithm === 'sha2-256' || algorithm === 'blake2b-256') && bits === '256'
    const known = algorithm === 'sha2-256' || algorithm === 'blake2b-256'
    assert.equal(codeOf(() => cidFromBytes(unhex('0155' + multihash))), whole ? 'ok' : known ? 'E_CID_DIGESTLEN' : 'E_CID_HASH', row)
  }
})

function verdict (key, signature, message) {
  return signature.length === 64 ? codeOf(() => checkSignature(signature, message, key)).replace('ok', 'OK') : 'E_SCHEMA_LEN'
}

test('Ed25519: the verdicts on all 1,077 cases', () => {
  const expected = json('ed25519/expected-verdicts.json')
  const wycheproof = json('ed25519/wycheproof-ed25519_test.json').testGroups.flatMap(({ publicKey, tests }) => tests.map(({ sig, msg }) => [publicKey.pk, sig, unhex(msg)]))
  const groups = {
    cctv: json('ed25519/cctv-ed25519vectors.json').map(({ key, sig, msg }) => [key, sig, new TextEncoder().encode(msg)]),
    wyc: wycheproof,
    spec: json('ed25519/speccheck-cases.json').map(({ pub_key: key, signature, message }) => [key, signature, unhex(message)])
  }
  let count = 0
  for (const [name, cases] of Object.entries(groups)) {
    assert.equal(cases.length, expected[name].length)
    cases.forEach(([key, signature, message], i) => {
      assert.equal(verdict(unhex(key), unhex(signature), message), expected[name][i].code, `${name} ${expected[name][i].id}`)
      count++
    })
  }
  assert.equal(count, 1_077)
})

test('Ed25519: 38 keys with y of p or more', () => {
  const cases = json('ed25519/noncanonical-keys.json')
  assert.equal(cases.length, 38)
  for (const { key, expect } of cases) assert.ok(expect.split(' or ').includes(codeOf(() => checkKey(unhex(key)))), key)
  assert.equal(codeOf(() => checkKey(unhex('02' + '00'.repeat(31)))), 'E_KEY_POINT')
})

test('Ed25519: R the neutral element is refused, though S·B = k·A + R holds', () => {
  // a = 1: the key is the base point itself, so S = k makes R neutral
  const key = unhex('5866666666666666666666666666666666666666666666666666666666666666')
  const message = new Uint8Array([1, 2, 3])
  const r = unhex('01' + '00'.repeat(31))
  assert.equal(codeOf(() => checkSignature(new Uint8Array([...r, ...scalarFor(r, key, message)]), message, key)), 'E_SIG')
})

test('how many heads there are is judged before anything becomes a value, in payloads and blobs', () => {
  const of = (heads) => encode({ n: new Array(heads - 3).fill(0) }) // the map, its key, the array
  for (const read of [(bytes) => readPayload(bytes, 'note title'), (bytes) => readPayload(bytes, 'config')]) {
    assert.equal(codeOf(() => read(of(HEADS))), 'E_SCHEMA_UNKNOWN')
    assert.equal(codeOf(() => read(of(HEADS + 1))), 'E_TOO_BIG')
  }
  assert.equal(codeOf(() => readBlob(of(HEADS))), 'E_SCHEMA_MISSING')
  assert.equal(codeOf(() => readBlob(of(HEADS + 1))), 'E_TOO_BIG')
  // Heads are counted over all bytes; where the bytes are no head the reader says why.
  const filled = (length, ...front) => {
    const bytes = new Uint8Array(length)
    bytes.set(front)
    return bytes
  }
  const junk = (...front) => filled(HEADS + 1 + front.length, ...front)
  assert.equal(codeOf(() => decodeOpen(junk(0))), 'E_TOO_BIG')
  assert.equal(codeOf(() => decodeOpen(junk(0x1c))), 'E_CBOR_SYNTAX')
  assert.equal(codeOf(() => decodeOpen(junk(0x9f))), 'E_CBOR_INDEF')
  assert.equal(codeOf(() => decodeOpen(junk(0x7b, 1))), 'E_CBOR_LEN')
  assert.equal(codeOf(() => decodeOpen(filled(HEADS + 5, 0x5a, 0, 2, 0, 0))), 'ok')
})

test('a key may be empty, and nothing but a code is ever thrown', () => {
  const bytes = unhex('a26001616102')
  assert.deepEqual([...decode(bytes, DEPTH).value], [['', 1], ['a', 2]])
  assert.deepEqual(encode(decode(bytes, DEPTH).value), bytes)
  assert.equal(codeOf(() => readBlob(bytes)), 'E_SCHEMA_MISSING')
})

test('the sources hold no import of node', () => {
  for (const file of readdirSync(new URL('verify/src/', root))) {
    const text = readFileSync(new URL(`verify/src/${file}`, root), 'utf8')
    assert.doesNotMatch(text, /from '(node:|crypto|fs|path)|require\(|process\.|Buffer\.|Date\.|Math\.random/, file)
  }
})

function scalarFor (r, key, message) {
  const order = 2n ** 252n + 27742317777372353535851937790883648493n
  const digest = sha512(new Uint8Array([...r, ...key, ...message]))
  let k = [...digest].reverse().reduce((sum, byte) => sum * 256n + BigInt(byte), 0n) % order
  const out = new Uint8Array(32)
  for (let i = 0; i < 32; i++, k >>= 8n) out[i] = Number(k & 255n)
  return out
}

test('an item is refused for its head, then for its depth, then for its content', () => {
  const at = (levels, tail) => codeOf(() => decode(unhex('81'.repeat(levels) + tail), 16))
  assert.equal(at(15, '00'), 'ok')
  for (const [tail, code] of [['00', 'E_CBOR_DEPTH'], ['1817', 'E_CBOR_NONCANON'], ['5f', 'E_CBOR_INDEF'], ['f8', 'E_CBOR_EOF'], ['ff', 'E_CBOR_SYNTAX']]) assert.equal(at(16, tail), code, tail)
  for (const content of ['f93c00', 'e0', '61ff', '1b0020000000000000', 'c001']) assert.equal(at(16, content), 'E_CBOR_DEPTH', content)
  assert.equal(at(15, 'd82a61ff'), 'E_CBOR_DEPTH') // what stands under a tag is one level down
  assert.equal(at(14, 'd82a61ff'), 'E_CBOR_UTF8') // and is read before the tag is refused
  assert.equal(at(14, 'c061ff'), 'E_CBOR_TAG') // but only under a 42
})

test('the parts of a CID are judged as they are reached', () => {
  const digest = '2d'.repeat(32)
  const cases = [['', 'E_CID'], ['02', 'E_CID_VERSION'], ['8100', 'E_CID_VARINT'], ['0180', 'E_CID'], ['0172', 'E_CID_CODEC'], ['0172112200', 'E_CID_CODEC'],
    ['01711114', 'E_CID_HASH'], ['0171121f', 'E_CID_DIGESTLEN'], ['01711220', 'E_CID'], [`01711220${digest}00`, 'E_CID_TRAILING'], [`01711221${digest}0000`, 'E_CID_DIGESTLEN'],
    [`01${'ff'.repeat(9)}01`, 'E_CID_VARINT'], [`01711220${digest}`, 'ok'], [`0171a0e40220${digest}`, 'ok']]
  for (const [hex, code] of cases) assert.equal(codeOf(() => cidFromBytes(unhex(hex))), code, hex)
})
