// A storage over one table in SQLite: what the host calls. Each call is one transaction.

#include "claim.h"
#include "config.h"
#include "database.h"
#include "messages.h"

// Rows of the ids ?1 that the worker ?2 holds. A lease that nobody took over is still its holder's.
#define HELD "state = 'pending' AND worker = ?2 AND id IN (SELECT value FROM json_each(?1))"

static bool invalid(const char *detail, failure_t *err) {
  *err = failure(OUTHAUL_ADAPTER_OUTBOX_FAILURE_CODE_INVALID_CONFIGURATION, detail);
  return false;
}

static bool is_plain(const char *name) {
  for (const char *at = name; *at != 0; at++) {
    const bool is_letter = (*at >= 'a' && *at <= 'z') || (*at >= 'A' && *at <= 'Z') || *at == '_';
    if (!is_letter && (at == name || *at < '0' || *at > '9')) return false;
  }
  return *name != 0;
}

bool exports_outhaul_adapter_storage_open(string_t *config, exports_outhaul_adapter_storage_description_t *ret, failure_t *err) {
  config_t reader = {(const char *)config->ptr, (const char *)config->ptr + config->len};
  config_entry_t entry;
  char database[2048] = "";
  strcpy(settings.table, "outbox_rows");
  while (config_next(&reader, &entry)) {
    if (strcmp(entry.key, "database") == 0) {
      if (entry.kind != CONFIG_TEXT || entry.is_cut) return invalid("`database`: must name a database", err);
      strcpy(database, entry.text);
    } else if (strcmp(entry.key, "table") == 0) {
      if (entry.kind != CONFIG_TEXT || entry.is_cut || strlen(entry.text) >= sizeof settings.table || !is_plain(entry.text)) {
        return invalid("`table`: must be at most 63 letters, digits and `_`, no digit first", err);
      }
      strcpy(settings.table, entry.text);
    } else {
      char detail[160];
      return invalid(join(detail, sizeof detail, "`", entry.key, "`: unknown key; there are `database` and `table`", NULL), err);
    }
  }
  WORLD(string_free)(config);
  if (database[0] == 0) return invalid("`database`: must name a database", err);
  string_t name = borrowed(database);
  outhaul_adapter_sql_error_t error;
  if (!outhaul_adapter_sql_static_connection_open(&name, OUTHAUL_ADAPTER_SQL_ACCESS_READ_WRITE, &settings.connection, &error)) {
    return failed("opening", &error, err);
  }
  if (outhaul_adapter_sql_method_connection_dialect(outhaul_adapter_sql_borrow_connection(settings.connection)) !=
      OUTHAUL_ADAPTER_SQL_DIALECT_SQLITE) {
    return invalid("`database`: this storage is for SQLite", err);
  }
  *ret = (exports_outhaul_adapter_storage_description_t){
      .strict_order = true, .prefers_fused = true, .wake = {.tag = EXPORTS_OUTHAUL_ADAPTER_STORAGE_WAKE_SOURCE_DATA_VERSION}};
  WORLD(string_dup)(&ret->wake.val.data_version, database);
  return true;
}

bool exports_outhaul_adapter_storage_claim(request_t *request, claimed_t *ret, failure_t *err) {
  call_t call;
  const bool is_well = begin(&call, "claiming", err) && end(&call, claim(&call, request, ret));
  exports_outhaul_adapter_storage_claim_request_free(request);
  return is_well;
}

// Changes the rows of these ids that the worker holds, and appends the other ids.
static bool change_held(call_t *call, string_t worker, column_t ids, const char *sql, value_t third, value_t fourth, WORLD(list_string_t) *lost) {
  const value_t parameters[] = {texts(ids), text(worker), third, fourth};
  rows_t rows;
  if (!run(call, "SELECT value FROM json_each(?1) WHERE value NOT IN (SELECT id FROM {t} WHERE " HELD ")", parameters, 2, "t", &rows)) return false;
  append(lost, texts_of(&rows, 0));
  outhaul_adapter_sql_list_rows_free(&rows);
  return change(call, sql, parameters, fourth.tag == OUTHAUL_ADAPTER_SQL_VALUE_NULL ? 3 : 4, NULL);
}

