// Checks of Node's `coap` against a server with demo resources, and against one with workers; the last line of output
// confirms that all of them succeeded.
//
// Usage: client.mjs coap://HOST:PORT coap://HOST:PORT

import assert from 'node:assert/strict'
import coap from 'coap'

const WELCOME = 'welcome to the plugtest'
/// Block size 1,024 as the value of Block1 (RFC 7959 §2.2).
const LARGEST_BLOCKS = Buffer.of(6)

const pattern = (size) =>
  Buffer.from(Array.from({ length: size }, (_, at) => 97 + (Math.floor(at / 16) % 26)))

function ask (base, method, path, { payload, options = {}, confirmable = true } = {}) {
  const { hostname, port } = new URL(base.replace('coap:', 'http:'))
  const [pathname, query] = path.split('?')
  return new Promise((resolve, reject) => {
    const request = coap.request({ hostname, port, method, pathname, query, confirmable })
    for (const [name, value] of Object.entries(options)) request.setOption(name, value)
    if (payload?.length > 1024) request.setOption('Block1', LARGEST_BLOCKS)
    request.on('error', reject)
    request.on('response', (response) => {
      const parts = []
      response.on('data', (part) => parts.push(part))
      response.on('end', () => resolve({ code: response.code, options: response.options, body: Buffer.concat(parts) }))
    })
    request.end(payload)
  })
}

async function expect (code, base, method, path, more) {
  const response = await ask(base, method, path, more)
  assert.equal(response.code, code, `${method} ${path}`)
  return response
}

const valuesOf = (response, name) =>
  response.options.filter((option) => option.name === name).map((option) => option.value.toString())

async function methods (base) {
  assert.equal((await expect('2.05', base, 'GET', '/test')).body.toString(), WELCOME)
  assert.equal((await expect('2.05', base, 'GET', '/test', { confirmable: false })).body.toString(), WELCOME)
  const created = await expect('2.01', base, 'POST', '/test', { payload: 'x' })
  assert.match(valuesOf(created, 'Location-Path').join('/'), /location1.*location2.*location3/)
  await expect('2.04', base, 'PUT', '/test', { payload: 'x' })
  await expect('2.04', base, 'PUT', '/test')
  assert.equal((await expect('2.02', base, 'DELETE', '/test')).body.length, 0)
  const query = await expect('2.05', base, 'GET', '/query?first=1&second=2')
  assert.equal(query.body.toString(), 'first=1&second=2')
}

async function blocks (base) {
  assert.equal((await expect('2.05', base, 'GET', '/large')).body.length, 1700)
  for (const size of [1, 1024, 1025, 50_000]) {
    await expect('2.04', base, 'PUT', '/large-update', { payload: pattern(size) })
    assert.deepEqual((await expect('2.05', base, 'GET', '/large-update')).body, pattern(size))
  }
}

async function conditions (base) {
  const options = { 'If-None-Match': Buffer.alloc(0) }
  await expect('2.01', base, 'PUT', '/create1', { payload: 'one', options })
  await expect('4.12', base, 'PUT', '/create1', { payload: 'two', options })
}

async function errors (base) {
  await expect('4.04', base, 'GET', '/nothing')
  await expect('4.05', base, 'POST', '/large')
  await expect('4.06', base, 'GET', '/multi-format', { options: { Accept: 'application/json' } })
  await expect('4.02', base, 'GET', '/test', { options: { 65001: Buffer.from('x') } })
}

/// States of a resource arrive in order. The client does not read notifications in blocks.
async function observation (base) {
  await expect('2.04', base, 'PUT', '/obs', { payload: 'initial' })
  const { hostname, port } = new URL(base.replace('coap:', 'http:'))
  // The end of the observation closes the socket of its agent.
  const agent = new coap.Agent()
  const request = coap.request({ hostname, port, pathname: '/obs', observe: true, agent })
  const response = new Promise((resolve, reject) => {
    request.on('error', reject)
    request.on('response', resolve)
  })
  request.end()
  const states = (await response)[Symbol.asyncIterator]()
  const nextState = async () => (await states.next()).value.toString()
  assert.equal(await nextState(), 'initial')
  for (const state of ['first', 'second']) {
    await expect('2.04', base, 'PUT', '/obs', { payload: state })
    assert.equal(await nextState(), state)
  }
  (await response).close()
}

async function workers (base) {
  assert.ok(Number((await expect('2.05', base, 'GET', '/sleep/1500')).body) > 0)
  const expected = Buffer.from(Array.from({ length: 50_000 }, (_, at) => at % 251))
  assert.deepEqual((await expect('2.05', base, 'GET', '/sized/50000')).body, expected)
}

const [demo, app] = process.argv.slice(2)
for (const check of [methods, blocks, conditions, errors, observation]) await check(demo)
await workers(app)
console.log('all checks passed')
process.exit(0)
