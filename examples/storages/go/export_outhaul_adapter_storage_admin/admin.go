// Package export_outhaul_adapter_storage_admin is for the command line. (The generated bindings look for a package of this name.)
package export_outhaul_adapter_storage_admin

import (
	witTypes "go.bytecodealliance.org/pkg/wit/types"

	"wit_component/database"
	"wit_component/kv"
	"wit_component/outhaul"
	"wit_component/outhaul_adapter_storage_admin"
)

// Schema is the DDL.
func Schema() witTypes.Result[string, outhaul.Failure] {
	return witTypes.Ok[string, outhaul.Failure](database.Schema())
}

// CreateSchema runs the DDL.
func CreateSchema() witTypes.Result[witTypes.Unit, outhaul.Failure] {
	if failure := database.CreateSchema(); failure != nil {
		return witTypes.Err[witTypes.Unit](*failure)
	}
	return witTypes.Ok[witTypes.Unit, outhaul.Failure](witTypes.Unit{})
}

// Enqueue inserts messages.
func Enqueue(batch outhaul.Batch) witTypes.Result[[]string, outhaul.Failure] {
	return database.Run("inserting", func(call *kv.Call) []string { return call.Enqueue(&batch) })
}

// Browse shows rows.
func Browse(filter outhaul_adapter_storage_admin.Filter, after witTypes.Option[string], limit uint32, withMessages bool) witTypes.Result[outhaul_adapter_storage_admin.Page, outhaul.Failure] {
	return database.Run("browsing", func(call *kv.Call) outhaul_adapter_storage_admin.Page {
		return call.Browse(filter, after.SomeOr(""), limit, withMessages)
	})
}

// Requeue makes dead rows pending again.
func Requeue(filter outhaul_adapter_storage_admin.Filter) witTypes.Result[uint64, outhaul.Failure] {
	return database.Run("requeueing", func(call *kv.Call) uint64 { return call.Requeue(filter) })
}

// Discard deletes dead rows.
func Discard(filter outhaul_adapter_storage_admin.Filter) witTypes.Result[uint64, outhaul.Failure] {
	return database.Run("discarding", func(call *kv.Call) uint64 { return call.Discard(filter) })
}

// Purge deletes delivered rows.
func Purge(olderThanMs uint64, limit uint32) witTypes.Result[uint64, outhaul.Failure] {
	return database.Run("purging", func(call *kv.Call) uint64 { return call.Purge(olderThanMs, limit) })
}
