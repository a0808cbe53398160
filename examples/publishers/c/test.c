// The parts that need no sandbox, natively; the host is stood in for.
#undef NDEBUG
#include "config.h"
#include "key_order.h"
#include "outhaul.h"
#include <assert.h>
#include <stdio.h>

static uint8_t reported[8];
static uint32_t reports;
static uint64_t now;

void publisher_string_dup(publisher_string_t *ret, const char *s) {
  ret->len = strlen(s);
  ret->ptr = memcpy(malloc(ret->len + 1), s, ret->len + 1);
}
void outhaul_adapter_progress_report(uint32_t index, outhaul_adapter_progress_outcome_t *outcome) {
  assert(index == reports);
  reported[reports++] = outcome->tag;
}
uint64_t wasi_clocks_monotonic_clock_now(void) { return now; }
void outhaul_adapter_log_write(uint8_t level, publisher_string_t *text, publisher_list_tuple2_string_string_t *fields) {
  (void)level, (void)text, (void)fields;
}

static outhaul_adapter_outbox_column_t column(const char *data, uint32_t *ends, size_t count, const char *nulls) {
  return (outhaul_adapter_outbox_column_t){
      {(uint8_t *)data, strlen(data)}, {ends, count}, {(uint8_t *)nulls, nulls == NULL ? 0 : count}};
}

static outcome_t fail_the_first(message_t message, uint64_t left_ms) {
  assert(left_ms == 9750);
  return message.index == 0 ? retry(OUTHAUL_ADAPTER_OUTBOX_FAILURE_CODE_NETWORK, "no") : delivered();
}

static void batches(void) {
  uint32_t one_each[] = {1, 2, 3}, keys[] = {1, 1, 2}, header_ends[] = {2, 2, 2}, names[] = {1, 2}, attempts[] = {1, 2, 3}, payloads[] = {2, 2, 2};
  uint64_t created[] = {0, 0, 0};
  outhaul_adapter_outbox_batch_t batch = {
      .ids = column("123", one_each, 3, NULL),
      .topics = column("abc", one_each, 3, NULL),
      .keys = column("kk", keys, 3, "\0\1\0"),
      .header_names = column("xx", names, 2, NULL),
      .header_values = column("12", names, 2, NULL),
      .header_ends = {header_ends, 3},
      .payloads = column("hi", payloads, 3, "\0\1\0"),
      .attempts = {attempts, 3},
      .created_at = {created, 3},
  };
  const message_t first = {&batch, 0}, second = {&batch, 1}, third = {&batch, 2};
  assert(message_count(&batch) == 3 && *message_id(second).ptr == '2' && *message_topic(third).ptr == 'c');
  assert(message_key(first).len == 1 && message_key(second).ptr == NULL && message_attempts(third) == 3);
  assert(message_payload(first).len == 2 && message_payload(second).ptr == NULL);
  assert(message_payload(third).ptr != NULL && message_payload(third).len == 0);
  assert(header_end(first) - header_first(first) == 2 && *header_value(first, 1).ptr == '2' && header_first(second) == header_end(second));

  exports_outhaul_adapter_publisher_list_outcome_t outcomes;
  in_key_order(&batch, 10000, fail_the_first, &outcomes);
  const uint8_t expected[] = {OUTHAUL_ADAPTER_OUTBOX_OUTCOME_RETRY, OUTHAUL_ADAPTER_OUTBOX_OUTCOME_DELIVERED, OUTHAUL_ADAPTER_OUTBOX_OUTCOME_HELD};
  assert(outcomes.len == 3 && reports == 3 && memcmp(reported, expected, 3) == 0);
}

static void answers(void) {
  outcome_t outcome = outcome_of(429, 3, "h.example");
  assert(outcome.tag == OUTHAUL_ADAPTER_OUTBOX_OUTCOME_RETRY && outcome.val.retry.retry_after_ms.val == 3000);
  assert(strcmp((char *)outcome.val.retry.detail.ptr, "h.example answered 429") == 0);
  assert(!outcome_of(503, -1, "h").val.retry.retry_after_ms.is_some);
  assert(outcome_of(204, -1, "h").tag == OUTHAUL_ADAPTER_OUTBOX_OUTCOME_DELIVERED);
  assert(strcmp((char *)outcome_of(404, -1, "h").val.reject.code.val.other.ptr, "http-404") == 0);
}

static void configurations(void) {
  const char *text = "{\"url\":\"http:\\/\\/h\\u00e9\\ud83d\\ude0a\",\"a\":{\"b\":[1,\"}\"]},\"n\":-12,\"r\":1.5,\"t\":true}";
  config_t reader = {text, text + strlen(text)};
  config_entry_t entry;
  assert(config_next(&reader, &entry) && entry.kind == CONFIG_TEXT && strcmp(entry.text, "http://h\xc3\xa9\xf0\x9f\x98\x8a") == 0);
  assert(config_next(&reader, &entry) && entry.kind == CONFIG_OTHER && strcmp(entry.key, "a") == 0);
  assert(config_next(&reader, &entry) && entry.kind == CONFIG_NUMBER && entry.number == -12);
  assert(config_next(&reader, &entry) && entry.kind == CONFIG_OTHER && strcmp(entry.key, "r") == 0);
  assert(config_next(&reader, &entry) && entry.kind == CONFIG_OTHER && strcmp(entry.key, "t") == 0);
  assert(!config_next(&reader, &entry));
  config_t empty = {"{}", NULL};
  empty.end = empty.at + 2;
  assert(!config_next(&empty, &entry));
}

int main(void) {
  batches();
  answers();
  configurations();
  puts("all tests passed");
  return 0;
}
