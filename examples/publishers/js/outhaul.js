// The batch of columns as messages, outcomes, and the loop that keeps the order of each key. Copy this file as it is.

import { report } from 'outhaul:adapter/progress@0.1.1';
import { write } from 'outhaul:adapter/log@0.1.1';

// Every character counts, a byte order mark at the start as well.
const utf8 = new TextDecoder('utf-8', { ignoreBOM: true });

// Value `index` of a column as bytes; null: none.
function bytes(column, index) {
  if (column.nulls.length > 0 && column.nulls[index] === 1) return null;
  return column.data.subarray(index === 0 ? 0 : column.ends[index - 1], column.ends[index]);
}

function text(column, index) {
  const value = bytes(column, index);
  return value === null ? null : utf8.decode(value);
}

/** One message: a view into a batch, nothing is decoded until asked for. */
export class Message {
  #batch;

  constructor(batch, index) {
    this.#batch = batch;
    /** Its place in the batch. */
    this.index = index;
  }

  get id() {
    return text(this.#batch.ids, this.index);
  }

  get topic() {
    return text(this.#batch.topics, this.index);
  }

  /** null: independent of all others. */
  get key() {
    return text(this.#batch.keys, this.index);
  }

  /** The exact stored bytes; null: SQL NULL, a tombstone, which is not the same as empty. */
  get payload() {
    return bytes(this.#batch.payloads, this.index);
  }

  /** [name, bytes] in order, duplicates kept. */
  get headers() {
    const { headerEnds, headerNames, headerValues } = this.#batch;
    const headers = [];
    for (let at = this.index === 0 ? 0 : headerEnds[this.index - 1]; at < headerEnds[this.index]; at += 1) {
      headers.push([text(headerNames, at), bytes(headerValues, at)]);
    }
    return headers;
  }

  /** Claims so far, this one included. */
  get attempts() {
    return this.#batch.attempts[this.index];
  }

  /** Unix milliseconds; null: unknown. */
  get createdAt() {
    return Number(this.#batch.createdAt[this.index]) || null;
  }
}

/** Every message of a batch, in its order. */
export function messages(batch) {
  return Array.from(batch.ids.ends, (_, index) => new Message(batch, index));
}

/**
 * A failure, told to a person: no payloads, no secrets. `code` is a name of WIT's `failure-code`, such as 'network'; anything
 * else becomes `other(code)`.
 */
export function failure(code, detail, retryAfterMs) {
  return {
    code: CODES.has(code) ? { tag: code } : { tag: 'other', val: code },
    detail,
    retryAfterMs: retryAfterMs === undefined ? undefined : BigInt(retryAfterMs),
  };
}

const CODES = new Set([
  'network', 'timeout', 'throttled', 'unavailable', 'unauthorized', 'invalid-message', 'too-large', 'destination-gone',
  'invalid-configuration', 'signing-unavailable', 'integrity',
]);

/** The destination has taken it. */
export const delivered = { tag: 'delivered' };
/** Not tried: costs no attempt. */
export const held = { tag: 'held' };
/** It may succeed later. */
export const retry = (code, detail, retryAfterMs) => ({ tag: 'retry', val: failure(code, detail, retryAfterMs) });
/** It can never succeed. */
export const reject = (code, detail) => ({ tag: 'reject', val: failure(code, detail) });

/** Throw it from `open`: the configuration is wrong, and `detail` names the key. */
export function invalidConfiguration(detail) {
  return Object.assign(new Error(detail), { payload: failure('invalid-configuration', detail) });
}

export const log = {
  info: (line, fields = {}) => write('info', line, Object.entries(fields).map(([name, value]) => [name, String(value)])),
  warn: (line, fields = {}) => write('warn', line, Object.entries(fields).map(([name, value]) => [name, String(value)])),
};

/**
 * Sends every message with `send(message, leftMs)`, an async function that returns an outcome: those of one key one after the other,
 * and none after one that was not delivered; at most `concurrency` keys at once. Each outcome is reported as soon as it is known.
 * What cannot be started in time stays untried.
 */
export async function inKeyOrder(batch, deadlineMs, concurrency, send) {
  const began = performance.now();
  // A tenth, at most 250 ms, is kept for the way back to the host.
  const endMs = Number(deadlineMs) - Math.min(Number(deadlineMs) / 10, 250);
  const lanes = new Map();
  for (const message of messages(batch)) {
    const lane = message.key ?? message.index;
    if (!lanes.has(lane)) lanes.set(lane, []);
    lanes.get(lane).push(message);
  }
  const outcomes = new Array(batch.ids.ends.length).fill(held);
  const settle = (message, outcome) => {
    outcomes[message.index] = outcome;
    report(message.index, outcome);
  };
  const waiting = [...lanes.values()];
  const work = async () => {
    for (let lane = waiting.shift(); lane !== undefined; lane = waiting.shift()) {
      let open = true;
      for (const message of lane) {
        const leftMs = endMs - (performance.now() - began);
        open &&= leftMs > 0;
        settle(message, open ? await send(message, leftMs) : held);
        open &&= outcomes[message.index] === delivered;
      }
    }
  };
  await Promise.all(Array.from({ length: Math.min(concurrency, waiting.length) }, work));
  return outcomes;
}

/** What an HTTP answer means; `where` names the destination without its path, which may hold a token. */
export function outcomeOf(status, retryAfter, where) {
  const detail = `${where} answered ${status}`;
  // Seconds; the form with a date is left out here, and counts as absent.
  const afterMs = /^\d{1,9}$/.test(retryAfter ?? '') ? Number(retryAfter) * 1000 : undefined;
  if (status >= 200 && status < 300) return delivered;
  if (status === 408) return retry('timeout', detail, afterMs);
  if (status === 429) return retry('throttled', detail, afterMs);
  if (status === 425 || (status >= 500 && status < 600)) return retry('unavailable', detail, afterMs);
  if (status === 400 || status === 422) return reject('invalid-message', detail);
  if (status === 401 || status === 403 || status === 407) return reject('unauthorized', detail);
  if (status === 410) return reject('destination-gone', detail);
  if (status === 413 || status === 414 || status === 431) return reject('too-large', detail);
  return reject(`http-${status}`, detail);
}
