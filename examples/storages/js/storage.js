// A storage over a table of names and values: every message is one JSON text under `live/`, `done/` or `dead/` and its number.
//
// It keeps the whole contract of the WIT, strict order included. Each call is one transaction. A claim reads the live messages from the
// first on, so it is for tables of thousands, not of millions.

import { Connection } from 'outhaul:adapter/sql@0.1.1';
import { column, failed, failure, invalidConfiguration, messages, text } from './outhaul.js';
import { inTransaction, schema, statement, told } from './table.js';

// Rows that one claim ends dead; the host claims again at once.
const MOST_REFUSED = 1000;
// The longest duration, in milliseconds: so long that it counts as for ever, and so short that times stay exact.
const FOR_EVER = 2n ** 52n;

const encoder = new TextEncoder();
const toBase64 = (bytes) => btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(''));
const fromBase64 = (base64) => Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
const after = (now, ms) => now + Number(ms < FOR_EVER ? ms : FOR_EVER);
const isLeased = (row, now) => row.worker !== null && row.lease_end > now;

// Set by `open`.
let settings;
let connection;

function parse(config) {
  const { database, table = 'outbox_kv', ...unknown } = JSON.parse(config);
  for (const key of Object.keys(unknown)) throw invalidConfiguration(`\`${key}\`: unknown key; there are \`database\` and \`table\``);
  if (typeof database !== 'string') throw invalidConfiguration('`database`: must name a database');
  if (typeof table !== 'string' || !/^[A-Za-z_][A-Za-z0-9_]*$/.test(table)) {
    throw invalidConfiguration('`table`: must be letters, digits and `_`, no digit first');
  }
  return { database, table };
}

// Rows as the host takes them.
function batchOf(rows) {
  const headers = rows.flatMap((row) => row.headers);
  let end = 0;
  return {
    ids: column(rows.map((row) => row.id)),
    topics: column(rows.map((row) => row.topic)),
    keys: column(rows.map((row) => row.key)),
    headerNames: column(headers.map(([name]) => name)),
    headerValues: column(headers.map(([, value]) => fromBase64(value))),
    headerEnds: Uint32Array.from(rows, (row) => (end += row.headers.length)),
    payloads: column(rows.map((row) => (row.payload === null ? null : fromBase64(row.payload)))),
    attempts: Uint32Array.from(rows, (row) => Math.max(row.attempts, 1)),
    createdAt: BigUint64Array.from(rows, (row) => BigInt(row.created_at)),
  };
}

const put = (call, name, row) => call.put(name, JSON.stringify(row));

// Puts a row under another prefix; its number stays.
function move(call, name, prefix, row) {
  const moved = `${prefix}/${name.slice(name.indexOf('/') + 1)}`;
  call.delete(name);
  put(call, moved, row);
  call.put(`id/${row.id}`, moved);
}

// Why a row can never be claimed again; null: it can.
function refusal(row, request) {
  if (request.maxAttempts > 0 && row.attempts >= request.maxAttempts) {
    return failure('attempts-used-up', `gave up after ${row.attempts} attempts: the lease of the last one ran out`);
  }
  if (BigInt(row.bytes) > request.maxMessageBytes) {
    return failure('too-large', `${row.bytes} bytes are more than the limit of ${request.maxMessageBytes}`);
  }
  return null;
}

// The first rows that are due, each key's as an unbroken run from its first live row.
function claim(call, request) {
  const blocked = new Set();
  const chosen = [];
  const refused = [];
  let bytes = 0;
  for (const [name, value] of call.range('live')) {
    const row = JSON.parse(value);
    if (blocked.has(row.key)) continue;
    if (isLeased(row, call.now) || row.due > call.now) {
      if (row.key !== null) blocked.add(row.key);
      continue;
    }
    const why = refusal(row, request);
    if (why !== null) {
      move(call, name, 'dead', { ...row, worker: null, error: why.detail, settled_at: call.now });
      refused.push({ id: row.id, failure: why });
      if (refused.length === MOST_REFUSED) return { batch: batchOf(chosen), refused, unfinished: true };
      continue;
    }
    bytes += row.bytes;
    if (chosen.length > 0 && BigInt(bytes) > request.maxBytes) break;
    const leased = { ...row, attempts: row.attempts + 1, worker: request.worker, lease_end: after(call.now, request.leaseMs) };
    put(call, name, leased);
    chosen.push(leased);
    if (chosen.length === request.limit) break;
  }
  return { batch: batchOf(chosen), refused, unfinished: false };
}

