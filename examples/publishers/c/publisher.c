// Sends each message as one HTTP POST to the URL of its configuration.

#include "config.h"
#include "http_post.h"
#include "key_order.h"
#include "outhaul.h"

static struct {
  url_t url;
  uint64_t timeout_ms;
} settings;

// What belongs to the connection, or is set here: not the message's to say.
static const char *const OWN[] = {
    "connection", "content-length", "expect", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade",
    "idempotency-key", "outhaul-topic", "outhaul-key", "outhaul-attempt", "outhaul-tombstone",
};

// Most bytes of a request's headers, each counted as its name, its value and 32 (RFC 9113 section 6.5.2). No server takes more by
// itself than 1 MiB, most take less, and the host stops a component that hands over too much.
#define MAX_HEADER_BYTES ((size_t)256 * 1024)

static bool invalid(const char *detail, exports_outhaul_adapter_publisher_failure_t *err) {
  *err = failure(OUTHAUL_ADAPTER_OUTBOX_FAILURE_CODE_INVALID_CONFIGURATION, detail);
  return false;
}

bool exports_outhaul_adapter_publisher_open(publisher_string_t *config, exports_outhaul_adapter_publisher_failure_t *err) {
  config_t reader = {(const char *)config->ptr, (const char *)config->ptr + config->len};
  config_entry_t entry;
  bool has_url = false;
  settings.timeout_ms = 10000;
  while (config_next(&reader, &entry)) {
    if (strcmp(entry.key, "url") == 0) {
      has_url = entry.kind == CONFIG_TEXT && !entry.is_cut && url_parse(entry.text, &settings.url);
      if (!has_url) break;
    } else if (strcmp(entry.key, "timeout_ms") == 0) {
      if (entry.kind != CONFIG_NUMBER || entry.number < 1 || entry.number > 600000) {
        return invalid("`timeout_ms`: must be a whole number of milliseconds from 1 to 600000", err);
      }
      settings.timeout_ms = (uint64_t)entry.number;
    } else {
      char detail[160];
      return invalid(join(detail, sizeof detail, "`", entry.key, "`: unknown key; there are `url` and `timeout_ms`", NULL), err);
    }
  }
  if (!has_url) return invalid("`url`: must be an absolute http:// or https:// URL without user name or fragment", err);
  publisher_string_free(config);
  log_line(OUTHAUL_ADAPTER_LOG_LEVEL_INFO, "http-c is open", "destination", settings.url.where);
  return true;
}

typedef wasi_http_types_tuple2_field_name_field_value_t header_t;

static void add(header_t *headers, size_t *count, const char *name, bytes_t value) {
  headers[(*count)++] = (header_t){borrowed(name), {(uint8_t *)value.ptr, value.len}};
}

// Percent-encoded, all but letters, digits and `-._~`. To be freed.
static char *encoded(bytes_t text) {
  char *into = malloc(text.len * 3 + 1), *at = into;
  if (into == NULL) abort();
  for (size_t i = 0; i < text.len; i++) {
    const uint8_t c = text.ptr[i];
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || strchr("-._~", c ? c : ' ') != NULL;
    const char *hex = "0123456789ABCDEF";
    if (plain) {
      *at++ = (char)c;
    } else {
      *at++ = '%', *at++ = hex[c >> 4], *at++ = hex[c & 15];
    }
  }
  *at = 0;
  return into;
}

static bytes_t text_of(const char *text) { return (bytes_t){(const uint8_t *)text, strlen(text)}; }

static bool is_own(bytes_t name) {
  for (size_t i = 0; i < sizeof OWN / sizeof *OWN; i++) {
    if (is_name(name, OWN[i])) return true;
  }
  return false;
}

static outcome_t send_message(message_t message, uint64_t left_ms) {
  const uint32_t given = header_end(message) - header_first(message);
  header_t *headers = malloc((given + 6) * sizeof(header_t));
  if (headers == NULL) abort();
  size_t count = 0;
  const bytes_t key = message_key(message), payload = message_payload(message);
  char *topic = encoded(message_topic(message)), *key_text = key.ptr == NULL ? NULL : encoded(key);
  const digits_t attempt = digits(message_attempts(message));
  add(headers, &count, "idempotency-key", message_id(message));
  add(headers, &count, "outhaul-topic", text_of(topic));
  if (key_text != NULL) add(headers, &count, "outhaul-key", text_of(key_text));
  add(headers, &count, "outhaul-attempt", text_of(attempt.text));
  if (payload.ptr == NULL) add(headers, &count, "outhaul-tombstone", text_of("true"));
  bool has_type = false;
  for (uint32_t at = header_first(message); at < header_end(message); at++) {
    const bytes_t name = header_name(message, at), value = header_value(message, at);
    if (is_own(name)) continue;
    has_type |= is_name(name, "content-type");
    headers[count++] = (header_t){{(uint8_t *)name.ptr, name.len}, {(uint8_t *)value.ptr, value.len}};
  }
  if (!has_type) add(headers, &count, "content-type", text_of("application/octet-stream"));

  size_t bytes = 0;
  for (size_t i = 0; i < count; i++) bytes += headers[i].f0.len + headers[i].f1.len + 32;
  wasi_http_types_list_tuple2_field_name_field_value_t list = {headers, count};
  answer_t answer = {.status = 0};
  if (bytes > MAX_HEADER_BYTES) {
    answer.outcome = reject(OUTHAUL_ADAPTER_OUTBOX_FAILURE_CODE_TOO_LARGE, "the headers are over 256 KiB");
  } else {
    answer = http_post(&settings.url, &list, payload, left_ms < settings.timeout_ms ? left_ms : settings.timeout_ms);
  }
  free(headers);
  free(topic);
  free(key_text);
  return answer.status == 0 ? answer.outcome : outcome_of(answer.status, answer.retry_after_s, settings.url.where);
}

// A delivery of a fan-out has an address of its own: the configured one would be the wrong place.
static outcome_t refuse(message_t message, uint64_t left_ms) {
  (void)message, (void)left_ms;
  return retry(OUTHAUL_ADAPTER_OUTBOX_FAILURE_CODE_INVALID_CONFIGURATION,
               "this publisher sends to its own `url` only, not to the destinations of a fan-out");
}

void exports_outhaul_adapter_publisher_publish(exports_outhaul_adapter_publisher_batch_t *batch, uint64_t deadline_ms,
                                               exports_outhaul_adapter_publisher_list_outcome_t *ret) {
  in_key_order(batch, deadline_ms, batch->destinations.is_some ? refuse : send_message, ret);
  uint32_t open = 0;
  for (size_t i = 0; i < ret->len; i++) open += ret->ptr[i].tag != OUTHAUL_ADAPTER_OUTBOX_OUTCOME_DELIVERED;
  if (open > 0) log_line(OUTHAUL_ADAPTER_LOG_LEVEL_WARN, "not all messages were delivered", "open", digits(open).text);
  exports_outhaul_adapter_publisher_batch_free(batch);
}
