// Rows of the table as messages, and back.
#ifndef MESSAGES_H
#define MESSAGES_H

#include "database.h"

// Running it again changes nothing. A header is a pair of its name and its value, both in hexadecimal digits: no byte needs an escape.
static const char *const SCHEMA[] = {
    "CREATE TABLE IF NOT EXISTS {t} (\n"
    "  seq INTEGER PRIMARY KEY AUTOINCREMENT,\n"
    "  id TEXT NOT NULL UNIQUE DEFAULT (lower(hex(random()))),\n"
    "  topic TEXT NOT NULL,\n"
    "  key TEXT,\n"
    "  headers TEXT NOT NULL DEFAULT '[]' CHECK (json_type(headers) = 'array'),\n"
    "  payload BLOB,\n"
    "  state TEXT NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'delivered', 'dead')),\n"
    "  attempts INTEGER NOT NULL DEFAULT 0,\n"
    "  due_at INTEGER NOT NULL DEFAULT 0,\n"
    "  worker TEXT,\n"
    "  lease_end INTEGER NOT NULL DEFAULT 0,\n"
    "  last_error TEXT,\n"
    "  created_at INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),\n"
    "  settled_at INTEGER\n"
    ")",
    "CREATE INDEX IF NOT EXISTS {t}_state ON {t} (state, seq)",
    "CREATE INDEX IF NOT EXISTS {t}_key ON {t} (key, seq) WHERE state = 'pending'",
};
#define STATEMENTS_OF_SCHEMA (sizeof SCHEMA / sizeof *SCHEMA)

static inline uint8_t digit_of(uint8_t c) { return c <= '9' ? c - '0' : (c & 31) + 9; }

// Turns hexadecimal digits into the bytes that they stand for, in place.
static inline void unhex(column_t *column) {
  size_t from = 0, to = 0;
  for (size_t at = 0; at < column->ends.len; at++) {
    const size_t end = column->ends.ptr[at];
    for (; from + 1 < end; from += 2) {
      column->data.ptr[to++] = (uint8_t)(digit_of(column->data.ptr[from]) << 4 | (digit_of(column->data.ptr[from + 1]) & 15));
    }
    from = end;
    column->ends.ptr[at] = (uint32_t)to;
  }
  // What was not empty is to be freed.
  if (to == 0) WORLD(list_u8_free)(&column->data);
  column->data.len = to;
}

// The messages of these rows, in the order of insertion.
static inline bool batch_of(call_t *call, int64_t *seqs, size_t count, outhaul_adapter_outbox_batch_t *ret) {
  *ret = (outhaul_adapter_outbox_batch_t){.destinations = {.is_some = false}};
  if (count == 0) return true;
  const value_t wanted = integers(seqs, count);
  rows_t rows, headers;
  if (!run(call,
           "SELECT max(attempts, 1), created_at, json_array_length(headers), id, topic, key, payload FROM {t} "
           "WHERE seq IN (SELECT value FROM json_each(?1)) ORDER BY seq",
           &wanted, 1, "iiitttb", &rows)) {
    return false;
  }
  if (!run(call,
           "SELECT coalesce(header.value ->> 0, ''), coalesce(header.value ->> 1, '') "
           "FROM {t} AS message, json_each(message.headers) AS header "
           "WHERE message.seq IN (SELECT value FROM json_each(?1)) ORDER BY message.seq, header.key",
           &wanted, 1, "tt", &headers)) {
    outhaul_adapter_sql_list_rows_free(&rows);
    return false;
  }
  count = count_of(&rows);
  ret->attempts = (WORLD(list_u32_t)){allocated(count, sizeof(uint32_t)), count};
  ret->created_at = (WORLD(list_u64_t)){allocated(count, sizeof(uint64_t)), count};
  ret->header_ends = (WORLD(list_u32_t)){allocated(count, sizeof(uint32_t)), count};
  uint32_t end_of_headers = 0;
  for (size_t at = 0; at < count; at++) {
    const int64_t attempts = integers_of(&rows, 0)[at], created_at = integers_of(&rows, 1)[at];
    ret->attempts.ptr[at] = attempts > UINT32_MAX ? UINT32_MAX : (uint32_t)attempts;
    ret->created_at.ptr[at] = created_at < 0 ? 0 : (uint64_t)created_at;
    ret->header_ends.ptr[at] = end_of_headers += (uint32_t)integers_of(&rows, 2)[at];
  }
  ret->ids = taken(&rows, 3), ret->topics = taken(&rows, 4), ret->keys = taken(&rows, 5), ret->payloads = taken(&rows, 6);
  ret->header_names = taken(&headers, 0), ret->header_values = taken(&headers, 1);
  unhex(&ret->header_names);
  unhex(&ret->header_values);
  outhaul_adapter_sql_list_rows_free(&rows);
  outhaul_adapter_sql_list_rows_free(&headers);
  return true;
}

static inline char *hex(char *at, bytes_t its) {
  for (size_t i = 0; i < its.len; i++) *at++ = "0123456789ABCDEF"[its.ptr[i] >> 4], *at++ = "0123456789ABCDEF"[its.ptr[i] & 15];
  return at;
}

// The text in the column `headers`. To be freed.
static inline string_t headers_text(message_t message) {
  size_t size = 2;
  for (uint32_t at = header_first(message); at < header_end(message); at++) {
    size += 2 * (header_name(message, at).len + header_value(message, at).len) + 8;
  }
  char *made = allocated(size, 1), *to = made;
  *to++ = '[';
  for (uint32_t at = header_first(message); at < header_end(message); at++) {
    if (at > header_first(message)) *to++ = ',';
    *to++ = '[', *to++ = '"', to = hex(to, header_name(message, at));
    *to++ = '"', *to++ = ',', *to++ = '"', to = hex(to, header_value(message, at));
    *to++ = '"', *to++ = ']';
  }
  *to++ = ']';
  return (string_t){(uint8_t *)made, (size_t)(to - made)};
}

// Inserts a message and appends its id.
static inline bool insert(call_t *call, message_t message, WORLD(list_string_t) *ids) {
  const bytes_t id = message_id(message);
  if (id.len > 0 && memchr(id.ptr, 0, id.len) != NULL) {
    // Verdicts pass ids as JSON, and SQLite ends a JSON text there.
    *call->err = failure(OUTHAUL_ADAPTER_OUTBOX_FAILURE_CODE_INVALID_MESSAGE, "an id must not contain NUL");
    return false;
  }
  string_t headers = headers_text(message);
  const value_t parameters[] = {id.len == 0 ? null_value() : text_of(id), text_of(message_topic(message)), text_of(message_key(message)),
                                text(headers), bytes_of(message_payload(message)), integer(call->now)};
  rows_t rows;
  const bool is_well = run(call,
                           "INSERT INTO {t} (id, topic, key, headers, payload, due_at, created_at) "
                           "VALUES (coalesce(?1, lower(hex(random()))), ?2, ?3, ?4, ?5, ?6, ?6) RETURNING id",
                           parameters, 6, "t", &rows);
  WORLD(string_free)(&headers);
  if (!is_well) return false;
  append(ids, texts_of(&rows, 0));
  outhaul_adapter_sql_list_rows_free(&rows);
  return true;
}

#endif