// Calls `change(name, row)` for each row that the worker holds, and returns the other ids. A lease that nobody took over is still its
// holder's.
function eachHeld(call, worker, ids, change) {
  return Array.from(ids.ends, (_, index) => text(ids, index)).filter((id) => {
    const name = call.get(`id/${id}`);
    const row = name?.startsWith('live/') ? JSON.parse(call.get(name)) : null;
    if (row?.worker !== worker) return true;
    change(name, row);
    return false;
  });
}

function settle(call, worker, settlements) {
  return settlements.flatMap(({ verdict: { tag, val }, ids }) =>
    eachHeld(call, worker, ids, (name, held) => {
      const row = { ...held, worker: null };
      if (tag === 'delivered') move(call, name, 'done', { ...row, settled_at: call.now });
      if (tag === 'dead') move(call, name, 'dead', { ...row, settled_at: call.now, error: val.detail });
      if (tag === 'retry') put(call, name, { ...row, due: after(call.now, val.delayMs), error: val.failure.detail });
      if (tag === 'release') put(call, name, { ...row, due: after(call.now, val), attempts: row.attempts - 1 });
    }),
  );
}

function stats(call) {
  const rows = Array.from(call.range('live'), ([, value]) => JSON.parse(value));
  const count = (wanted) => BigInt(rows.filter(wanted).length);
  const oldest = rows.reduce((age, row) => Math.max(age, call.now - row.created_at), 0);
  return {
    pending: BigInt(rows.length),
    due: count((row) => !isLeased(row, call.now) && row.due <= call.now),
    leased: count((row) => isLeased(row, call.now)),
    dead: BigInt(Array.from(call.range('dead')).length),
    oldestPendingMs: rows.length > 0 ? BigInt(oldest) : undefined,
  };
}

function enqueue(call, batch) {
  let number = Number(call.get('next') ?? 1);
  const ids = messages(batch).map((message) => {
    // A number that was given as an id is passed over.
    while (!message.id && call.get(`id/${number}`) !== null) number += 1;
    const id = message.id || String(number);
    if (call.get(`id/${id}`) !== null) throw failed('invalid-message', `the id \`${id}\` is taken`);
    const { topic, key, headers, payload } = message;
    const sizes = [payload ?? '', encoder.encode(key ?? ''), ...headers.flatMap(([name, value]) => [encoder.encode(name), value])];
    const name = `live/${String(number).padStart(16, '0')}`;
    put(call, name, {
      id,
      topic,
      key,
      headers: headers.map(([header, value]) => [header, toBase64(value)]),
      payload: payload === null ? null : toBase64(payload),
      // What counts against the limits.
      bytes: sizes.reduce((sum, { length }) => sum + length, 0),
      created_at: call.now,
      due: call.now,
      attempts: 0,
      worker: null,
      lease_end: 0,
      error: null,
      settled_at: 0,
    });
    call.put(`id/${id}`, name);
    number += 1;
    return id;
  });
  call.put('next', String(number));
  return ids;
}

function stateOf(row, prefix, now) {
  if (prefix === 'live') return isLeased(row, now) ? 'leased' : 'pending';
  return prefix === 'done' ? 'delivered' : 'dead';
}

function matches(row, state, filter) {
  if ((filter.state ?? state) !== state || (filter.topic ?? row.topic) !== row.topic) return false;
  return filter.ids.length === 0 || filter.ids.includes(row.id);
}

