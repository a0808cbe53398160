// Package export_outhaul_adapter_storage_fused is one commit instead of two. (The generated bindings look for a package of this name.)
package export_outhaul_adapter_storage_fused

import (
	witTypes "go.bytecodealliance.org/pkg/wit/types"

	"wit_component/database"
	"wit_component/kv"
	"wit_component/outhaul"
	"wit_component/outhaul_adapter_storage"
	"wit_component/outhaul_adapter_storage_fused"
)

// SettleAndClaim writes verdicts, then leases rows that are due.
func SettleAndClaim(settlements []outhaul_adapter_storage.Settlement, request outhaul_adapter_storage.ClaimRequest) witTypes.Result[outhaul_adapter_storage_fused.Turn, outhaul.Failure] {
	return database.Run("settling and claiming", func(call *kv.Call) outhaul_adapter_storage_fused.Turn {
		lost := call.Settle(request.Worker, settlements)
		return outhaul_adapter_storage_fused.Turn{Lost: lost, Claimed: call.Claim(request)}
	})
}
