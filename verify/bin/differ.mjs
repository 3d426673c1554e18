#!/usr/bin/env node
// Answers records from stdin, one line each, in order, for runs that compare this verifier with another. A record is one
// byte of kind, a big-endian u32 length and that many bytes:
//   b  a blob as received            ok <type> | <code>
//   q  a payload: its type (`note title` for notes), a zero byte, the block
//   c  a CID in binary form          ok <text> | <code>
//   s  {"blobs": [bytes], "genesis": link} for selection, DAG-CBOR: one line of JSON
//   v  a CAR                         <verdict> <code of the first problem | -> <its seq | ->, and all else of the report
//   r  a CAR                         the report, one line of JSON

import { checkBlob, cidFromBytes, readPayload, Reject, selectSet, verifyCar } from '../src/index.js'

const split = (bytes) => {
  const zero = bytes.indexOf(0)
  return [new TextDecoder().decode(bytes.subarray(0, zero)), bytes.subarray(zero + 1)]
}

const ANSWERS = {
  b: (bytes) => `ok ${checkBlob(bytes).type}`,
  q: (bytes) => {
    const [kind, block] = split(bytes)
    readPayload(block, kind)
    return `ok ${kind}`
  },
  c: (bytes) => `ok ${cidFromBytes(bytes)}`,
  s: (bytes) => JSON.stringify(selectSet(bytes)),
  r: (bytes) => JSON.stringify(verifyCar(bytes)),
  v: (bytes) => {
    const { verdict, firstProblem: first, problems, checks, validThrough, anchoredThrough, pending, tail, fork, signers, payloads, files } = verifyCar(bytes)
    const results = ['hash', 'chain', 'signature', 'authority', 'head'].map((name) => checks[name].result)
    const counts = ({ here, missing, withdrawn }) => `${here}/${missing}/${withdrawn}`
    const parts = {
      words: counts(payloads),
      files: counts(files),
      head: validThrough?.cid,
      anchored: anchoredThrough && `${anchoredThrough.by}:${anchoredThrough.cid}`,
      pending,
      tail: tail && [tail.kind, tail.from.cid, tail.to.cid, tail.entries, tail.signer, tail.tombstone ?? '-', tail.lastAnchor?.cid ?? '-'].join(':'),
      fork: fork && `${fork.at.cid}:${fork.branches.map(({ head, rank, why }) => `${head}/${rank}/${why}`)}`,
      signers: signers.map((part) => [part.principal, part.role, part.entries, part.epochs.join('+'), part.capability ?? '-'].join('/')).join(',')
    }
    const told = Object.entries(parts).map(([name, value]) => `${name}=${value ?? '-'}`)
    return [verdict, first?.code ?? '-', first?.seq ?? '-', first?.cid ?? '-', problems, results, ...told].join(' ')
  }
}

function answer (kind, bytes) {
  if (!Object.hasOwn(ANSWERS, kind)) return `no records of kind ${JSON.stringify(kind)}`
  try {
    return ANSWERS[kind](bytes)
  } catch (error) {
    if (error instanceof Reject) return error.code
    // A bug of this verifier, and an answer that no other gives; the records after it are answered all the same.
    return `threw ${String(error).replaceAll('\n', ' ')}`
  }
}

const HEAD = 5

async function main () {
  let held = []
  let size = 0
  let wanted = HEAD
  for await (const chunk of process.stdin) {
    held.push(chunk)
    size += chunk.length
    if (size < wanted) continue
    const all = Buffer.concat(held)
    const lines = []
    let at = 0
    for (;;) {
      if (all.length - at < HEAD) { wanted = HEAD; break }
      wanted = HEAD + all.readUInt32BE(at + 1)
      if (all.length - at < wanted) break
      lines.push(answer(String.fromCharCode(all[at]), new Uint8Array(all.subarray(at + HEAD, at + wanted))))
      at += wanted
    }
    held = [all.subarray(at)]
    size = all.length - at
    if (lines.length > 0 && !process.stdout.write(lines.join('\n') + '\n')) {
      await new Promise((resolve) => process.stdout.once('drain', resolve))
    }
  }
  if (size > 0) throw new Error('the input ends within a record')
}

main().catch((error) => {
  process.stderr.write(`differ: ${error.stack ?? error}\n`)
  process.exitCode = 1
})