function browse(call, filter, behind, limit, withMessages) {
  const found = [];
  for (const prefix of ['live', 'done', 'dead']) {
    let taken = 0;
    for (const [name, value] of call.range(prefix, behind)) {
      const row = JSON.parse(value);
      const state = stateOf(row, prefix, call.now);
      if (!matches(row, state, filter)) continue;
      found.push({ number: name.slice(prefix.length + 1), row, state });
      // One more than asked for tells whether there is a next page.
      if ((taken += 1) > limit) break;
    }
  }
  found.sort((a, b) => (a.number < b.number ? -1 : 1));
  const page = found.slice(0, limit);
  return {
    rows: page.map(({ row, state }) => ({
      id: row.id,
      topic: row.topic,
      key: row.key ?? undefined,
      state,
      attempts: row.attempts,
      lastError: row.error ?? undefined,
      createdAt: BigInt(row.created_at),
      dueInMs: BigInt(state === 'pending' ? Math.max(row.due - call.now, 0) : 0),
    })),
    messages: withMessages ? batchOf(page.map(({ row }) => row)) : undefined,
    next: found.length > limit ? page.at(-1).number : undefined,
  };
}

// Calls `change(name, row)` for dead rows that match, and returns how many; rows in other states are left alone, whatever the filter says.
function eachDead(call, filter, change) {
  if ((filter.state ?? 'dead') !== 'dead') return 0n;
  const rows = Array.from(call.range('dead'), ([name, value]) => [name, JSON.parse(value)]).filter(([, row]) => matches(row, 'dead', filter));
  for (const [name, row] of rows) change(name, row);
  return BigInt(rows.length);
}

function forget(call, name, row) {
  call.delete(name);
  call.delete(`id/${row.id}`);
}

function requeue(call, filter) {
  const reset = { attempts: 0, due: call.now, settled_at: 0 };
  return eachDead(call, filter, (name, row) => move(call, name, 'live', { ...row, ...reset }));
}

function purge(call, olderThanMs, limit) {
  let count = 0;
  for (const [name, value] of call.range('done')) {
    if (count === limit) break;
    const row = JSON.parse(value);
    if (BigInt(Math.max(call.now - row.settled_at, 0)) < olderThanMs) continue;
    forget(call, name, row);
    count += 1;
  }
  return BigInt(count);
}

const inCall = (what, work) => inTransaction(connection, settings.table, what, work);

export const storage = {
  open(config) {
    const made = parse(config);
    const opened = told('opening', () => Connection.open(made.database, 'read-write'));
    if (opened.dialect() !== 'sqlite') throw invalidConfiguration('`database`: this storage is for SQLite');
    settings = made;
    connection = opened;
    return { strictOrder: true, prefersFused: true, wake: { tag: 'data-version', val: made.database } };
  },
  claim: (request) => inCall('claiming', (call) => claim(call, request)),
  settle: (worker, settlements) => inCall('settling', (call) => settle(call, worker, settlements)),
  extend: (worker, ids, leaseMs) =>
    inCall('renewing leases', (call) =>
      eachHeld(call, worker, ids, (name, row) => put(call, name, { ...row, lease_end: after(call.now, leaseMs) })),
    ),
  stats: () => inCall('counting', stats),
};

// One commit instead of two.
export const storageFused = {
  settleAndClaim: (settlements, request) =>
    inCall('settling and claiming', (call) => {
      const lost = settle(call, request.worker, settlements);
      return { lost, claimed: claim(call, request) };
    }),
};

// For the command line.
export const storageAdmin = {
  schema: () => schema(settings.table),
  createSchema() {
    told('creating the table', () => connection.execute([statement(schema(settings.table))]));
  },
  enqueue: (batch) => inCall('inserting', (call) => enqueue(call, batch)),
  browse: (filter, behind, limit, withMessages) => inCall('browsing', (call) => browse(call, filter, behind, limit, withMessages)),
  requeue: (filter) => inCall('requeueing', (call) => requeue(call, filter)),
  discard: (filter) => inCall('discarding', (call) => eachDead(call, filter, (name, row) => forget(call, name, row))),
  purge: (olderThanMs, limit) => inCall('purging', (call) => purge(call, olderThanMs, limit)),
};
