#!/usr/bin/env node
// Verifies the file of a session. Exit codes as of `throughline verify`: 0 valid or sealed, 2 usage, 3 corrupt, 4 incomplete,
// 5 forked or frozen, 6 a cut tail. Reads the file and nothing else: no network, no configuration.

import { createReadStream } from 'node:fs'
import { CarVerifier, cidFromText, Reject } from '../src/index.js'

const EXIT = { valid: 0, sealed: 0, corrupt: 3, incomplete: 4, forked: 5, frozen: 5, 'revoked-tail': 6, 'fenced-tail': 6 }
const USAGE = 'usage: throughline-verify FILE|- [--head CID] [--json]\n'

function parse (args) {
  const options = { file: null, head: null, json: false }
  while (args.length > 0) {
    const arg = args.shift()
    if (arg === '--json') options.json = true
    else if (arg === '--head' && args.length > 0) options.head = args.shift()
    else if (options.file === null && (arg === '-' || !arg.startsWith('-'))) options.file = arg
    else return null
  }
  return options.file === null ? null : options
}

function lines (report) {
  const { checks, validThrough, anchoredThrough, firstProblem, tail } = report
  const out = [`${report.verdict}  ${report.session ?? 'no session'}`]
  for (const name of ['hash', 'chain', 'signature', 'authority', 'head']) out.push(`  ${name.padEnd(10)}${checks[name].result}`)
  if (validThrough) out.push(`  valid through entry ${validThrough.seq}${anchoredThrough ? `, anchored through entry ${anchoredThrough.seq}` : ''}`)
  if (tail) out.push(`  ${tail.kind}: ${tail.entries} entries, ${tail.from.seq} to ${tail.to.seq}`)
  if (report.fork) out.push(`  ${report.fork.branches.length} branches after entry ${report.fork.at.seq}`)
  if (firstProblem) out.push(`  ${firstProblem.code}${firstProblem.seq === null ? '' : ` at entry ${firstProblem.seq}`}: ${firstProblem.detail}`)
  return out.join('\n')
}

async function main () {
  const options = parse(process.argv.slice(2))
  if (options === null) {
    process.stderr.write(USAGE)
    return 2
  }
  try {
    if (options.head !== null) cidFromText(options.head)
  } catch (error) {
    if (!(error instanceof Reject)) throw error
    process.stderr.write(`throughline-verify: expected the CID of an entry after --head, such as bafyrei…, got ${JSON.stringify(options.head)}: ${error.detail}\n`)
    return 2
  }
  const began = process.hrtime.bigint()
  const verifier = new CarVerifier({ head: options.head })
  for await (const chunk of options.file === '-' ? process.stdin : createReadStream(options.file, { highWaterMark: 1 << 20 })) verifier.push(chunk)
  const report = verifier.end()
  const elapsedMs = Number((process.hrtime.bigint() - began) / 1_000_000n)
  process.stdout.write((options.json ? JSON.stringify({ ...report, elapsedMs }) : lines(report)) + '\n')
  return EXIT[report.verdict]
}

main().then((code) => { process.exitCode = code }, (error) => {
  process.stderr.write(`throughline-verify: ${error.code === 'ENOENT' ? `no such file: ${error.path}` : error.stack ?? error}\n`)
  process.exitCode = error.code === 'ENOENT' ? 2 : 1
})
