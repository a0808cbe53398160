package outhaul

import (
	"runtime"
	"time"

	"wit_component/outhaul_adapter_progress"
)

// InKeyOrder sends every message with `send`, one after the other, and none of a key after one that was not delivered. Each outcome
// is reported as soon as it is known. What cannot be started in time stays untried.
func InKeyOrder(batch *Batch, deadlineMs uint64, send func(Message, time.Duration) Outcome) []Outcome {
	// The collector is off, see the publisher's init: here is where it may run.
	runtime.GC()
	// A tenth, at most 250 ms, is kept for the way back to the host.
	end := time.Now().Add(time.Duration(deadlineMs-min(deadlineMs/10, 250)) * time.Millisecond)
	stopped := map[string]bool{}
	outcomes := make([]Outcome, 0, len(batch.Ids.Ends))
	for _, message := range Messages(batch) {
		key, isKeyed := message.Key()
		outcome := Held()
		if left := time.Until(end); left > 0 && !(isKeyed && stopped[key]) {
			outcome = send(message, left)
		}
		if isKeyed && !IsDelivered(outcome) {
			stopped[key] = true
		}
		outhaul_adapter_progress.Report(uint32(message.Index), outcome)
		outcomes = append(outcomes, outcome)
	}
	return outcomes
}
