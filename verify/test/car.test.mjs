// Files: the fixtures and their exit codes, what breaks a file, pieces of any size, and the records of `differ`.

import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import test from 'node:test'
import { fileURLToPath } from 'node:url'
import { CarReader, CarVerifier, cidFromText, cidOf, verifyCar, writeCar } from '../src/index.js'
import { encode } from '../src/cbor.js'
import { Builder, bytesOf, codeOf, json, key, root, unhex, vectors } from './support.mjs'

const fixture = (name) => new Uint8Array(readFileSync(new URL(`examples/fixtures/${name}`, root)))
const script = (name) => fileURLToPath(new URL(`verify/bin/${name}`, root))
const run = (name, args, input) => spawnSync(process.execPath, [script(name), ...args], { input, maxBuffer: 1 << 26, encoding: 'utf8' })

/** The blocks of a CAR and its root. */
function blocksOf (bytes) {
  const reader = new CarReader()
  const blocks = [...reader.push(bytes)]
  reader.end()
  return { root: reader.root, blocks }
}

const told = (report) => [report.verdict, report.firstProblem?.code ?? null]

test('the fixtures: verdict, exit code, and where', () => {
  const expected = JSON.parse(readFileSync(new URL('examples/fixtures/fixtures.json', root), 'utf8'))
  assert.ok(Object.keys(expected).length >= 7)
  for (const [name, record] of Object.entries(expected)) {
    const { status, stdout } = run('verify.mjs', [fileURLToPath(new URL(`examples/fixtures/${name}`, root)), '--json'])
    const report = JSON.parse(stdout)
    assert.equal(status, record.rc, name)
    assert.equal(report.verdict, record.verdict, name)
    assert.equal(report.session, record.session, name)
    assert.equal(report.validThrough.seq, record.validThrough.seq, name)
    assert.equal(report.firstProblem?.seq, record.firstProblem?.seq, name)
    assert.equal(report.tail?.from.seq, record.tail?.from.seq, name)
    assert.equal(report.fork?.at.seq, record.fork?.at.seq, name)
  }
})

test('session.car: what the vectors say, in pieces of any size', () => {
  const bytes = bytesOf('session/session.car')
  const { expected, session } = json('session/chain.json')
  const whole = verifyCar(bytes)
  assert.equal(whole.verdict, expected.verdict)
  assert.equal(whole.session, session)
  assert.equal(whole.validThrough.cid, expected.head)
  assert.equal(whole.anchoredThrough.seq, expected.anchoredThrough)
  assert.equal(whole.payloads.here, whole.payloads.linked)
  assert.deepEqual(Object.values(whole.checks).map(({ result }) => result), Array(5).fill('pass'))
  for (const size of [1, 7, 61, 4096]) {
    const verifier = new CarVerifier()
    for (let at = 0; at < bytes.length; at += size) verifier.push(bytes.subarray(at, at + size))
    assert.deepEqual(verifier.end(), whole, `pieces of ${size}`)
  }
})

test('session.car is written again from its blocks', () => {
  const bytes = bytesOf('session/session.car')
  const { root: head, blocks } = blocksOf(bytes)
  assert.deepEqual(writeCar(head, blocks), bytes)
  assert.deepEqual(blocks.map(({ cid }) => cid.toString()), json('session/session.car.json').order.map(({ cid }) => cid))
})

test('every prefix of a file is told as cut or incomplete, never as valid through its root', () => {
  const bytes = fixture('valid.car')
  const whole = verifyCar(bytes)
  for (let length = 0; length < bytes.length; length += 13) {
    const report = verifyCar(bytes.subarray(0, length))
    const payloadOnly = report.verdict === 'valid' && report.validThrough.seq === whole.validThrough.seq && report.payloads.missing === 1
    assert.ok(['corrupt', 'incomplete'].includes(report.verdict) || payloadOnly, `${length} bytes: ${report.verdict}`)
  }
})

test('a bit anywhere in a file changes the verdict or is refused', () => {
  const bytes = fixture('valid.car')
  for (let i = 59; i < bytes.length; i += 7) {
    const spoilt = bytes.slice()
    spoilt[i] ^= 1 << (i % 8)
    assert.equal(verifyCar(spoilt).verdict, 'corrupt', `byte ${i}`)
  }
})

