// What the command line calls.
#ifndef ADMIN_H
#define ADMIN_H

#include "messages.h"

typedef exports_outhaul_adapter_storage_admin_filter_t filter_t;

bool exports_outhaul_adapter_storage_admin_schema(string_t *ret, failure_t *err) {
  (void)err;
  size_t len = 0;
  ret->ptr = allocated(STATEMENTS_OF_SCHEMA, 2048);
  for (size_t at = 0; at < STATEMENTS_OF_SCHEMA; at++) {
    const string_t its = statement_text(SCHEMA[at]);
    memcpy(ret->ptr + len, its.ptr, its.len);
    len += its.len;
    ret->ptr[len++] = ';', ret->ptr[len++] = '\n';
  }
  ret->len = len;
  return true;
}

bool exports_outhaul_adapter_storage_admin_create_schema(failure_t *err) {
  call_t call;
  if (!begin(&call, "creating the table", err)) return false;
  bool is_well = true;
  for (size_t at = 0; at < STATEMENTS_OF_SCHEMA && is_well; at++) is_well = change(&call, SCHEMA[at], NULL, 0, NULL);
  return end(&call, is_well);
}

static bool insert_all(call_t *call, const outhaul_adapter_outbox_batch_t *batch, WORLD(list_string_t) *ret) {
  *ret = (WORLD(list_string_t)){NULL, 0};
  for (uint32_t at = 0; at < message_count(batch); at++) {
    if (insert(call, (message_t){batch, at}, ret)) continue;
    WORLD(list_string_free)(ret);
    return false;
  }
  return true;
}

bool exports_outhaul_adapter_storage_admin_enqueue(outhaul_adapter_outbox_batch_t *batch, WORLD(list_string_t) *ret, failure_t *err) {
  call_t call;
  const bool is_well = begin(&call, "inserting", err) && end(&call, insert_all(&call, batch, ret));
  outhaul_adapter_outbox_batch_free(batch);
  return is_well;
}

static value_t topic_of(const filter_t *filter) { return filter->topic.is_some ? text(filter->topic.val) : null_value(); }
static value_t state_of(const filter_t *filter) { return filter->state.is_some ? integer(filter->state.val) : null_value(); }

static bool browse(call_t *call, const filter_t *filter, const string_t *behind, uint32_t limit, bool with_messages,
                   exports_outhaul_adapter_storage_admin_page_t *ret) {
  *ret = (exports_outhaul_adapter_storage_admin_page_t){.messages = {.is_some = with_messages}};
  column_t ids = column_of(&filter->ids);
  // One more than asked for tells whether there is a next page.
  const value_t parameters[] = {integer(call->now),
                                behind == NULL ? null_value() : text(*behind),
                                state_of(filter),
                                topic_of(filter),
                                filter->ids.len == 0 ? null_value() : texts(ids),
                                integer((int64_t)limit + 1)};
  rows_t rows;
  // States are counted as the WIT counts them.
  const bool is_found = run(call,
                            "SELECT seq, shown, attempts, created_at, CASE shown WHEN 0 THEN max(due_at - ?1, 0) ELSE 0 END, "
                            "  id, topic, key, last_error, seq "
                            "FROM (SELECT *, CASE state WHEN 'delivered' THEN 2 WHEN 'dead' THEN 3 ELSE lease_end > ?1 END AS shown FROM {t}) "
                            "WHERE seq > coalesce(CAST(?2 AS INTEGER), 0) AND (?3 IS NULL OR shown = ?3) AND (?4 IS NULL OR topic = ?4) "
                            "  AND (?5 IS NULL OR id IN (SELECT value FROM json_each(?5))) ORDER BY seq LIMIT ?6",
                            parameters, 6, "iiiiittttt", &rows);
  outhaul_adapter_outbox_column_free(&ids);
  if (!is_found) return false;
  const size_t found = count_of(&rows), shown = found > limit ? limit : found;
  int64_t *seqs = allocated(shown, sizeof(int64_t));
  ret->rows = (exports_outhaul_adapter_storage_admin_list_row_t){allocated(shown, sizeof *ret->rows.ptr), shown};
  for (uint32_t at = 0; at < shown; at++) {
    seqs[at] = integers_of(&rows, 0)[at];
    ret->rows.ptr[at] = (exports_outhaul_adapter_storage_admin_row_t){
        .id = copy_of(column_value(texts_of(&rows, 5), at)),
        .topic = copy_of(column_value(texts_of(&rows, 6), at)),
        .key = option_of(column_value(texts_of(&rows, 7), at)),
        .state = (uint8_t)integers_of(&rows, 1)[at],
        .attempts = (uint32_t)integers_of(&rows, 2)[at],
        .last_error = option_of(column_value(texts_of(&rows, 8), at)),
        .created_at = (uint64_t)integers_of(&rows, 3)[at],
        .due_in_ms = (uint64_t)integers_of(&rows, 4)[at],
    };
  }
  if (found > shown && shown > 0) ret->next = option_of(column_value(texts_of(&rows, 9), (uint32_t)shown - 1));
  outhaul_adapter_sql_list_rows_free(&rows);
  const bool is_well = !with_messages || batch_of(call, seqs, shown, &ret->messages.val);
  if (!is_well) {
    ret->messages.is_some = false;
    exports_outhaul_adapter_storage_admin_page_free(ret);
  }
  free(seqs);
  return is_well;
}

