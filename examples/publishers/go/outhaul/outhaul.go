// Package outhaul shows a batch of columns as messages, makes outcomes, and sends in the order of each key. Copy it as it is.
package outhaul

import (
	"fmt"
	"runtime"
	"time"

	witTypes "go.bytecodealliance.org/pkg/wit/types"

	"wit_component/outhaul_adapter_log"
	"wit_component/outhaul_adapter_outbox"
	"wit_component/outhaul_adapter_progress"
)

type (
	// Batch is a batch as it comes.
	Batch = outhaul_adapter_outbox.Batch
	// Outcome is what became of one message.
	Outcome = outhaul_adapter_outbox.Outcome
	// Failure is told to a person: no payloads, no secrets.
	Failure = outhaul_adapter_outbox.Failure
)

// value is value `index` of a column; nil: none.
func value(column outhaul_adapter_outbox.Column, index int) []byte {
	if len(column.Nulls) > 0 && column.Nulls[index] == 1 {
		return nil
	}
	start := uint32(0)
	if index > 0 {
		start = column.Ends[index-1]
	}
	if end := column.Ends[index]; end > start {
		return column.Data[start:end]
	}
	return []byte{}
}

// Message is one message: a view into a batch, nothing is copied until asked for. Its bytes must not be kept after the call.
type Message struct {
	batch *Batch
	// Index is its place in the batch.
	Index int
}

// Header is one header of a message.
type Header struct {
	Name  string
	Value []byte
}

// Messages are all of a batch, in its order.
func Messages(batch *Batch) []Message {
	messages := make([]Message, len(batch.Ids.Ends))
	for index := range messages {
		messages[index] = Message{batch, index}
	}
	return messages
}

// ID is unique in the storage, and the same at each attempt.
func (m Message) ID() string { return string(value(m.batch.Ids, m.Index)) }

// Topic says what it is about.
func (m Message) Topic() string { return string(value(m.batch.Topics, m.Index)) }

// Key orders it; false: independent of all others.
func (m Message) Key() (string, bool) {
	key := value(m.batch.Keys, m.Index)
	return string(key), key != nil
}

// Payload is the exact stored bytes; nil: SQL NULL, a tombstone, which is not the same as empty.
func (m Message) Payload() []byte { return value(m.batch.Payloads, m.Index) }

// Headers are in order, duplicates kept.
func (m Message) Headers() []Header {
	at := uint32(0)
	if m.Index > 0 {
		at = m.batch.HeaderEnds[m.Index-1]
	}
	headers := make([]Header, 0, m.batch.HeaderEnds[m.Index]-at)
	for ; at < m.batch.HeaderEnds[m.Index]; at++ {
		headers = append(headers, Header{string(value(m.batch.HeaderNames, int(at))), value(m.batch.HeaderValues, int(at))})
	}
	return headers
}

// Attempts counts the claims so far, this one included.
func (m Message) Attempts() uint32 { return m.batch.Attempts[m.Index] }

// CreatedAt is in Unix milliseconds; 0: unknown.
func (m Message) CreatedAt() uint64 { return m.batch.CreatedAt[m.Index] }

// Codes of failures, as `failure-code` of the WIT names them; NewFailure takes any other word as well.
const (
	Network              = "network"
	Timeout              = "timeout"
	Throttled            = "throttled"
	Unavailable          = "unavailable"
	Unauthorized         = "unauthorized"
	InvalidMessage       = "invalid-message"
	TooLarge             = "too-large"
	DestinationGone      = "destination-gone"
	InvalidConfiguration = "invalid-configuration"
)