test('what is wrong with a file has a code', () => {
  const bytes = fixture('valid.car')
  const { root: head, blocks } = blocksOf(bytes)
  const swapped = (i, j) => blocks.map((block, at) => (at === i ? blocks[j] : at === j ? blocks[i] : block))
  const junk = { cid: cidOf(encode(new Map([['a', 1]]))), bytes: encode(new Map([['a', 1]])) }
  const manyBytes = new Uint8Array(Buffer.concat([unhex('9a00030000'), new Uint8Array(0x30000).fill(0xa0)]))
  const many = { cid: cidOf(manyBytes), bytes: manyBytes }
  const concat = (...parts) => new Uint8Array(Buffer.concat(parts))
  const cases = {
    'nothing at all': [new Uint8Array(0), 'E_CAR_TRUNCATED'],
    'a header cut short': [bytes.subarray(0, 20), 'E_CAR_TRUNCATED'],
    'a header that is no map': [concat(unhex('0101'), bytes), 'E_CAR_HEADER'],
    'a header that claims 2 GiB': [unhex('8080808008'), 'E_CAR_HEADER'],
    'two roots': [concat(unhex('63'), encode({ roots: [head, head], version: 1 })), 'E_CAR_ROOT'],
    'a root that is no entry': [writeCar(cidFromText('bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy'), blocks), 'E_CAR_ROOT'],
    'a root that is no entry, and a fault after it': [concat(writeCar(cidFromText('bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy'), []), unhex('00')), 'E_CAR_ROOT'],
    'a block of more items than any may hold': [writeCar(head, [...blocks.slice(0, 2), many, ...blocks.slice(2)]), 'E_TOO_BIG'],
    'a root of another form': [concat(unhex('19'), encode({ roots: [], version: 1 }).slice(0, 7), unhex('81d82a580401005512'), encode({ version: 1 }).slice(1)), 'E_CAR_HEADER'],
    'a zero at the end': [concat(bytes, unhex('00')), 'E_CAR_VARINT'],
    'a length with a needless byte': [concat(bytes, unhex('8100')), 'E_CAR_VARINT'],
    'a length of 34 GB': [concat(bytes, unhex('ffffffff7f')), 'E_CAR_VARINT'],
    'a block twice': [writeCar(head, [...blocks, blocks[3]]), 'E_CAR_DUP'],
    'an entry before the genesis': [writeCar(head, swapped(0, 8)), 'E_CAR_ORDER'],
    'capabilities out of order': [writeCar(head, swapped(2, 3)), 'E_CAR_ORDER'],
    'a payload after the next entry': [writeCar(head, swapped(9, 10)), 'E_CAR_ORDER'],
    'a block that nothing names': [writeCar(head, [...blocks, junk]), 'E_CAR_ORDER'],
    'an entry above the root': [writeCar(blocks[8].cid, blocks), 'E_REF_INCONSISTENT'],
    'the genesis as root of more': [writeCar(blocks[0].cid, blocks), 'E_REF_INCONSISTENT'],
    'a root that is words': [writeCar(blocks[9].cid, blocks), 'E_INCOMPLETE'],
    'a root that is not in it': [writeCar(junk.cid, blocks), 'E_INCOMPLETE'],
    'no capabilities': [writeCar(head, [...blocks.slice(0, 2), ...blocks.slice(8)]), 'E_INCOMPLETE']
  }
  for (const [what, [file, code]] of Object.entries(cases)) {
    assert.deepEqual(told(verifyCar(file)), [['E_INCOMPLETE', 'E_REF_INCONSISTENT'].includes(code) ? 'incomplete' : 'corrupt', code], what)
  }
})

test('CARs of other programs are read, or refused for their CIDs; none is a session', () => {
  const read = readdirSync(new URL('car/', vectors)).sort().map((name) => {
    const bytes = bytesOf(`car/${name}`)
    const report = verifyCar(bytes)
    assert.equal(report.session, null, name)
    assert.notEqual(report.verdict, 'valid', name)
    return codeOf(() => blocksOf(bytes))
  })
  assert.equal(read.length, 10)
  assert.deepEqual([...new Set(read)].sort(), ['E_CAR_HEADER', 'ok'])
})

/** A session of an account, a server and a device, and its file. */
function session () {
  const builder = new Builder()
  const server = builder.capability('server1', 'agent-session-writer')
  const device = builder.capability('device', 'AGENT')
  const genesis = builder.genesis('account', { holder: 'server1' })
  const file = (entries, controls = []) => {
    const all = [...[server, device].sort((a, b) => Buffer.compare(a.link.bytes, b.link.bytes)), ...controls]
    return writeCar(entries.at(-1).link, [genesis, ...all, ...entries].map(({ link, bytes }) => ({ cid: link, bytes })))
  }
  return { builder, server, device, genesis, file }
}

