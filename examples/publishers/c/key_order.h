// The loop that keeps the order of each key. Copy this file as it is.
#ifndef KEY_ORDER_H
#define KEY_ORDER_H

#include "outhaul.h"

// Sends every message with `send`, one after the other, and none of a key after one that was not delivered. Each outcome is
// reported as soon as it is known. What cannot be started in time stays untried. The list is given away.
static inline void in_key_order(const outhaul_adapter_outbox_batch_t *batch, uint64_t deadline_ms,
                                outcome_t (*send)(message_t, uint64_t left_ms), exports_outhaul_adapter_publisher_list_outcome_t *ret) {
  const uint64_t began = wasi_clocks_monotonic_clock_now();
  // A tenth, at most 250 ms, is kept for the way back to the host.
  const uint64_t margin_ms = deadline_ms / 10 < 250 ? deadline_ms / 10 : 250;
  const uint64_t end_ms = deadline_ms - margin_ms;
  ret->len = message_count(batch);
  ret->ptr = calloc(ret->len + 1, sizeof(outcome_t));
  uint32_t *stopped = malloc((ret->len + 1) * sizeof(uint32_t));
  if (ret->ptr == NULL || stopped == NULL) abort();
  uint32_t stops = 0;
  for (uint32_t index = 0; index < ret->len; index++) {
    const message_t message = {batch, index};
    const bytes_t key = message_key(message);
    const uint64_t gone_ms = (wasi_clocks_monotonic_clock_now() - began) / 1000000;
    bool open = gone_ms < end_ms;
    // Few keys fail in a batch, so looking at each of them is quick enough.
    for (uint32_t at = 0; open && key.ptr != NULL && at < stops; at++) {
      open = !bytes_equal(key, message_key((message_t){batch, stopped[at]}));
    }
    ret->ptr[index] = open ? send(message, end_ms - gone_ms) : held();
    if (open && key.ptr != NULL && ret->ptr[index].tag != OUTHAUL_ADAPTER_OUTBOX_OUTCOME_DELIVERED) stopped[stops++] = index;
    outhaul_adapter_progress_report(index, &ret->ptr[index]);
  }
  free(stopped);
}

#endif
