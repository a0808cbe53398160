// The loop that keeps the order of each key. Copy this file as it is.

import { report } from 'outhaul:adapter/progress@0.1.1';
import { delivered, held, messages } from './outhaul.js';

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
