import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import { test } from 'node:test';
import { publisher } from '../publisher.js';

// A column as the host hands it over.
function column(values) {
  const parts = values.map((value) => (value === null ? Buffer.alloc(0) : Buffer.from(value)));
  let end = 0;
  return {
    data: new Uint8Array(Buffer.concat(parts)),
    ends: Uint32Array.from(parts, (part) => (end += part.length)),
    nulls: values.includes(null) ? Uint8Array.from(values, (value) => Number(value === null)) : new Uint8Array(),
  };
}

function batch(messages) {
  const headers = messages.flatMap((message) => message.headers ?? []);
  let end = 0;
  return {
    ids: column(messages.map((_, index) => String(index))),
    topics: column(messages.map((message) => message.topic ?? 'orders')),
    keys: column(messages.map((message) => message.key ?? null)),
    headerNames: column(headers.map(([name]) => name)),
    headerValues: column(headers.map(([, value]) => value)),
    headerEnds: Uint32Array.from(messages, (message) => (end += message.headers?.length ?? 0)),
    payloads: column(messages.map((message) => message.payload ?? null)),
    attempts: Uint32Array.from(messages, () => 1),
    createdAt: BigUint64Array.from(messages, () => 0n),
  };
}

// Publishes to a server that answers with `answer(request)`: the outcomes, and the requests in their order.
async function publish(messages, answer) {
  const requests = [];
  const server = createServer((request, response) => {
    const chunks = [];
    request.on('data', (chunk) => chunks.push(chunk));
    request.on('end', () => {
      request.body = Buffer.concat(chunks);
      requests.push(request);
      const [status, headers] = answer(request);
      response.writeHead(status, headers).end();
    });
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  globalThis.reports = [];
  publisher.open(JSON.stringify({ url: `http://127.0.0.1:${server.address().port}/in` }));
  const outcomes = await publisher.publish(batch(messages), 10_000n);
  server.close();
  return { outcomes, requests };
}

test('a delivery of a fan-out does not go to the wrong place', async () => {
  globalThis.reports = [];
  publisher.open(JSON.stringify({ url: 'http://127.0.0.1:9/in' }));
  const deliveries = { ...batch([{ key: 'a' }, { key: 'a' }, {}]), destinations: {} };
  const outcomes = await publisher.publish(deliveries, 10_000n);
  assert.deepEqual(outcomes.map(({ tag }) => tag), ['retry', 'held', 'retry']);
  assert.equal(outcomes[0].val.code.tag, 'invalid-configuration');
});

test('a message arrives with everything that it has', async () => {
  const headers = [['x-tag', 'one'], ['x-tag', 'two'], ['Host', 'evil']];
  const { outcomes, requests } = await publish([{ key: 'Zoë', payload: 'text', headers }, {}], () => [204]);
  assert.deepEqual(outcomes.map(({ tag }) => tag), ['delivered', 'delivered']);
  const [first, second] = requests.sort((a, b) => a.headers['idempotency-key'] - b.headers['idempotency-key']);
  assert.equal(first.body.toString(), 'text');
  assert.equal(first.headers['x-tag'], 'one, two');
  assert.equal(first.headers['outhaul-key'], 'Zo%C3%AB');
  assert.notEqual(first.headers.host, 'evil');
  assert.equal(first.headers['outhaul-tombstone'], undefined);
  assert.equal(second.headers['outhaul-tombstone'], 'true');
});

test('headers that no server takes are too large, and the next message arrives', async () => {
  const { outcomes, requests } = await publish([{ headers: [['x', 'x'.repeat(256 * 1024)]] }, {}], () => [204]);
  assert.deepEqual([outcomes[0].tag, outcomes[0].val.code.tag, outcomes[1].tag], ['reject', 'too-large', 'delivered']);
  assert.deepEqual(requests.map((request) => request.headers['idempotency-key']), ['1']);
});

test('a byte order mark is a character like any other', async () => {
  const { requests } = await publish([{ topic: '\ufefforders' }], () => [204]);
  assert.equal(requests[0].headers['outhaul-topic'], '%EF%BB%BForders');
});

test('a failure holds back its key, and only that', async () => {
  const messages = [{ key: 'a', topic: 'busy' }, { key: 'b' }, { key: 'a' }, { topic: 'bad' }];
  const statuses = { busy: [429, { 'retry-after': '3' }], bad: [400] };
  const { outcomes, requests } = await publish(messages, (request) => statuses[request.headers['outhaul-topic']] ?? [200]);
  assert.deepEqual(outcomes.map(({ tag }) => tag), ['retry', 'delivered', 'held', 'reject']);
  assert.deepEqual([outcomes[0].val.code.tag, outcomes[0].val.retryAfterMs], ['throttled', 3000n]);
  assert.equal(requests.length, 3);
  assert.deepEqual(globalThis.reports.sort(), [[0, 'retry'], [1, 'delivered'], [2, 'held'], [3, 'reject']]);
});

test('errors of the configuration name the key', () => {
  for (const [config, key] of [
    [{}, '`url`'], [{ url: 'ftp://h/' }, '`url`'], [{ url: 'http://a@h/' }, '`url`'],
    [{ url: 'http://h/', timeout_ms: 0 }, '`timeout_ms`'], [{ url: 'http://h/', urll: 1 }, '`urll`'],
  ]) {
    assert.throws(() => publisher.open(JSON.stringify(config)), (error) => error.payload.detail.startsWith(key));
  }
});