bool exports_outhaul_adapter_storage_admin_browse(filter_t *filter, string_t *behind, uint32_t limit, bool with_messages,
                                                  exports_outhaul_adapter_storage_admin_page_t *ret, failure_t *err) {
  call_t call;
  const bool is_well = begin(&call, "browsing", err) && end(&call, browse(&call, filter, behind, limit, with_messages, ret));
  exports_outhaul_adapter_storage_admin_filter_free(filter);
  if (behind != NULL) WORLD(string_free)(behind);
  return is_well;
}

// Changes dead rows that match; rows in other states are left alone, whatever the filter says. The statement has so many parameters.
static bool change_dead(const char *what, filter_t *filter, const char *sql, size_t count, uint64_t *ret, failure_t *err) {
  call_t call;
  column_t ids = column_of(&filter->ids);
  bool is_well = begin(&call, what, err);
  if (is_well) {
    const value_t parameters[] = {topic_of(filter), filter->ids.len == 0 ? null_value() : texts(ids), state_of(filter), integer(call.now)};
    is_well = end(&call, change(&call, sql, parameters, count, ret));
  }
  outhaul_adapter_outbox_column_free(&ids);
  exports_outhaul_adapter_storage_admin_filter_free(filter);
  return is_well;
}

#define DEAD \
  "state = 'dead' AND (?1 IS NULL OR topic = ?1) AND (?2 IS NULL OR id IN (SELECT value FROM json_each(?2))) AND (?3 IS NULL OR ?3 = 3)"

bool exports_outhaul_adapter_storage_admin_requeue(filter_t *filter, uint64_t *ret, failure_t *err) {
  return change_dead("requeueing", filter, "UPDATE {t} SET state = 'pending', attempts = 0, due_at = ?4, settled_at = NULL WHERE " DEAD, 4, ret, err);
}

bool exports_outhaul_adapter_storage_admin_discard(filter_t *filter, uint64_t *ret, failure_t *err) {
  return change_dead("discarding", filter, "DELETE FROM {t} WHERE " DEAD, 3, ret, err);
}

bool exports_outhaul_adapter_storage_admin_purge(uint64_t older_than_ms, uint32_t limit, uint64_t *ret, failure_t *err) {
  call_t call;
  if (!begin(&call, "purging", err)) return false;
  // Nothing is older than the epoch.
  const int64_t before = older_than_ms > (uint64_t)call.now ? 0 : call.now - (int64_t)older_than_ms;
  const value_t parameters[] = {integer(before), integer(limit)};
  return end(&call, change(&call,
                           "DELETE FROM {t} WHERE seq IN (SELECT seq FROM {t} WHERE state = 'delivered' AND settled_at <= ?1 ORDER BY seq LIMIT ?2)",
                           parameters, 2, ret));
}

#endif