test('a told head that waits is held; one beside the head is not decided', () => {
  const { builder, device, server, genesis, file } = session()
  const pending = builder.entry('SessionUserMessage', 'device', genesis, { capability: device })
  const report = verifyCar(file([pending]))
  assert.deepEqual(told(report), ['valid', null])
  assert.equal(report.pending, 1)
  assert.equal(report.checks.head.result, 'pass')
  const beside = builder.entry('SessionModelResponse', 'server1', genesis, { capability: server })
  const both = [pending, beside].sort((a, b) => Buffer.compare(a.link.bytes, b.link.bytes))
  const passed = verifyCar(file(both), { head: pending.cid })
  assert.deepEqual(told(passed), ['incomplete', 'E_REF_INCONSISTENT'])
  assert.equal(passed.checks.head.result, 'fail')
})

test('a suspended session takes a handoff and nothing else', () => {
  const { builder, server, genesis, file } = session()
  const suspended = builder.entry('SessionHandoff', 'account', genesis, { epoch: 1 })
  assert.equal(verifyCar(file([suspended])).verdict, 'valid')
  const late = builder.entry('SessionModelResponse', 'server1', suspended, { capability: server })
  assert.deepEqual(told(verifyCar(file([suspended, late]))), ['corrupt', 'E_NOT_HOLDER'])
  const again = builder.entry('SessionHandoff', 'account', suspended, { epoch: 2, holder: key('server1').principal })
  const next = builder.entry('SessionModelResponse', 'server1', again, { capability: server })
  assert.equal(verifyCar(file([suspended, again, next])).verdict, 'valid')
})

test('an entry of another session has no place in a file', () => {
  const { builder, server, genesis, file } = session()
  const foreign = builder.entry('SessionModelResponse', 'server1', genesis, { capability: server, genesis: server.link })
  assert.deepEqual(told(verifyCar(file([foreign]))), ['corrupt', 'E_SESSION_MISMATCH'])
})

test('a revocation counts by either CID of the capability', async () => {
  const { blakeCidOf } = await import('../src/cid.js')
  for (const cid of [(blob) => blob.link, (blob) => blakeCidOf(blob.bytes)]) {
    const { builder, server, genesis, file } = session()
    const tail = builder.entry('SessionModelResponse', 'server1', genesis, { capability: server })
    const tombstone = builder.make('account', { type: 'CapabilityTombstone', ts: genesis.ts, capability: cid(server) })
    const report = verifyCar(file([tail], [tombstone]))
    assert.equal(report.verdict, 'revoked-tail')
    assert.equal(report.tail.tombstone, tombstone.link.toString())
    assert.equal(report.validThrough.seq, 0)
  }
})

/** A record of `differ`. */
function record (kind, bytes) {
  const head = Buffer.alloc(5)
  head[0] = kind.charCodeAt(0)
  head.writeUInt32BE(bytes.length, 1)
  return Buffer.concat([head, bytes])
}

test('differ answers every kind of record, in order', () => {
  const { control, entries, session: genesis } = json('session/chain.json')
  const blob = unhex(entries[1].bytes_hex)
  const spoilt = blob.slice()
  spoilt[Buffer.from(blob).indexOf(unhex(entries[1].sig_hex)) + 9] ^= 1
  const set = encode({ blobs: [...control, ...entries].map(({ bytes_hex: hex }) => unhex(hex)), genesis: blocksOf(bytesOf('session/session.car')).blocks[0].cid })
  const { stdout, stderr, status } = run('differ.mjs', [], Buffer.concat([
    record('b', blob),
    record('b', spoilt),
    record('b', unhex('fb3ff0000000000000')),
    record('q', Buffer.concat([Buffer.from('SessionToolCall\0'), unhex(entries[1].payload.bytes_hex)])),
    record('c', unhex('1220' + '00'.repeat(32))),
    record('v', bytesOf('session/session.car')),
    record('v', fixture('corrupt.car')),
    record('r', fixture('corrupt.car')),
    record('s', set)
  ]))
  assert.equal(status, 0, stderr)
  const lines = stdout.trim().split('\n')
  const selected = JSON.parse(lines.pop())
  assert.deepEqual(JSON.parse(lines.pop()), verifyCar(fixture('corrupt.car')))
  // Of a file the verdict, its first problem, and all else of its report.
  const told = lines.splice(-2).map((line) => line.split(' '))
  assert.deepEqual(told.map((line) => line.slice(0, 3)), [['valid', '-', '-'], ['corrupt', 'E_SIG', '5']])
  assert.ok(told[0].includes('words=40/0/0') && told[0].includes('files=1/0/0'), told[0].join(' '))
  assert.deepEqual(lines, ['ok SessionUserMessage', 'E_SIG', 'E_CBOR_FLOAT', 'E_SCHEMA_UNKNOWN', 'E_CID_VERSION'])
  assert.deepEqual([selected.state, selected.epoch, selected.valid.length, selected.pending, selected.tails], ['OK', 1, 41, [], []])
  assert.equal(selected.valid.includes(genesis), true)
})
