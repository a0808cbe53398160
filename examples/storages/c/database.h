// Statements of the host's `sql`, run in one transaction a call, and what they return.
#ifndef DATABASE_H
#define DATABASE_H

#include "outhaul.h"

typedef outhaul_adapter_outbox_column_t column_t;
typedef outhaul_adapter_outbox_failure_t failure_t;
typedef outhaul_adapter_sql_value_t value_t;
typedef outhaul_adapter_sql_list_rows_t rows_t;

// Set by `open`.
static struct {
  outhaul_adapter_sql_own_connection_t connection;
  // Letters, digits and `_`: needs no quotes.
  char table[64];
} settings;

// One call of the host.
typedef struct {
  outhaul_adapter_sql_own_transaction_t transaction;
  // When it began, in milliseconds of the database's clock, which alone judges what is due.
  int64_t now;
  // For a failure.
  const char *what;
  failure_t *err;
} call_t;

// A time so much later; beyond what can be counted, the last that can.
static inline int64_t after(int64_t now, uint64_t ms) { return ms > (uint64_t)(INT64_MAX - now) ? INT64_MAX : now + (int64_t)ms; }

static inline void *allocated(size_t count, size_t size) {
  // The bindings free no list of length 0.
  if (count == 0) return NULL;
  void *made = calloc(count, size);
  if (made == NULL) abort();
  return made;
}

static inline value_t null_value(void) { return (value_t){.tag = OUTHAUL_ADAPTER_SQL_VALUE_NULL}; }
static inline value_t integer(int64_t number) { return (value_t){.tag = OUTHAUL_ADAPTER_SQL_VALUE_INTEGER, .val.integer = number}; }
static inline value_t text(string_t its) { return (value_t){.tag = OUTHAUL_ADAPTER_SQL_VALUE_TEXT, .val.text = its}; }
static inline value_t texts(column_t its) { return (value_t){.tag = OUTHAUL_ADAPTER_SQL_VALUE_TEXTS, .val.texts = its}; }
static inline value_t integers(int64_t *ptr, size_t len) {
  return (value_t){.tag = OUTHAUL_ADAPTER_SQL_VALUE_INTEGERS, .val.integers = {ptr, len}};
}
// A value of a message; none is NULL.
static inline value_t text_of(bytes_t its) { return its.ptr == NULL ? null_value() : text((string_t){(uint8_t *)its.ptr, its.len}); }
static inline value_t bytes_of(bytes_t its) {
  if (its.ptr == NULL) return null_value();
  return (value_t){.tag = OUTHAUL_ADAPTER_SQL_VALUE_BYTES, .val.bytes = {(uint8_t *)its.ptr, its.len}};
}

// A failure whose text ends with another, of any length.
static inline failure_t told(uint8_t code, const char *before, string_t detail, const char *behind) {
  const size_t start = strlen(before), end = strlen(behind);
  failure_t made = {.code = {.tag = code}, .detail = {allocated(start + detail.len + end, 1), start + detail.len + end}};
  if (start > 0) memcpy(made.detail.ptr, before, start);
  if (detail.len > 0) memcpy(made.detail.ptr + start, detail.ptr, detail.len);
  if (end > 0) memcpy(made.detail.ptr + start + detail.len, behind, end);
  return made;
}

// An error of the database as a failure: only what can get better by itself is `unavailable`.
static inline bool failed(const char *what, outhaul_adapter_sql_error_t *error, failure_t *err) {
  char before[96];
  join(before, sizeof before, what, ": ", NULL);
  switch (error->code) {
    case OUTHAUL_ADAPTER_SQL_ERROR_CODE_DENIED:
      *err = told(OUTHAUL_ADAPTER_OUTBOX_FAILURE_CODE_INVALID_CONFIGURATION, "`database`: ", error->detail, "");
      break;
    case OUTHAUL_ADAPTER_SQL_ERROR_CODE_MISSING:
      *err = told(OUTHAUL_ADAPTER_OUTBOX_FAILURE_CODE_UNAVAILABLE, "the table is not there: run `outhaul schema --apply` (", error->detail, ")");
      break;
    case OUTHAUL_ADAPTER_SQL_ERROR_CODE_UNAVAILABLE:
    case OUTHAUL_ADAPTER_SQL_ERROR_CODE_BUSY:
    case OUTHAUL_ADAPTER_SQL_ERROR_CODE_TIMEOUT:
      *err = told(OUTHAUL_ADAPTER_OUTBOX_FAILURE_CODE_UNAVAILABLE, before, error->detail, "");
      break;
    // An id that is taken.
    case OUTHAUL_ADAPTER_SQL_ERROR_CODE_CONSTRAINT:
      *err = told(OUTHAUL_ADAPTER_OUTBOX_FAILURE_CODE_INVALID_MESSAGE, before, error->detail, "");
      break;
    default:
      *err = told(OUTHAUL_ADAPTER_OUTBOX_FAILURE_CODE_OTHER, before, error->detail, "");
      WORLD(string_dup)(&err->code.val.other, "sql");
  }
  outhaul_adapter_sql_error_free(error);
  return false;
}

// The text of a statement, `{t}` replaced by the table: valid until the next one.
static inline string_t statement_text(const char *sql) {
  static char made[2048];
  size_t len = 0;
  while (*sql != 0 && len + sizeof settings.table < sizeof made) {
    if (strncmp(sql, "{t}", 3) == 0) {
      const size_t its = strlen(settings.table);
      memcpy(made + len, settings.table, its);
      len += its, sql += 3;
    } else {
      made[len++] = *sql++;
    }
  }
  return (string_t){(uint8_t *)made, len};
}

