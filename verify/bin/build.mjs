#!/usr/bin/env node
// Builds dist/verify.js: the whole verifier as one ES module for a browser. Pinned tools and no time or path in the output, so
// that two builds give the same bytes. `--check` builds and compares with the file that is there.

import { readFile, writeFile } from 'node:fs/promises'
import { fileURLToPath } from 'node:url'
import { build } from 'esbuild'

const root = new URL('../', import.meta.url)

/** The bytes of the bundle. */
export async function bundle () {
  const { outputFiles } = await build({
    absWorkingDir: fileURLToPath(root),
    entryPoints: ['src/index.js'],
    bundle: true,
    format: 'esm',
    platform: 'browser',
    target: 'es2022',
    minify: true,
    legalComments: 'eof',
    write: false
  })
  return outputFiles[0].contents
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const path = new URL('dist/verify.js', root)
  const bytes = await bundle()
  if (process.argv.includes('--check')) {
    const same = Buffer.compare(bytes, await readFile(path).catch(() => Buffer.alloc(0))) === 0
    process.stdout.write(same ? 'dist/verify.js is what the sources give\n' : 'dist/verify.js differs: run npm run build\n')
    process.exitCode = same ? 0 : 1
  } else {
    await writeFile(path, bytes)
    process.stdout.write(`dist/verify.js: ${bytes.length} bytes\n`)
  }
}
