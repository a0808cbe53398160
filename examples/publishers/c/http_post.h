// One HTTP POST by wasi:http, as a function that blocks.
#ifndef HTTP_POST_H
#define HTTP_POST_H

#include "outhaul.h"

// A URL in its parts; `path` with the query.
typedef struct {
  bool secure;
  char where[256];
  char path[2048];
} url_t;

// Whether it is an absolute http:// or https:// URL without user name or fragment.
static inline bool url_parse(const char *text, url_t *url) {
  url->secure = strncmp(text, "https://", 8) == 0;
  if (!url->secure && strncmp(text, "http://", 7) != 0) return false;
  const char *host = text + (url->secure ? 8 : 7);
  const size_t len = strcspn(host, "/?");
  const char *path = host + len;
  if (len == 0 || len >= sizeof url->where || strpbrk(text, "# \t\r\n") != NULL || memchr(host, '@', len) != NULL) return false;
  if (strlen(path) + 2 > sizeof url->path) return false;
  memcpy(url->where, host, len);
  url->where[len] = 0;
  join(url->path, sizeof url->path, *path == '/' ? "" : "/", path, NULL);
  return true;
}

typedef struct {
  // 0: there was no answer, and `outcome` says why.
  uint16_t status;
  // Seconds; -1: none. The form with a date is left out here, and counts as absent.
  int64_t retry_after_s;
  outcome_t outcome;
} answer_t;

static inline outcome_t no_answer(const wasi_http_types_error_code_t *error, const char *where) {
  const char *what = "not reached, or the connection broke";
  uint8_t code = OUTHAUL_ADAPTER_OUTBOX_FAILURE_CODE_NETWORK;
  switch (error->tag) {
    case WASI_HTTP_TYPES_ERROR_CODE_HTTP_REQUEST_DENIED:
    case WASI_HTTP_TYPES_ERROR_CODE_DESTINATION_IP_PROHIBITED:
      what = "the host does not allow this request; its log has the line to add";
      code = OUTHAUL_ADAPTER_OUTBOX_FAILURE_CODE_INVALID_CONFIGURATION;
      break;
    case WASI_HTTP_TYPES_ERROR_CODE_DNS_TIMEOUT:
    case WASI_HTTP_TYPES_ERROR_CODE_CONNECTION_TIMEOUT:
    case WASI_HTTP_TYPES_ERROR_CODE_CONNECTION_READ_TIMEOUT:
    case WASI_HTTP_TYPES_ERROR_CODE_CONNECTION_WRITE_TIMEOUT:
    case WASI_HTTP_TYPES_ERROR_CODE_HTTP_RESPONSE_TIMEOUT:
      what = "no answer in time";
      code = OUTHAUL_ADAPTER_OUTBOX_FAILURE_CODE_TIMEOUT;
      break;
  }
  char detail[400];
  return retry(code, join(detail, sizeof detail, where, ": ", what, NULL));
}

static inline int64_t retry_after_of(wasi_http_types_own_incoming_response_t response) {
  const wasi_http_types_own_fields_t headers = wasi_http_types_method_incoming_response_headers(wasi_http_types_borrow_incoming_response(response));
  string_t name = borrowed("retry-after");
  wasi_http_types_list_field_value_t values;
  wasi_http_types_method_fields_get(wasi_http_types_borrow_fields(headers), &name, &values);
  int64_t seconds = -1;
  if (values.len > 0 && values.ptr[0].len > 0 && values.ptr[0].len <= 9) {
    seconds = 0;
    for (size_t i = 0; i < values.ptr[0].len; i++) {
      const uint8_t c = values.ptr[0].ptr[i];
      seconds = seconds < 0 || c < '0' || c > '9' ? -1 : seconds * 10 + (c - '0');
    }
  }
  wasi_http_types_list_field_value_free(&values);
  wasi_http_types_fields_drop_own(headers);
  return seconds;
}

// Writes the whole body. What goes wrong here shows in the answer, or in there being none.
static inline void write_body(wasi_http_types_own_outgoing_body_t body, bytes_t bytes) {
  wasi_http_types_own_output_stream_t stream;
  if (wasi_http_types_method_outgoing_body_write(wasi_http_types_borrow_outgoing_body(body), &stream)) {
    for (size_t at = 0; at < bytes.len;) {
      // A blocking write takes 4096 bytes.
      const size_t left = bytes.len - at;
      publisher_list_u8_t chunk = {(uint8_t *)bytes.ptr + at, left < 4096 ? left : 4096};
      wasi_io_streams_stream_error_t error;
      if (!wasi_io_streams_method_output_stream_blocking_write_and_flush(wasi_io_streams_borrow_output_stream(stream), &chunk, &error)) {
        wasi_io_streams_stream_error_free(&error);
        break;
      }
      at += chunk.len;
    }
    wasi_io_streams_output_stream_drop_own(stream);
  }
  wasi_http_types_error_code_t error;
  if (!wasi_http_types_static_outgoing_body_finish(body, NULL, &error)) wasi_http_types_error_code_free(&error);
}