// NewFailure makes a failure without a wish for a delay.
func NewFailure(code, detail string) Failure {
	made := outhaul_adapter_outbox.MakeFailureCodeOther(code)
	switch code {
	case Network:
		made = outhaul_adapter_outbox.MakeFailureCodeNetwork()
	case Timeout:
		made = outhaul_adapter_outbox.MakeFailureCodeTimeout()
	case Throttled:
		made = outhaul_adapter_outbox.MakeFailureCodeThrottled()
	case Unavailable:
		made = outhaul_adapter_outbox.MakeFailureCodeUnavailable()
	case Unauthorized:
		made = outhaul_adapter_outbox.MakeFailureCodeUnauthorized()
	case InvalidMessage:
		made = outhaul_adapter_outbox.MakeFailureCodeInvalidMessage()
	case TooLarge:
		made = outhaul_adapter_outbox.MakeFailureCodeTooLarge()
	case DestinationGone:
		made = outhaul_adapter_outbox.MakeFailureCodeDestinationGone()
	case InvalidConfiguration:
		made = outhaul_adapter_outbox.MakeFailureCodeInvalidConfiguration()
	}
	return Failure{Code: made, Detail: detail, RetryAfterMs: witTypes.None[uint64]()}
}

// Delivered: the destination has taken it.
func Delivered() Outcome { return outhaul_adapter_outbox.MakeOutcomeDelivered() }

// Held: not tried, costs no attempt.
func Held() Outcome { return outhaul_adapter_outbox.MakeOutcomeHeld() }

// Retry: it may succeed later.
func Retry(failure Failure) Outcome { return outhaul_adapter_outbox.MakeOutcomeRetry(failure) }

// Reject: it can never succeed.
func Reject(failure Failure) Outcome { return outhaul_adapter_outbox.MakeOutcomeReject(failure) }

// IsDelivered tells whether an outcome is Delivered.
func IsDelivered(outcome Outcome) bool {
	return outcome.Tag() == outhaul_adapter_outbox.OutcomeDelivered
}

// Info writes a line of the host's log; fields are names and values in turn.
func Info(line string, fields ...string) { write(outhaul_adapter_log.LevelInfo, line, fields) }

// Warn writes a line that somebody should see.
func Warn(line string, fields ...string) { write(outhaul_adapter_log.LevelWarn, line, fields) }

func write(level outhaul_adapter_log.Level, line string, fields []string) {
	var pairs []witTypes.Tuple2[string, string]
	for at := 0; at+1 < len(fields); at += 2 {
		pairs = append(pairs, witTypes.Tuple2[string, string]{F0: fields[at], F1: fields[at+1]})
	}
	outhaul_adapter_log.Write(level, line, pairs)
}

// InKeyOrder sends every message with `send`, one after the other, and none of a key after one that was not delivered. Each outcome
// is reported as soon as it is known. What cannot be started in time stays untried.
func InKeyOrder(batch *Batch, deadlineMs uint64, send func(Message, time.Duration) Outcome) []Outcome {
	// The collector is off, see main.go: here is where it may run.
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

// OutcomeOf says what an HTTP answer means; `where` names the destination without its path, which may hold a token.
func OutcomeOf(status uint16, retryAfter time.Duration, hasRetryAfter bool, where string) Outcome {
	if status >= 200 && status < 300 {
		return Delivered()
	}
	failure := func(code string) Failure { return NewFailure(code, fmt.Sprintf("%s answered %d", where, status)) }
	retry := func(code string) Outcome {
		failure := failure(code)
		if hasRetryAfter {
			failure.RetryAfterMs = witTypes.Some(uint64(retryAfter.Milliseconds()))
		}
		return Retry(failure)
	}
	switch {
	case status == 408:
		return retry(Timeout)
	case status == 429:
		return retry(Throttled)
	case status == 425 || (status >= 500 && status < 600):
		return retry(Unavailable)
	}
	switch status {
	case 400, 422:
		return Reject(failure(InvalidMessage))
	case 401, 403, 407:
		return Reject(failure(Unauthorized))
	case 410:
		return Reject(failure(DestinationGone))
	case 413, 414, 431:
		return Reject(failure(TooLarge))
	}
	return Reject(failure(fmt.Sprintf("http-%d", status)))
}
