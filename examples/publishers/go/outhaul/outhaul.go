// Package outhaul shows a batch of columns as messages, and makes columns, failures and outcomes. Copy it as it is.
package outhaul

import (
	"fmt"
	"time"

	witTypes "go.bytecodealliance.org/pkg/wit/types"

	"wit_component/outhaul_adapter_log"
	"wit_component/outhaul_adapter_outbox"
)

type (
	// Batch is a batch as it comes.
	Batch = outhaul_adapter_outbox.Batch
	// Column is the values of one field, for every message of a batch.
	Column = outhaul_adapter_outbox.Column
	// Outcome is what became of one message.
	Outcome = outhaul_adapter_outbox.Outcome
	// Failure is told to a person: no payloads, no secrets.
	Failure = outhaul_adapter_outbox.Failure
)

// value is value `index` of a column; nil: none.
func value(column Column, index int) []byte {
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

// Texts are the values of a column of text that has no none.
func Texts(column Column) []string {
	texts := make([]string, len(column.Ends))
	for index := range texts {
		texts[index] = string(value(column, index))
	}
	return texts
}

// ColumnOf makes a column of so many values; nil: none.
func ColumnOf(count int, value func(index int) []byte) Column {
	made := Column{Ends: make([]uint32, 0, count)}
	nulls, hasNulls := make([]uint8, count), false
	for index := range count {
		its := value(index)
		if its == nil {
			nulls[index], hasNulls = 1, true
		}
		made.Data = append(made.Data, its...)
		made.Ends = append(made.Ends, uint32(len(made.Data)))
	}
	if hasNulls {
		made.Nulls = nulls
	}
	return made
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
