// The batch of columns as messages, columns of values, failures and outcomes. Copy this file as it is.

import { write } from 'outhaul:adapter/log@0.1.1';

// Every character counts, a byte order mark at the start as well.
const utf8 = new TextDecoder('utf-8', { ignoreBOM: true });
const encoder = new TextEncoder();

// Value `index` of a column as bytes; null: none.
function bytes(column, index) {
  if (column.nulls.length > 0 && column.nulls[index] === 1) return null;
  return column.data.subarray(index === 0 ? 0 : column.ends[index - 1], column.ends[index]);
}

/** Value `index` of a column of text; null: none. */
export function text(column, index) {
  const value = bytes(column, index);
  return value === null ? null : utf8.decode(value);
}

/** A column of these values: texts, bytes or null. */
export function column(values) {
  const parts = values.map((value) => (typeof value === 'string' ? encoder.encode(value) : value ?? new Uint8Array()));
  const ends = new Uint32Array(parts.length);
  let end = 0;
  parts.forEach((part, index) => (ends[index] = end += part.length));
  const data = new Uint8Array(end);
  parts.forEach((part, index) => data.set(part, ends[index] - part.length));
  const nulls = values.includes(null) ? Uint8Array.from(values, (value) => Number(value === null)) : new Uint8Array();
  return { data, ends, nulls };
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

/** Throw it where a call returns a failure; any other exception is a trap. */
export const failed = (code, detail) => Object.assign(new Error(detail), { payload: failure(code, detail) });

/** Throw it from `open`: the configuration is wrong, and `detail` names the key. */
export const invalidConfiguration = (detail) => failed('invalid-configuration', detail);

export const log = {
  info: (line, fields = {}) => write('info', line, Object.entries(fields).map(([name, value]) => [name, String(value)])),
  warn: (line, fields = {}) => write('warn', line, Object.entries(fields).map(([name, value]) => [name, String(value)])),
};

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
