// The storage outside of the sandbox, clause by clause, on a table that is a map.

import assert from 'node:assert/strict';
import { beforeEach, test } from 'node:test';
import { column, failure, messages } from '../outhaul.js';
import { storage, storageAdmin, storageFused } from '../storage.js';

// `connection` and `transaction` of the host, as far as the storage uses them, with a clock that tests move.
class Database {
  now = 1_000_000;
  rows = new Map();

  dialect() {
    return 'sqlite';
  }

  begin(statements) {
    return [this, this.execute(statements)];
  }

  execute(statements) {
    return statements.map(({ sql, parameters }) => ({ columns: this.#run(sql, ...parameters.map(({ val }) => val)) }));
  }

  #run(sql, first, second) {
    const texts = (values) => ({ tag: 'texts', val: column(values) });
    if (sql.includes('julianday')) return [{ tag: 'integers', val: { values: BigInt64Array.of(BigInt(this.now)) } }];
    if (sql.startsWith('INSERT')) this.rows.set(first, second);
    if (sql.startsWith('DELETE')) this.rows.delete(first);
    if (sql.startsWith('SELECT value')) return [texts(this.rows.has(first) ? [this.rows.get(first)] : [])];
    if (!sql.startsWith('SELECT name')) return [];
    const limit = Number(/LIMIT (\d+)$/.exec(sql)[1]);
    const names = [...this.rows.keys()].filter((name) => name > first && name < second).sort().slice(0, limit);
    return [texts(names), texts(names.map((name) => this.rows.get(name)))];
  }
}

const ANY = { ids: [] };
const DELIVERED = { tag: 'delivered' };
const DEAD = { tag: 'dead', val: failure('network', 'no') };
const retry = (delayMs, detail = 'no') => ({ tag: 'retry', val: { failure: failure('network', detail), delayMs } });
const release = (val) => ({ tag: 'release', val });
const settlement = (verdict, ...ids) => ({ verdict, ids: column(ids) });
const idsOf = (batch) => messages(batch).map(({ id }) => id);
const rows = () => Object.fromEntries(storageAdmin.browse(ANY, undefined, 100, false).rows.map((row) => [row.id, row]));

function request(changed = {}) {
  return { worker: 'w', limit: 10, maxBytes: 1000n, leaseMs: 5000n, maxAttempts: 0, maxMessageBytes: 1000n, ...changed };
}

const claim = (changed) => idsOf(storage.claim(request(changed)).batch);
const settle = (verdict, ids, worker = 'w') => storage.settle(worker, [settlement(verdict, ...ids)]);

function enqueue(...given) {
  const headers = given.flatMap((message) => message.headers ?? []);
  let end = 0;
  return storageAdmin.enqueue({
    ids: column(given.map(({ id = null }) => id)),
    topics: column(given.map(({ topic = 't' }) => topic)),
    keys: column(given.map(({ key = null }) => key)),
    headerNames: column(headers.map(([name]) => name)),
    headerValues: column(headers.map(([, value]) => value)),
    headerEnds: Uint32Array.from(given, (message) => (end += message.headers?.length ?? 0)),
    payloads: column(given.map(({ payload = null }) => payload)),
    attempts: new Uint32Array(given.length),
    createdAt: new BigUint64Array(given.length),
  });
}

let database;

beforeEach(() => {
  database = globalThis.database = new Database();
  storage.open(JSON.stringify({ database: 'main' }));
});

test('what goes in comes out', () => {
  const headers = [['a', Uint8Array.of(49)], ['a', Uint8Array.of(0, 255)]];
  const given = [{ key: 'k\0', headers, payload: Uint8Array.of(0, 255) }, { id: 'mine', payload: '' }, {}];
  assert.deepEqual(enqueue(...given), ['1', 'mine', '3']);
  const [first, second, third] = messages(storage.claim(request()).batch);
  assert.deepEqual([first.key, first.attempts, first.createdAt], ['k\0', 1, 1_000_000]);
  assert.deepEqual(first.headers.map(([name, value]) => [name, [...value]]), [['a', [49]], ['a', [0, 255]]]);
  assert.deepEqual([[...first.payload], [...second.payload], third.payload, second.key], [[0, 255], [], null, null]);
  assert.throws(() => enqueue({ id: 'mine' }), (error) => error.payload.code.tag === 'invalid-message');
});

test('a number that was given as an id is passed over', () => {
  assert.deepEqual(enqueue({ id: '2' }, {}, {}), ['2', '3', '4']);
  assert.deepEqual([enqueue({ id: '5' }), enqueue({})], [['5'], ['6']]);
});

test('claims do not overlap and keep the order of a key', () => {
  enqueue({ key: 'a' }, { key: 'a' }, { key: 'b' }, {});
  assert.deepEqual(claim({ limit: 1 }), ['1']);
  // The second of `a` is held back by the lease on the first.
  assert.deepEqual([claim({ worker: 'v' }), claim()], [['3', '4'], []]);
  assert.deepEqual(settle(DELIVERED, ['1']), []);
  assert.deepEqual(claim(), ['2']);
});

test('a waiting head holds back its key until its delay is over', () => {
  enqueue({ key: 'a' }, { key: 'a' });
  claim({ limit: 1 });
  settle(retry(100n, 'text with \0 and ☃'), ['1']);
  assert.deepEqual([claim(), rows()['1'].dueInMs], [[], 100n]);
  database.now += 100;
  assert.deepEqual(claim(), ['1', '2']);
  assert.deepEqual([rows()['1'].attempts, rows()['1'].lastError], [2, 'text with \0 and ☃']);
});

test('a release gives the attempt back, and the longest delay is for ever', () => {
  enqueue({}, {});
  claim();
  settle(release(50n), ['1']);
  settle(release(2n ** 64n - 1n), ['2']);
  assert.deepEqual([rows()['1'].attempts, rows()['1'].dueInMs, rows()['2'].dueInMs], [0, 50n, 2n ** 52n]);
});

test('a lease that ran out counts, and ends dead at the limit', () => {
  enqueue({ key: 'a' }, { key: 'a' });
  claim({ limit: 1 });
  database.now += 5000;
  const { batch, refused } = storage.claim(request({ maxAttempts: 1 }));
  assert.deepEqual([refused.map(({ id }) => id), idsOf(batch), rows()['1'].state], [['1'], ['2'], 'dead']);
});

test('late writes change nothing', () => {
  enqueue({}, {});
  claim({ worker: 'old' });
  database.now += 5000;
  claim({ worker: 'new' });
  for (const verdict of [DELIVERED, DEAD, retry(0n), release(0n)]) {
    assert.deepEqual(settle(verdict, ['1', '2', 'gone'], 'old'), ['1', '2', 'gone']);
  }
  assert.deepEqual(storage.extend('old', column(['1']), 9000n), ['1']);
  assert.deepEqual([rows()['1'].state, rows()['2'].state], ['leased', 'leased']);
  assert.deepEqual([settle(DELIVERED, ['1'], 'new'), settle(DELIVERED, ['1'], 'new')], [[], ['1']]);
});

test('a lease is extended', () => {
  enqueue({});
  claim();
  assert.deepEqual(storage.extend('w', column(['1']), 9000n), []);
  database.now += 8000;
  assert.deepEqual(claim({ worker: 'v' }), []);
});

test('sizes are kept', () => {
  enqueue({ payload: 'x'.repeat(60) }, { payload: 'y'.repeat(50) }, { payload: 'z'.repeat(500) });
  assert.deepEqual(claim({ maxBytes: 100n }), ['1']);
  assert.deepEqual(storage.claim(request({ maxMessageBytes: 100n })).refused.map(({ id }) => id), ['3']);
  // Larger than maxBytes, but the first: it has to go some time.
  settle(release(0n), ['1']);
  assert.deepEqual(claim({ maxBytes: 1n }), ['1']);
});

test('settling and claiming are one', () => {
  enqueue({ key: 'a' }, { key: 'a' });
  claim({ limit: 1 });
  let turn = storageFused.settleAndClaim([settlement(DELIVERED, '1', '9')], request());
  assert.deepEqual([turn.lost, idsOf(turn.claimed.batch)], [['9'], ['2']]);
  turn = storageFused.settleAndClaim([settlement(retry(0n), '2')], request());
  assert.deepEqual(messages(turn.claimed.batch).map(({ attempts }) => attempts), [2]);
});

test('more rows than are read at once', () => {
  enqueue(...Array.from({ length: 1200 }, () => ({})));
  assert.equal(claim({ limit: 2000, maxBytes: 1_000_000n }).length, 1200);
  database.now += 5000;
  const { refused, unfinished } = storage.claim(request({ maxAttempts: 1 }));
  assert.deepEqual([refused.length, unfinished], [1000, true]);
});

test('counts', () => {
  enqueue({}, {}, {}, {});
  claim({ limit: 2 });
  settle(DEAD, ['1']);
  database.now += 10;
  assert.deepEqual(storage.stats(), { pending: 3n, due: 2n, leased: 1n, dead: 1n, oldestPendingMs: 10n });
});

test('the command line', () => {
  enqueue({ topic: 'a' }, { topic: 'b' }, { topic: 'a' });
  claim();
  settle(DEAD, ['1', '2']);
  settle(DELIVERED, ['3']);
  let page = storageAdmin.browse(ANY, undefined, 2, true);
  assert.deepEqual([page.rows.map(({ id }) => id), messages(page.messages).map(({ topic }) => topic)], [['1', '2'], ['a', 'b']]);
  page = storageAdmin.browse(ANY, page.next, 2, false);
  assert.deepEqual([page.rows.map(({ id }) => id), page.next, page.messages], [['3'], undefined, undefined]);
  assert.equal(storageAdmin.requeue({ topic: 'a', ids: [] }), 1n);
  assert.deepEqual([rows()['1'].state, rows()['1'].attempts], ['pending', 0]);
  assert.equal(storageAdmin.discard({ ids: ['1', '2'] }), 1n);
  assert.equal(storageAdmin.purge(1n, 10), 0n);
  database.now += 1;
  assert.deepEqual([storageAdmin.purge(1n, 10), storageAdmin.purge(1n, 10)], [1n, 0n]);
  assert.deepEqual(Object.keys(rows()), ['1']);
});

test('a failed call changes nothing, and an error of the database is told', () => {
  enqueue({});
  const before = new Map(database.rows);
  assert.throws(() => enqueue({}, { id: '1' }), (error) => error.payload.code.tag === 'invalid-message');
  assert.deepEqual(database.rows, before);
  database.begin = () => {
    throw Object.assign(new Error(), { payload: { code: 'busy', detail: 'locked' } });
  };
  assert.throws(() => claim(), (error) => error.payload.code.tag === 'unavailable' && error.payload.detail === 'claiming: locked');
});

test('errors of the configuration name the key', () => {
  for (const [config, key] of [[{}, '`database`'], [{ database: 'm', table: 'a b' }, '`table`'], [{ database: 'm', tabel: 1 }, '`tabel`']]) {
    assert.throws(() => storage.open(JSON.stringify(config)), (error) => error.payload.detail.startsWith(key));
  }
});
