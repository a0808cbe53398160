// Sends each message as one HTTP POST to the URL of its configuration.

import { inKeyOrder } from './key-order.js';
import { delivered, invalidConfiguration, log, outcomeOf, reject, retry } from './outhaul.js';

// What belongs to the connection, or is set here: not the message's to say.
const OWN = new Set([
  'connection', 'content-length', 'expect', 'host', 'keep-alive', 'te', 'trailer', 'transfer-encoding', 'upgrade',
  'idempotency-key', 'outhaul-topic', 'outhaul-key', 'outhaul-attempt', 'outhaul-tombstone',
]);

// Most bytes of a request's headers, each counted as its name, its value and 32 (RFC 9113 section 6.5.2). No server takes more by
// itself than 1 MiB, most take less, and the host stops a component that hands over too much.
const MAX_HEADER_BYTES = 256 * 1024;

// How many requests are under way at once.
const CONCURRENCY = 16;

let settings;

function parse(config) {
  const { url, timeout_ms: timeoutMs = 10_000, ...unknown } = JSON.parse(config);
  for (const key of Object.keys(unknown)) throw invalidConfiguration(`\`${key}\`: unknown key; there are \`url\` and \`timeout_ms\``);
  if (typeof url !== 'string' || !/^https?:\/\/[^/?#@\s]+([/?][^#\s]*)?$/.test(url)) {
    throw invalidConfiguration('`url`: must be an absolute http:// or https:// URL without user name or fragment');
  }
  if (!Number.isInteger(timeoutMs) || timeoutMs < 1 || timeoutMs > 600_000) {
    throw invalidConfiguration('`timeout_ms`: must be a whole number of milliseconds from 1 to 600000');
  }
  return { url, timeoutMs, where: new URL(url).host };
}

// As [name, text] pairs; texts of one byte a character, as Headers take them.
function headersOf(message) {
  const headers = [
    ['idempotency-key', message.id],
    ['outhaul-topic', encodeURIComponent(message.topic)],
    ['outhaul-attempt', String(message.attempts)],
  ];
  if (message.key !== null) headers.push(['outhaul-key', encodeURIComponent(message.key)]);
  if (message.payload === null) headers.push(['outhaul-tombstone', 'true']);
  for (const [name, value] of message.headers) {
    if (!OWN.has(name.toLowerCase())) headers.push([name, Array.from(value, (byte) => String.fromCharCode(byte)).join('')]);
  }
  if (!headers.some(([name]) => name.toLowerCase() === 'content-type')) headers.push(['content-type', 'application/octet-stream']);
  return headers;
}

async function send(message, leftMs) {
  const given = headersOf(message);
  if (given.reduce((sum, [name, value]) => sum + name.length + value.length + 32, 0) > MAX_HEADER_BYTES) {
    return reject('too-large', `the headers are over ${MAX_HEADER_BYTES / 1024} KiB`);
  }
  let headers;
  try {
    headers = new Headers(given);
  } catch (error) {
    return reject('invalid-message', `a header cannot be sent: ${error.message}`);
  }
  let timer;
  const timeout = new Promise((resolve) => {
    timer = setTimeout(resolve, Math.min(settings.timeoutMs, leftMs), retry('timeout', `${settings.where}: no answer in time`));
  });
  const request = fetch(settings.url, { method: 'POST', headers, body: message.payload ?? new Uint8Array() }).then(
    (answer) => outcomeOf(answer.status, answer.headers.get('retry-after'), settings.where),
    (error) => retry('network', `${settings.where}: ${error.message}`),
  );
  try {
    return await Promise.race([request, timeout]);
  } finally {
    clearTimeout(timer);
  }
}

// A delivery of a fan-out has an address of its own: the configured one would be the wrong place.
async function refuse() {
  return retry('invalid-configuration', 'this publisher sends to its own `url` only, not to the destinations of a fan-out');
}

export const publisher = {
  open(config) {
    settings = parse(config);
    log.info('http-js is open', { destination: settings.where });
  },

  async publish(batch, deadlineMs) {
    const outcomes = await inKeyOrder(batch, deadlineMs, CONCURRENCY, batch.destinations ? refuse : send);
    const open = outcomes.filter((outcome) => outcome !== delivered).length;
    if (open > 0) log.warn('not all messages were delivered', { messages: outcomes.length, open });
    return outcomes;
  },
};