// A statement; `columns` has a letter for each that it returns: `i` for integers, `t` for texts, `b` for bytes.
static inline outhaul_adapter_sql_statement_t statement(const char *sql, const value_t *parameters, size_t count, const char *columns) {
  static uint8_t types[16];
  size_t width = 0;
  for (; columns[width] != 0 && width < sizeof types; width++) {
    types[width] = columns[width] == 'i'   ? OUTHAUL_ADAPTER_SQL_COLUMN_TYPE_INTEGER
                   : columns[width] == 't' ? OUTHAUL_ADAPTER_SQL_COLUMN_TYPE_TEXT
                                           : OUTHAUL_ADAPTER_SQL_COLUMN_TYPE_BYTES;
  }
  return (outhaul_adapter_sql_statement_t){.sql = statement_text(sql), .parameters = {(value_t *)parameters, count}, .columns = {types, width}};
}

// Begins a transaction.
static inline bool begin(call_t *call, const char *what, failure_t *err) {
  outhaul_adapter_sql_statement_t clock = statement("SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)", NULL, 0, "i");
  outhaul_adapter_sql_list_statement_t list = {&clock, 1};
  outhaul_adapter_sql_tuple2_own_transaction_list_rows_t begun;
  outhaul_adapter_sql_error_t error;
  if (!outhaul_adapter_sql_method_connection_begin(outhaul_adapter_sql_borrow_connection(settings.connection), &list, &begun, &error)) {
    return failed(what, &error, err);
  }
  *call = (call_t){begun.f0, begun.f1.ptr[0].columns.ptr[0].val.integers.values.ptr[0], what, err};
  outhaul_adapter_sql_list_rows_free(&begun.f1);
  return true;
}

// Runs a statement. False: the call has failed.
static inline bool run(call_t *call, const char *sql, const value_t *parameters, size_t count, const char *columns, rows_t *ret) {
  outhaul_adapter_sql_statement_t its = statement(sql, parameters, count, columns);
  outhaul_adapter_sql_list_statement_t list = {&its, 1};
  outhaul_adapter_sql_error_t error;
  if (outhaul_adapter_sql_method_transaction_execute(outhaul_adapter_sql_borrow_transaction(call->transaction), &list, ret, &error)) return true;
  return failed(call->what, &error, call->err);
}

// Runs a statement for what it changes.
static inline bool change(call_t *call, const char *sql, const value_t *parameters, size_t count, uint64_t *changed) {
  rows_t rows;
  if (!run(call, sql, parameters, count, "", &rows)) return false;
  if (changed != NULL) *changed = rows.ptr[0].changed;
  outhaul_adapter_sql_list_rows_free(&rows);
  return true;
}

// Commits if all went well, else rolls back.
static inline bool end(call_t *call, bool is_well) {
  if (!is_well) {
    outhaul_adapter_sql_transaction_drop_own(call->transaction);
    return false;
  }
  outhaul_adapter_sql_list_statement_t none = {NULL, 0};
  rows_t rows;
  outhaul_adapter_sql_error_t error;
  if (!outhaul_adapter_sql_static_transaction_commit(call->transaction, &none, &rows, &error)) return failed(call->what, &error, call->err);
  outhaul_adapter_sql_list_rows_free(&rows);
  return true;
}

// What a column of a statement's result holds.
static inline const int64_t *integers_of(const rows_t *rows, size_t column) { return rows->ptr[0].columns.ptr[column].val.integers.values.ptr; }
static inline size_t count_of(const rows_t *rows) { return rows->ptr[0].columns.ptr[0].val.integers.values.len; }
static inline const column_t *texts_of(const rows_t *rows, size_t column) { return &rows->ptr[0].columns.ptr[column].val.texts; }

// The same, no longer the result's.
static inline column_t taken(rows_t *rows, size_t column) {
  const column_t its = rows->ptr[0].columns.ptr[column].val.texts;
  rows->ptr[0].columns.ptr[column].val.texts = (column_t){{NULL, 0}, {NULL, 0}, {NULL, 0}};
  return its;
}

// A copy to give away.
static inline string_t copy_of(bytes_t its) {
  string_t made = {allocated(its.len, 1), its.len};
  if (its.len > 0) memcpy(made.ptr, its.ptr, its.len);
  return made;
}

static inline WORLD(option_string_t) option_of(bytes_t its) {
  return (WORLD(option_string_t)){its.ptr != NULL, its.ptr == NULL ? (string_t){NULL, 0} : copy_of(its)};
}

// Puts copies of a column's texts behind a list.
static inline void append(WORLD(list_string_t) *list, const column_t *column) {
  const size_t count = column->ends.len;
  if (count == 0) return;
  list->ptr = realloc(list->ptr, (list->len + count) * sizeof(string_t));
  if (list->ptr == NULL) abort();
  for (uint32_t at = 0; at < count; at++) list->ptr[list->len++] = copy_of(column_value(column, at));
}

// The texts of a list as a column, to be freed.
static inline column_t column_of(const WORLD(list_string_t) *list) {
  size_t size = 0;
  for (size_t at = 0; at < list->len; at++) size += list->ptr[at].len;
  column_t made = {{allocated(size, 1), size}, {allocated(list->len, sizeof(uint32_t)), list->len}, {NULL, 0}};
  size_t end = 0;
  for (size_t at = 0; at < list->len; at++) {
    if (list->ptr[at].len > 0) memcpy(made.data.ptr + end, list->ptr[at].ptr, list->ptr[at].len);
    made.ends.ptr[at] = (uint32_t)(end += list->ptr[at].len);
  }
  return made;
}

#endif
