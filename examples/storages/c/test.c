// The parts that need no database, natively.
#undef NDEBUG
#include "claim.h"
#include <assert.h>
#include <stdio.h>

void storage_string_dup(string_t *ret, const char *s) {
  ret->len = strlen(s);
  ret->ptr = memcpy(malloc(ret->len + 1), s, ret->len + 1);
}
void storage_string_free(string_t *ret) { free(ret->ptr); }
void storage_list_u8_free(storage_list_u8_t *list) { free(list->ptr); }
void outhaul_adapter_sql_error_free(outhaul_adapter_sql_error_t *error) { storage_string_free(&error->detail); }

static bool is_text(string_t its, const char *expected) { return its.len == strlen(expected) && memcmp(its.ptr, expected, its.len) == 0; }

static void choices(void) {
  fate_t fates[3];
  request_t request = {.limit = 2, .max_bytes = 1000, .max_message_bytes = 1000};
  const int64_t attempts[] = {0, 0, 0}, bytes[] = {40, 40, 40};
  assert(!choose(&request, attempts, bytes, 3, fates));
  assert(fates[0] == CHOSEN && fates[1] == CHOSEN && fates[2] == LEFT);
  request.limit = 3, request.max_bytes = 80;
  choose(&request, attempts, bytes, 3, fates);
  assert(fates[1] == CHOSEN && fates[2] == LEFT);
  // The first may be larger.
  request.max_bytes = 1;
  choose(&request, attempts, bytes, 3, fates);
  assert(fates[0] == CHOSEN && fates[1] == LEFT && fates[2] == LEFT);

  const int64_t used[] = {3, 2, 2}, sizes[] = {1, 51, 50};
  request = (request_t){.limit = 9, .max_bytes = 1000, .max_attempts = 3, .max_message_bytes = 50};
  assert(!choose(&request, used, sizes, 3, fates));
  assert(fates[0] == USED_UP && fates[1] == TOO_LARGE && fates[2] == CHOSEN);
}

static void searches_that_are_cut_short(void) {
  static int64_t attempts[MOST_REFUSED + 2], bytes[MOST_REFUSED + 2];
  static fate_t fates[MOST_REFUSED + 2];
  request_t request = {.limit = 1, .max_bytes = 1000, .max_attempts = 1, .max_message_bytes = 1000};
  for (size_t at = 0; at < MOST_REFUSED + 2; at++) attempts[at] = 1;
  assert(choose(&request, attempts, bytes, MOST_REFUSED + 2, fates));
  assert(fates[MOST_REFUSED - 1] == USED_UP && fates[MOST_REFUSED] == LEFT);
  // So many were asked for, and there may be more.
  attempts[0] = 0, bytes[0] = 1;
  assert(!choose(&request, attempts, bytes, MOST_REFUSED + 1, fates) && fates[0] == CHOSEN);
  attempts[0] = 1;
  assert(choose(&request, attempts, bytes, MOST_REFUSED + 1, fates));
}

static void headers(void) {
  uint32_t ends[] = {1, 2}, header_ends[] = {0, 2};
  outhaul_adapter_outbox_batch_t batch = {
      .header_names = {{(uint8_t *)"xy", 2}, {ends, 2}, {NULL, 0}},
      .header_values = {{(uint8_t *)"\0\xff", 2}, {ends, 2}, {NULL, 0}},
      .header_ends = {header_ends, 2},
  };
  assert(is_text(headers_text((message_t){&batch, 0}), "[]"));
  assert(is_text(headers_text((message_t){&batch, 1}), "[[\"78\",\"00\"],[\"79\",\"FF\"]]"));

  char digits_of_three[] = "00ffA7";
  uint32_t back[] = {4, 4, 6};
  column_t column = {{(uint8_t *)digits_of_three, 6}, {back, 3}, {NULL, 0}};
  unhex(&column);
  assert(column.data.len == 3 && memcmp(column.data.ptr, "\0\xff\xa7", 3) == 0 && back[0] == 2 && back[1] == 2 && back[2] == 3);
}

static void statements(void) {
  strcpy(settings.table, "mine");
  assert(is_text(statement_text("SELECT 1 FROM {t} WHERE {t}.a = '{'"), "SELECT 1 FROM mine WHERE mine.a = '{'"));
  const outhaul_adapter_sql_statement_t made = statement("SELECT 1", NULL, 0, "itb");
  assert(made.columns.len == 3 && made.columns.ptr[0] == OUTHAUL_ADAPTER_SQL_COLUMN_TYPE_INTEGER);
  assert(made.columns.ptr[1] == OUTHAUL_ADAPTER_SQL_COLUMN_TYPE_TEXT && made.columns.ptr[2] == OUTHAUL_ADAPTER_SQL_COLUMN_TYPE_BYTES);
  assert(after(5, 7) == 12 && after(5, UINT64_MAX) == INT64_MAX && after(5, (uint64_t)INT64_MAX - 4) == INT64_MAX);
}

static void lists(void) {
  uint32_t ends[] = {1, 1, 3};
  const column_t column = {{(uint8_t *)"abc", 3}, {ends, 3}, {NULL, 0}};
  WORLD(list_string_t) list = {NULL, 0};
  append(&list, &column);
  assert(list.len == 3 && is_text(list.ptr[0], "a") && is_text(list.ptr[1], "") && is_text(list.ptr[2], "bc"));
  append(&list, &column);
  const column_t back = column_of(&list);
  assert(back.data.len == 6 && memcmp(back.data.ptr, "abcabc", 6) == 0 && back.ends.len == 6 && back.ends.ptr[3] == 4);
}

static void errors_of_the_database(void) {
  failure_t made;
  outhaul_adapter_sql_error_t error = {.code = OUTHAUL_ADAPTER_SQL_ERROR_CODE_BUSY};
  storage_string_dup(&error.detail, "locked");
  assert(!failed("claiming", &error, &made) && made.code.tag == OUTHAUL_ADAPTER_OUTBOX_FAILURE_CODE_UNAVAILABLE);
  assert(is_text(made.detail, "claiming: locked"));
  error.code = OUTHAUL_ADAPTER_SQL_ERROR_CODE_SYNTAX;
  storage_string_dup(&error.detail, "near");
  failed("claiming", &error, &made);
  assert(made.code.tag == OUTHAUL_ADAPTER_OUTBOX_FAILURE_CODE_OTHER && is_text(made.code.val.other, "sql"));
}

int main(void) {
  choices();
  searches_that_are_cut_short();
  headers();
  statements();
  lists();
  errors_of_the_database();
  puts("all tests passed");
  return 0;
}
