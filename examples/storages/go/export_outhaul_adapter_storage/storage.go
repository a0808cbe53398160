// Package export_outhaul_adapter_storage is what the host calls of every storage. (The generated bindings look for a package of this
// name.)
package export_outhaul_adapter_storage

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"sort"

	witTypes "go.bytecodealliance.org/pkg/wit/types"

	"wit_component/database"
	"wit_component/kv"
	"wit_component/outhaul"
	"wit_component/outhaul_adapter_storage"
)

var plain = regexp.MustCompile("^[A-Za-z_][A-Za-z0-9_]*$")

// parse reads the configuration; the error names the key.
func parse(config string) (name, table string, err error) {
	entries := map[string]json.RawMessage{}
	if err := json.Unmarshal([]byte(config), &entries); err != nil {
		return "", "", err
	}
	keys := make([]string, 0, len(entries))
	for key := range entries {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	for _, key := range keys {
		if key != "database" && key != "table" {
			return "", "", fmt.Errorf("`%s`: unknown key; there are `database` and `table`", key)
		}
	}
	if json.Unmarshal(entries["database"], &name) != nil {
		return "", "", errors.New("`database`: must name a database")
	}
	table = "outbox_kv"
	if given, isSet := entries["table"]; isSet && (json.Unmarshal(given, &table) != nil || !plain.MatchString(table)) {
		return "", "", errors.New("`table`: must be letters, digits and `_`, no digit first")
	}
	return name, table, nil
}

// Open is called once for each instance, before anything else.
func Open(config string) witTypes.Result[outhaul_adapter_storage.Description, outhaul.Failure] {
	name, table, err := parse(config)
	if err != nil {
		return witTypes.Err[outhaul_adapter_storage.Description](outhaul.NewFailure(outhaul.InvalidConfiguration, err.Error()))
	}
	if failure := database.Open(name, table); failure != nil {
		return witTypes.Err[outhaul_adapter_storage.Description](*failure)
	}
	wake := outhaul_adapter_storage.MakeWakeSourceDataVersion(name)
	description := outhaul_adapter_storage.Description{StrictOrder: true, PrefersFused: true, Wake: wake}
	return witTypes.Ok[outhaul_adapter_storage.Description, outhaul.Failure](description)
}

// Claim leases rows that are due.
func Claim(request outhaul_adapter_storage.ClaimRequest) witTypes.Result[outhaul_adapter_storage.Claimed, outhaul.Failure] {
	return database.Run("claiming", func(call *kv.Call) outhaul_adapter_storage.Claimed { return call.Claim(request) })
}

// Settle writes verdicts.
func Settle(worker string, settlements []outhaul_adapter_storage.Settlement) witTypes.Result[[]string, outhaul.Failure] {
	return database.Run("settling", func(call *kv.Call) []string { return call.Settle(worker, settlements) })
}

// Extend renews leases.
func Extend(worker string, ids outhaul.Column, leaseMs uint64) witTypes.Result[[]string, outhaul.Failure] {
	return database.Run("renewing leases", func(call *kv.Call) []string { return call.Extend(worker, ids, leaseMs) })
}

// Stats counts.
func Stats() witTypes.Result[outhaul_adapter_storage.Counts, outhaul.Failure] {
	return database.Run("counting", (*kv.Call).Stats)
}