static bool settle(call_t *call, string_t worker, const exports_outhaul_adapter_storage_list_settlement_t *list, WORLD(list_string_t) *lost) {
  *lost = (WORLD(list_string_t)){NULL, 0};
  bool is_well = true;
  for (size_t at = 0; at < list->len && is_well; at++) {
    const exports_outhaul_adapter_storage_verdict_t *verdict = &list->ptr[at].verdict;
    const char *sql = "UPDATE {t} SET worker = NULL, lease_end = 0, state = 'delivered', settled_at = ?3 WHERE " HELD;
    value_t third = integer(call->now), fourth = null_value();
    if (verdict->tag == EXPORTS_OUTHAUL_ADAPTER_STORAGE_VERDICT_DEAD) {
      sql = "UPDATE {t} SET worker = NULL, lease_end = 0, state = 'dead', settled_at = ?3, last_error = ?4 WHERE " HELD;
      fourth = text(verdict->val.dead.detail);
    } else if (verdict->tag == EXPORTS_OUTHAUL_ADAPTER_STORAGE_VERDICT_RETRY) {
      sql = "UPDATE {t} SET worker = NULL, lease_end = 0, due_at = ?3, last_error = ?4 WHERE " HELD;
      third = integer(after(call->now, verdict->val.retry.delay_ms));
      fourth = text(verdict->val.retry.failure.detail);
    } else if (verdict->tag == EXPORTS_OUTHAUL_ADAPTER_STORAGE_VERDICT_RELEASE) {
      sql = "UPDATE {t} SET worker = NULL, lease_end = 0, due_at = ?3, attempts = attempts - 1 WHERE " HELD;
      third = integer(after(call->now, verdict->val.release));
    }
    is_well = change_held(call, worker, list->ptr[at].ids, sql, third, fourth, lost);
  }
  if (!is_well) WORLD(list_string_free)(lost);
  return is_well;
}

bool exports_outhaul_adapter_storage_settle(string_t *worker, exports_outhaul_adapter_storage_list_settlement_t *list, WORLD(list_string_t) *ret,
                                            failure_t *err) {
  call_t call;
  const bool is_well = begin(&call, "settling", err) && end(&call, settle(&call, *worker, list, ret));
  WORLD(string_free)(worker);
  exports_outhaul_adapter_storage_list_settlement_free(list);
  return is_well;
}

bool exports_outhaul_adapter_storage_extend(string_t *worker, column_t *ids, uint64_t lease_ms, WORLD(list_string_t) *ret, failure_t *err) {
  call_t call;
  *ret = (WORLD(list_string_t)){NULL, 0};
  const bool is_well =
      begin(&call, "renewing leases", err) &&
      end(&call, change_held(&call, *worker, *ids, "UPDATE {t} SET lease_end = ?3 WHERE " HELD, integer(after(call.now, lease_ms)), null_value(), ret));
  WORLD(string_free)(worker);
  outhaul_adapter_outbox_column_free(ids);
  return is_well;
}

static bool settle_and_claim(call_t *call, const exports_outhaul_adapter_storage_list_settlement_t *list, request_t *request,
                             exports_outhaul_adapter_storage_fused_turn_t *ret) {
  if (!settle(call, request->worker, list, &ret->lost)) return false;
  const bool is_well = claim(call, request, &ret->claimed);
  if (!is_well) WORLD(list_string_free)(&ret->lost);
  return is_well;
}

bool exports_outhaul_adapter_storage_fused_settle_and_claim(exports_outhaul_adapter_storage_fused_list_settlement_t *list, request_t *request,
                                                            exports_outhaul_adapter_storage_fused_turn_t *ret, failure_t *err) {
  call_t call;
  const exports_outhaul_adapter_storage_list_settlement_t settlements = {list->ptr, list->len};
  const bool is_well = begin(&call, "settling and claiming", err) && end(&call, settle_and_claim(&call, &settlements, request, ret));
  exports_outhaul_adapter_storage_fused_list_settlement_free(list);
  exports_outhaul_adapter_storage_claim_request_free(request);
  return is_well;
}

static bool count(call_t *call, exports_outhaul_adapter_storage_counts_t *ret) {
  const value_t now = integer(call->now);
  rows_t rows;
  if (!run(call,
           "SELECT count(*), coalesce(sum(due_at <= ?1 AND lease_end <= ?1), 0), coalesce(sum(lease_end > ?1), 0), "
           "(SELECT count(*) FROM {t} WHERE state = 'dead'), max(?1 - coalesce(min(created_at), ?1), 0) FROM {t} WHERE state = 'pending'",
           &now, 1, "iiiii", &rows)) {
    return false;
  }
  uint64_t found[5];
  for (size_t at = 0; at < 5; at++) found[at] = (uint64_t)integers_of(&rows, at)[0];
  outhaul_adapter_sql_list_rows_free(&rows);
  *ret = (exports_outhaul_adapter_storage_counts_t){found[0], found[1], found[2], found[3], {found[0] > 0, found[4]}};
  return true;
}

bool exports_outhaul_adapter_storage_stats(exports_outhaul_adapter_storage_counts_t *ret, failure_t *err) {
  call_t call;
  return begin(&call, "counting", err) && end(&call, count(&call, ret));
}

#include "admin.h"
