// The 654 cases of selection, each in several orders.

import assert from 'node:assert/strict'
import test from 'node:test'
import { Placed, select } from '../src/index.js'
import { caseBlobs, json, random, shuffle } from './support.mjs'

const ORDERS = 4

function outcome (blobs, genesis, names) {
  const result = select(new Placed(genesis, blobs))
  const ids = (nodes) => nodes.map((node) => names.get(node.cid)).sort((a, b) => a - b)
  return {
    state: result.state,
    head: result.head ? names.get(result.head.cid) : null,
    epoch: result.head?.epoch ?? null,
    valid: ids(result.valid),
    pending: ids(result.pending)
  }
}

test('selection gives what the cases expect, in any order', () => {
  const cases = json('select/cases.json')
  assert.equal(cases.length, 654)
  const next = random(654)
  cases.forEach((record, i) => {
    const { blobs, genesis } = caseBlobs(record)
    const names = new Map([...blobs].map(([id, blob]) => [blob.cid, id]))
    assert.equal(names.size, blobs.size, `case ${i}: two blobs with one CID`)
    const expected = { ...record.expect, head: record.expect.head ?? null, epoch: record.expect.epoch ?? null }
    for (let order = 0; order < ORDERS; order++) {
      const set = order === 0 ? [...blobs.values()] : shuffle([...blobs.values()], next)
      assert.deepEqual(outcome(set, genesis, names), expected, `case ${i} (${record.what}), order ${order}`)
    }
  })
})
