// The bundle: made from the sources, the same twice, small, and of the same mind in a browser.

import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { createServer } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import test from 'node:test'
import { promisify } from 'node:util'
import { gzipSync } from 'node:zlib'
import { bundle } from '../bin/build.mjs'
import { verifyCar } from '../src/index.js'
import { root } from './support.mjs'

const committed = readFileSync(new URL('verify/dist/verify.js', root))
const FIXTURES = ['valid', 'corrupt', 'forked', 'revoked-tail']
const fixture = (name) => new Uint8Array(readFileSync(new URL(`examples/fixtures/${name}.car`, root)))
const CHROMIUM = process.env.CHROMIUM ?? ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome'].find(existsSync)

test('dist/verify.js is what the sources give, twice, and stays small', async () => {
  const [first, second] = [await bundle(), await bundle()]
  assert.ok(Buffer.compare(first, second) === 0, 'two builds differ')
  assert.ok(Buffer.compare(first, committed) === 0, 'dist/verify.js is old: npm run build')
  const size = gzipSync(committed, { level: 9 }).length
  assert.ok(size < 200_000, `${size} bytes under gzip`)
})

test('the bundle gives the reports of the sources', async () => {
  const bundled = await import(new URL('verify/dist/verify.js', root).href)
  for (const name of FIXTURES) assert.deepEqual(bundled.verifyCar(fixture(name)), verifyCar(fixture(name)), name)
})

/** A page that verifies every fixture and leaves the reports as its text. */
function page () {
  const cars = Object.fromEntries(FIXTURES.map((name) => [name, Buffer.from(fixture(name)).toString('base64')]))
  return `<!doctype html><meta charset="utf-8"><pre id="out">nothing ran</pre><script type="module">
import { verifyCar } from '/verify.js'
const cars = ${JSON.stringify(cars)}
const reports = {}
for (const name in cars) reports[name] = verifyCar(Uint8Array.from(atob(cars[name]), (c) => c.charCodeAt(0)))
document.getElementById('out').textContent = btoa(JSON.stringify(reports))
</script>`
}

test('a browser comes to the same reports', { skip: CHROMIUM ? false : 'no chromium here; set CHROMIUM to its path' }, async () => {
  const server = createServer((request, response) => {
    const script = request.url === '/verify.js'
    response.setHeader('content-type', script ? 'text/javascript' : 'text/html')
    response.end(script ? committed : page())
  })
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve))
  const profile = mkdtempSync(join(tmpdir(), 'verify-browser-'))
  try {
    const args = ['--headless', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', `--user-data-dir=${profile}`, '--dump-dom', `http://127.0.0.1:${server.address().port}/`]
    const { stdout } = await promisify(execFile)(CHROMIUM, args, { maxBuffer: 1 << 24, timeout: 120_000 })
    const text = /<pre id="out">([^<]*)<\/pre>/.exec(stdout)?.[1]
    const reports = JSON.parse(Buffer.from(text, 'base64').toString())
    for (const name of FIXTURES) assert.deepEqual(reports[name], verifyCar(fixture(name)), name)
  } finally {
    server.close()
    rmSync(profile, { recursive: true, force: true })
  }
})
