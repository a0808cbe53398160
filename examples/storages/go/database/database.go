// Package database runs the calls of the host: each is one transaction over a table of names and values, through the host's `sql`.
package database

import (
	"fmt"
	"runtime"
	"runtime/debug"

	witTypes "go.bytecodealliance.org/pkg/wit/types"

	"wit_component/kv"
	"wit_component/outhaul"
	"wit_component/outhaul_adapter_sql"
)

// Milliseconds by the database's clock.
const now = "SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"

// Set by Open.
var (
	connection *outhaul_adapter_sql.Connection
	table      string
)

func init() {
	// The collector must not run while the host hands over arguments: a component may not call out then. Run runs it.
	debug.SetGCPercent(-1)
}

// Open opens a database of the host; nil: it is open.
func Open(name, itsTable string) *outhaul.Failure {
	opened := outhaul_adapter_sql.ConnectionOpen(name, outhaul_adapter_sql.AccessReadWrite)
	if opened.IsErr() {
		return told("opening", opened.Err())
	}
	if opened.Ok().Dialect() != outhaul_adapter_sql.DialectSqlite {
		failure := outhaul.NewFailure(outhaul.InvalidConfiguration, "`database`: this storage is for SQLite")
		return &failure
	}
	connection, table = opened.Ok(), itsTable
	return nil
}

// Schema is the DDL.
func Schema() string {
	return fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;\n", table)
}

// CreateSchema runs the DDL; nil: the table is there.
func CreateSchema() *outhaul.Failure {
	if made := connection.Execute([]outhaul_adapter_sql.Statement{{Sql: Schema()}}); made.IsErr() {
		return told("creating the table", made.Err())
	}
	return nil
}

// Run does one call in a transaction, which is committed unless the call has failed.
func Run[T any](what string, work func(*kv.Call) T) witTypes.Result[T, outhaul.Failure] {
	// The collector is off: here is where it may run.
	runtime.GC()
	clock := outhaul_adapter_sql.Statement{Sql: now, Columns: []outhaul_adapter_sql.ColumnType{outhaul_adapter_sql.ColumnTypeInteger}}
	begun := connection.Begin([]outhaul_adapter_sql.Statement{clock})
	if begun.IsErr() {
		return witTypes.Err[T](*told(what, begun.Err()))
	}
	transaction := begun.Ok().F0
	// Rolls back what is not committed.
	defer transaction.Drop()
	call := kv.NewCall(reading{transaction, what}, begun.Ok().F1[0].Columns[0].Integers().Values[0])
	made := work(call)
	if call.Failure != nil {
		return witTypes.Err[T](*call.Failure)
	}
	if done := outhaul_adapter_sql.TransactionCommit(transaction, statements(call.Writes)); done.IsErr() {
		return witTypes.Err[T](*told(what, done.Err()))
	}
	return witTypes.Ok[T, outhaul.Failure](made)
}

// statements are those that write names and values.
func statements(writes map[string]*string) []outhaul_adapter_sql.Statement {
	made := make([]outhaul_adapter_sql.Statement, 0, len(writes))
	for name, value := range writes {
		its := outhaul_adapter_sql.Statement{
			Sql:        fmt.Sprintf("DELETE FROM %s WHERE name = ?1", table),
			Parameters: []outhaul_adapter_sql.Value{outhaul_adapter_sql.MakeValueText(name)},
		}
		if value != nil {
			its.Sql = fmt.Sprintf("INSERT INTO %s (name, value) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = excluded.value", table)
			its.Parameters = append(its.Parameters, outhaul_adapter_sql.MakeValueText(*value))
		}
		made = append(made, its)
	}
	return made
}

// reading is a kv.Table: what a transaction reads, and what it is for.
type reading struct {
	transaction *outhaul_adapter_sql.Transaction
	what        string
}

func (r reading) Range(after, before string, limit int) ([]kv.Entry, *outhaul.Failure) {
	sql := fmt.Sprintf("SELECT name, value FROM %s WHERE name > ?1 AND name < ?2 ORDER BY name LIMIT %d", table, limit)
	columns, failure := r.texts(sql, 2, after, before)
	if failure != nil {
		return nil, failure
	}
	entries := make([]kv.Entry, len(columns[0]))
	for index := range entries {
		entries[index] = kv.Entry{Name: columns[0][index], Value: columns[1][index]}
	}
	return entries, nil
}

func (r reading) Get(name string) (string, bool, *outhaul.Failure) {
	columns, failure := r.texts(fmt.Sprintf("SELECT value FROM %s WHERE name = ?1", table), 1, name)
	if failure != nil || len(columns[0]) == 0 {
		return "", false, failure
	}
	return columns[0][0], true, nil
}

// texts runs a statement that returns so many columns of texts.
func (r reading) texts(sql string, count int, parameters ...string) ([][]string, *outhaul.Failure) {
	statement := outhaul_adapter_sql.Statement{Sql: sql}
	for _, parameter := range parameters {
		statement.Parameters = append(statement.Parameters, outhaul_adapter_sql.MakeValueText(parameter))
	}
	for range count {
		statement.Columns = append(statement.Columns, outhaul_adapter_sql.ColumnTypeText)
	}
	rows := r.transaction.Execute([]outhaul_adapter_sql.Statement{statement})
	if rows.IsErr() {
		return nil, told(r.what, rows.Err())
	}
	columns := make([][]string, count)
	for index := range columns {
		columns[index] = outhaul.Texts(rows.Ok()[0].Columns[index].Texts())
	}
	return columns, nil
}

// told is an error of the database as a failure. Only what can get better by itself is `unavailable`.
func told(what string, err outhaul_adapter_sql.Error) *outhaul.Failure {
	made := func(code, detail string) *outhaul.Failure {
		failure := outhaul.NewFailure(code, detail)
		return &failure
	}
	switch err.Code {
	case outhaul_adapter_sql.ErrorCodeDenied:
		return made(outhaul.InvalidConfiguration, "`database`: "+err.Detail)
	case outhaul_adapter_sql.ErrorCodeMissing:
		return made(outhaul.Unavailable, "the table is not there: run `outhaul schema --apply` ("+err.Detail+")")
	case outhaul_adapter_sql.ErrorCodeUnavailable, outhaul_adapter_sql.ErrorCodeBusy, outhaul_adapter_sql.ErrorCodeTimeout:
		return made(outhaul.Unavailable, what+": "+err.Detail)
	}
	return made("sql", what+": "+err.Detail)
}
