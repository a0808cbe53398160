// The batch of columns as messages, failures, outcomes and texts. Copy this file as it is.
//
// Texts in outcomes are given away: the bindings free them. Texts of messages belong to the batch.
#ifndef OUTHAUL_H
#define OUTHAUL_H

// Names in the bindings begin with that of the world that they were made for.
#if __has_include("gen/storage.h")
#include "gen/storage.h"
#define WORLD(name) storage_##name
#else
#include "gen/publisher.h"
#define WORLD(name) publisher_##name
#endif
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

typedef WORLD(string_t) string_t;

// Bytes that belong to somebody else. `ptr` NULL: none.
typedef struct {
  const uint8_t *ptr;
  size_t len;
} bytes_t;

// One message: a view into a batch.
typedef struct {
  const outhaul_adapter_outbox_batch_t *batch;
  uint32_t index;
} message_t;

typedef outhaul_adapter_outbox_outcome_t outcome_t;

// Value `index` of a column.
static inline bytes_t column_value(const outhaul_adapter_outbox_column_t *column, uint32_t index) {
  if (column->nulls.len > 0 && column->nulls.ptr[index] == 1) return (bytes_t){NULL, 0};
  const uint32_t start = index == 0 ? 0 : column->ends.ptr[index - 1];
  const uint8_t *data = column->data.ptr;
  // An empty value is not none, whatever the pointer of an empty column is.
  return (bytes_t){data == NULL ? (const uint8_t *)"" : data + start, column->ends.ptr[index] - start};
}

static inline uint32_t message_count(const outhaul_adapter_outbox_batch_t *batch) { return (uint32_t)batch->ids.ends.len; }
static inline bytes_t message_id(message_t m) { return column_value(&m.batch->ids, m.index); }
static inline bytes_t message_topic(message_t m) { return column_value(&m.batch->topics, m.index); }
// None: independent of all others.
static inline bytes_t message_key(message_t m) { return column_value(&m.batch->keys, m.index); }
// The exact stored bytes. None: SQL NULL, a tombstone, which is not the same as empty.
static inline bytes_t message_payload(message_t m) { return column_value(&m.batch->payloads, m.index); }
// Claims so far, this one included.
static inline uint32_t message_attempts(message_t m) { return m.batch->attempts.ptr[m.index]; }
// Unix milliseconds; 0: unknown.
static inline uint64_t message_created_at(message_t m) { return m.batch->created_at.ptr[m.index]; }

// Headers in order, duplicates kept: `for (uint32_t at = header_first(m); at < header_end(m); at++)`.
static inline uint32_t header_first(message_t m) { return m.index == 0 ? 0 : m.batch->header_ends.ptr[m.index - 1]; }
static inline uint32_t header_end(message_t m) { return m.batch->header_ends.ptr[m.index]; }
static inline bytes_t header_name(message_t m, uint32_t at) { return column_value(&m.batch->header_names, at); }
static inline bytes_t header_value(message_t m, uint32_t at) { return column_value(&m.batch->header_values, at); }

static inline bool bytes_equal(bytes_t a, bytes_t b) { return a.len == b.len && memcmp(a.ptr, b.ptr, a.len) == 0; }

// Whether `a` is this name in lower case, whatever its own case.
static inline bool is_name(bytes_t a, const char *name) {
  if (a.len != strlen(name)) return false;
  for (size_t i = 0; i < a.len; i++) {
    const uint8_t c = a.ptr[i] >= 'A' && a.ptr[i] <= 'Z' ? a.ptr[i] + 32 : a.ptr[i];
    if (c != (uint8_t)name[i]) return false;
  }
  return true;
}

// Texts one after the other, up to NULL, cut at `size`. (stdio would bring a file system along.)
static inline const char *join(char *into, size_t size, ...) {
  va_list texts;
  va_start(texts, size);
  size_t len = 0;
  for (const char *text = va_arg(texts, const char *); text != NULL; text = va_arg(texts, const char *)) {
    for (; *text != 0 && len + 1 < size; text++) into[len++] = *text;
  }
  va_end(texts);
  into[len] = 0;
  return into;
}

// A number in decimal digits.
typedef struct {
  char text[21];
} digits_t;