// Sends `body`. `headers` stay the caller's.
static inline answer_t http_post(const url_t *url, wasi_http_types_list_tuple2_field_name_field_value_t *headers, bytes_t body,
                                 uint64_t timeout_ms) {
  answer_t answer = {.status = 0, .retry_after_s = -1};
  wasi_http_types_own_fields_t fields;
  wasi_http_types_header_error_t refused;
  if (!wasi_http_types_static_fields_from_list(headers, &fields, &refused)) {
    answer.outcome = reject(OUTHAUL_ADAPTER_OUTBOX_FAILURE_CODE_INVALID_MESSAGE, "a header cannot be sent");
    return answer;
  }
  const wasi_http_types_own_outgoing_request_t request = wasi_http_types_constructor_outgoing_request(fields);
  const wasi_http_types_borrow_outgoing_request_t borrow = wasi_http_types_borrow_outgoing_request(request);
  wasi_http_types_method_t method = {.tag = WASI_HTTP_TYPES_METHOD_POST};
  wasi_http_types_scheme_t scheme = {.tag = url->secure ? WASI_HTTP_TYPES_SCHEME_HTTPS : WASI_HTTP_TYPES_SCHEME_HTTP};
  string_t where = borrowed(url->where), path = borrowed(url->path);
  wasi_http_types_own_outgoing_body_t outgoing;
  if (!wasi_http_types_method_outgoing_request_set_method(borrow, &method) ||
      !wasi_http_types_method_outgoing_request_set_scheme(borrow, &scheme) ||
      !wasi_http_types_method_outgoing_request_set_authority(borrow, &where) ||
      !wasi_http_types_method_outgoing_request_set_path_with_query(borrow, &path) ||
      !wasi_http_types_method_outgoing_request_body(borrow, &outgoing)) {
    wasi_http_types_outgoing_request_drop_own(request);
    answer.outcome = retry(OUTHAUL_ADAPTER_OUTBOX_FAILURE_CODE_INVALID_CONFIGURATION, "`url` cannot be requested");
    return answer;
  }
  wasi_http_types_own_request_options_t options = wasi_http_types_constructor_request_options();
  uint64_t nanoseconds = timeout_ms * 1000000;
  wasi_http_types_method_request_options_set_connect_timeout(wasi_http_types_borrow_request_options(options), &nanoseconds);
  wasi_http_types_method_request_options_set_first_byte_timeout(wasi_http_types_borrow_request_options(options), &nanoseconds);
  wasi_http_types_own_future_incoming_response_t waiting;
  wasi_http_types_error_code_t error;
  if (!wasi_http_outgoing_handler_handle(request, &options, &waiting, &error)) {
    wasi_http_types_outgoing_body_drop_own(outgoing);
    answer.outcome = no_answer(&error, url->where);
    wasi_http_types_error_code_free(&error);
    return answer;
  }
  write_body(outgoing, body);
  const wasi_http_types_borrow_future_incoming_response_t future = wasi_http_types_borrow_future_incoming_response(waiting);
  const wasi_io_poll_own_pollable_t pollable = wasi_http_types_method_future_incoming_response_subscribe(future);
  wasi_io_poll_method_pollable_block(wasi_io_poll_borrow_pollable(pollable));
  wasi_io_poll_pollable_drop_own(pollable);
  wasi_http_types_result_result_own_incoming_response_error_code_void_t result;
  if (!wasi_http_types_method_future_incoming_response_get(future, &result) || result.is_err) {
    answer.outcome = retry(OUTHAUL_ADAPTER_OUTBOX_FAILURE_CODE_NETWORK, "the answer was taken already");
  } else if (result.val.ok.is_err) {
    answer.outcome = no_answer(&result.val.ok.val.err, url->where);
    wasi_http_types_error_code_free(&result.val.ok.val.err);
  } else {
    const wasi_http_types_own_incoming_response_t response = result.val.ok.val.ok;
    answer.status = wasi_http_types_method_incoming_response_status(wasi_http_types_borrow_incoming_response(response));
    answer.retry_after_s = retry_after_of(response);
    wasi_http_types_incoming_response_drop_own(response);
  }
  wasi_http_types_future_incoming_response_drop_own(waiting);
  return answer;
}

#endif
