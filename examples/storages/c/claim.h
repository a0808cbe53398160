// Which rows a claim takes.
#ifndef CLAIM_H
#define CLAIM_H

#include "messages.h"

// Rows that one claim ends dead; the host claims again at once.
#define MOST_REFUSED 1000

typedef exports_outhaul_adapter_storage_claim_request_t request_t;
typedef exports_outhaul_adapter_storage_claimed_t claimed_t;
typedef enum { LEFT, CHOSEN, USED_UP, TOO_LARGE } fate_t;

// What becomes of the candidates, in their order. Returns whether the search was cut short.
static inline bool choose(const request_t *request, const int64_t *attempts, const int64_t *bytes, size_t count, fate_t *fates) {
  size_t chosen = 0, refused = 0;
  uint64_t sum = 0;
  for (size_t at = 0; at < count; at++) fates[at] = LEFT;
  for (size_t at = 0; at < count && chosen < request->limit; at++) {
    const bool is_used_up = request->max_attempts > 0 && attempts[at] >= request->max_attempts;
    if (is_used_up || (uint64_t)bytes[at] > request->max_message_bytes) {
      if (refused++ == MOST_REFUSED) return true;
      fates[at] = is_used_up ? USED_UP : TOO_LARGE;
      continue;
    }
    sum += (uint64_t)bytes[at];
    if (chosen > 0 && sum > request->max_bytes) return false;
    fates[at] = CHOSEN;
    chosen++;
  }
  return chosen < request->limit && (uint64_t)count == (uint64_t)request->limit + MOST_REFUSED;
}

// Ends a row dead, and adds it to the refused ones.
static inline bool refuse(call_t *call, const request_t *request, const rows_t *rows, size_t at, fate_t fate, claimed_t *ret) {
  char detail[128];
  const digits_t number = digits((uint64_t)integers_of(rows, fate == USED_UP ? 1 : 2)[at]);
  failure_t why;
  if (fate == USED_UP) {
    join(detail, sizeof detail, "gave up after ", number.text, " attempts: the lease of the last one ran out", NULL);
    why = failure(OUTHAUL_ADAPTER_OUTBOX_FAILURE_CODE_OTHER, detail);
    WORLD(string_dup)(&why.code.val.other, "attempts-used-up");
  } else {
    join(detail, sizeof detail, number.text, " bytes are more than the limit of ", digits(request->max_message_bytes).text, NULL);
    why = failure(OUTHAUL_ADAPTER_OUTBOX_FAILURE_CODE_TOO_LARGE, detail);
  }
  ret->refused.ptr[ret->refused.len++] = (exports_outhaul_adapter_storage_refusal_t){copy_of(column_value(texts_of(rows, 3), (uint32_t)at)), why};
  const value_t parameters[] = {integer(call->now), text(borrowed(detail)), integer(integers_of(rows, 0)[at])};
  return change(call,
                "UPDATE {t} SET state = 'dead', settled_at = ?1, last_error = ?2, worker = NULL, lease_end = 0 WHERE seq = ?3",
                parameters, 3, NULL);
}

static inline bool claim(call_t *call, request_t *request, claimed_t *ret) {
  *ret = (claimed_t){.unfinished = false};
  // Due, free, and behind no row of its key that is not. A key of NULL equals none: such a row waits for nobody.
  const value_t search[] = {integer(call->now), integer((int64_t)request->limit + MOST_REFUSED)};
  rows_t rows;
  if (!run(call,
           "SELECT seq, attempts, coalesce(octet_length(payload), 0) + coalesce(octet_length(key), 0) + "
           "  (SELECT coalesce(sum(length(value ->> 0) / 2 + length(value ->> 1) / 2), 0) FROM json_each(message.headers)), id "
           "FROM {t} AS message WHERE state = 'pending' AND due_at <= ?1 AND lease_end <= ?1 AND NOT EXISTS ("
           "  SELECT 1 FROM {t} AS earlier WHERE earlier.key = message.key AND earlier.seq < message.seq "
           "    AND earlier.state = 'pending' AND (earlier.due_at > ?1 OR earlier.lease_end > ?1)) "
           "ORDER BY seq LIMIT ?2",
           search, 2, "iiit", &rows)) {
    return false;
  }
  const size_t count = count_of(&rows);
  fate_t *fates = allocated(count, sizeof(fate_t));
  int64_t *seqs = allocated(count, sizeof(int64_t));
  ret->unfinished = choose(request, integers_of(&rows, 1), integers_of(&rows, 2), count, fates);
  ret->refused.ptr = allocated(count, sizeof *ret->refused.ptr);
  size_t chosen = 0;
  bool is_well = true;
  for (size_t at = 0; at < count && is_well; at++) {
    if (fates[at] == CHOSEN) seqs[chosen++] = integers_of(&rows, 0)[at];
    if (fates[at] == USED_UP || fates[at] == TOO_LARGE) is_well = refuse(call, request, &rows, at, fates[at], ret);
  }
  if (is_well && chosen > 0) {
    const value_t lease[] = {text(request->worker), integer(after(call->now, request->lease_ms)), integers(seqs, chosen)};
    is_well = change(call,
                     "UPDATE {t} SET attempts = attempts + 1, worker = ?1, lease_end = ?2 WHERE seq IN (SELECT value FROM json_each(?3))",
                     lease, 3, NULL) &&
              batch_of(call, seqs, chosen, &ret->batch);
  }
  if (ret->refused.len == 0) {
    free(ret->refused.ptr);
    ret->refused.ptr = NULL;
  }
  if (!is_well) exports_outhaul_adapter_storage_claimed_free(ret);
  free(fates);
  free(seqs);
  outhaul_adapter_sql_list_rows_free(&rows);
  return is_well;
}

#endif