static inline digits_t digits(uint64_t number) {
  digits_t made = {{0}};
  int len = 1;
  for (uint64_t rest = number; rest >= 10; rest /= 10) len++;
  for (; len > 0; number /= 10) made.text[--len] = (char)('0' + number % 10);
  return made;
}

// A text that still belongs to the caller.
static inline string_t borrowed(const char *text) { return (string_t){(uint8_t *)text, strlen(text)}; }

// A failure, told to a person: no payloads, no secrets. `code` is one of OUTHAUL_ADAPTER_OUTBOX_FAILURE_CODE_*.
static inline outhaul_adapter_outbox_failure_t failure(uint8_t code, const char *detail) {
  outhaul_adapter_outbox_failure_t made = {.code = {.tag = code}};
  WORLD(string_dup)(&made.detail, detail);
  return made;
}

// The destination has taken it.
static inline outcome_t delivered(void) { return (outcome_t){.tag = OUTHAUL_ADAPTER_OUTBOX_OUTCOME_DELIVERED}; }
// Not tried: costs no attempt.
static inline outcome_t held(void) { return (outcome_t){.tag = OUTHAUL_ADAPTER_OUTBOX_OUTCOME_HELD}; }
// It may succeed later.
static inline outcome_t retry(uint8_t code, const char *detail) {
  return (outcome_t){.tag = OUTHAUL_ADAPTER_OUTBOX_OUTCOME_RETRY, .val.retry = failure(code, detail)};
}
// It can never succeed.
static inline outcome_t reject(uint8_t code, const char *detail) {
  return (outcome_t){.tag = OUTHAUL_ADAPTER_OUTBOX_OUTCOME_REJECT, .val.reject = failure(code, detail)};
}

// A line of the host's log.
static inline void log_line(uint8_t level, const char *line, const char *name, const char *value) {
  string_t text = borrowed(line);
  WORLD(tuple2_string_string_t) field = {borrowed(name), borrowed(value)};
  WORLD(list_tuple2_string_string_t) fields = {&field, 1};
  outhaul_adapter_log_write(level, &text, &fields);
}

// What an HTTP answer means; `where` names the destination without its path, which may hold a token. `retry_after_s`: none is -1.
static inline outcome_t outcome_of(uint16_t status, int64_t retry_after_s, const char *where) {
  if (status >= 200 && status < 300) return delivered();
  char detail[320];
  join(detail, sizeof detail, where, " answered ", digits(status).text, NULL);
  int code = -1;
  if (status == 408) code = OUTHAUL_ADAPTER_OUTBOX_FAILURE_CODE_TIMEOUT;
  if (status == 429) code = OUTHAUL_ADAPTER_OUTBOX_FAILURE_CODE_THROTTLED;
  if (status == 425 || (status >= 500 && status < 600)) code = OUTHAUL_ADAPTER_OUTBOX_FAILURE_CODE_UNAVAILABLE;
  if (code >= 0) {
    outcome_t outcome = retry((uint8_t)code, detail);
    outcome.val.retry.retry_after_ms = (WORLD(option_u64_t)){retry_after_s >= 0, (uint64_t)retry_after_s * 1000};
    return outcome;
  }
  switch (status) {
    case 400: case 422: return reject(OUTHAUL_ADAPTER_OUTBOX_FAILURE_CODE_INVALID_MESSAGE, detail);
    case 401: case 403: case 407: return reject(OUTHAUL_ADAPTER_OUTBOX_FAILURE_CODE_UNAUTHORIZED, detail);
    case 410: return reject(OUTHAUL_ADAPTER_OUTBOX_FAILURE_CODE_DESTINATION_GONE, detail);
    case 413: case 414: case 431: return reject(OUTHAUL_ADAPTER_OUTBOX_FAILURE_CODE_TOO_LARGE, detail);
  }
  outcome_t outcome = reject(OUTHAUL_ADAPTER_OUTBOX_FAILURE_CODE_OTHER, detail);
  char word[16];
  WORLD(string_dup)(&outcome.val.reject.code.val.other, join(word, sizeof word, "http-", digits(status).text, NULL));
  return outcome;
}

#endif
