package outhaul

import (
	"reflect"
	"testing"
	"time"

	"wit_component/outhaul_adapter_outbox"
)

func column(nulls []uint8, values ...string) outhaul_adapter_outbox.Column {
	made := outhaul_adapter_outbox.Column{Nulls: nulls}
	for _, value := range values {
		made.Data = append(made.Data, value...)
		made.Ends = append(made.Ends, uint32(len(made.Data)))
	}
	return made
}

func TestMessagesAreViewsOfABatch(t *testing.T) {
	batch := Batch{
		Ids: column(nil, "1", "2"), Topics: column(nil, "a", "b"), Keys: column([]uint8{0, 1}, "k", ""),
		HeaderNames: column(nil, "x", "x"), HeaderValues: column(nil, "one", "two"), HeaderEnds: []uint32{2, 2},
		Payloads: column([]uint8{0, 1}, "", ""), Attempts: []uint32{1, 4}, CreatedAt: []uint64{0, 7},
	}
	messages := Messages(&batch)
	first, second := messages[0], messages[1]
	if first.ID() != "1" || second.Topic() != "b" || second.Attempts() != 4 || second.CreatedAt() != 7 {
		t.Error("fields are mixed up")
	}
	if key, isKeyed := first.Key(); key != "k" || !isKeyed {
		t.Error("the key is lost")
	}
	if _, isKeyed := second.Key(); isKeyed {
		t.Error("there is no key")
	}
	if first.Payload() == nil || second.Payload() != nil {
		t.Error("empty is not none")
	}
	want := []Header{{"x", []byte("one")}, {"x", []byte("two")}}
	if got := first.Headers(); !reflect.DeepEqual(got, want) || len(second.Headers()) != 0 {
		t.Error("headers:", got)
	}
}

func TestAnswersHaveTheirMeaning(t *testing.T) {
	if !IsDelivered(OutcomeOf(204, 0, false, "h")) {
		t.Error("204 is delivered")
	}
	throttled := OutcomeOf(429, 3*time.Second, true, "h").Retry()
	if throttled.Code.Tag() != outhaul_adapter_outbox.FailureCodeThrottled || throttled.RetryAfterMs.SomeOr(0) != 3000 || throttled.Detail != "h answered 429" {
		t.Error("429:", throttled)
	}
	if code := OutcomeOf(404, 0, false, "h").Reject().Code; code.Other() != "http-404" {
		t.Error("404:", code)
	}
}
