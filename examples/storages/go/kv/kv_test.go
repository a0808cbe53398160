package kv

import (
	"maps"
	"math"
	"reflect"
	"slices"
	"testing"

	witTypes "go.bytecodealliance.org/pkg/wit/types"

	"wit_component/outhaul"
	"wit_component/outhaul_adapter_storage"
	"wit_component/outhaul_adapter_storage_admin"
)

// bench is a table that is a map, with a clock that tests move. Each call that has not failed writes.
type bench struct {
	*testing.T
	rows map[string]string
	now  int64
}

func newBench(t *testing.T) *bench { return &bench{t, map[string]string{}, 1_000_000} }

func (b *bench) Range(after, before string, limit int) ([]Entry, *outhaul.Failure) {
	var entries []Entry
	for _, name := range slices.Sorted(maps.Keys(b.rows)) {
		if name > after && name < before && len(entries) < limit {
			entries = append(entries, Entry{name, b.rows[name]})
		}
	}
	return entries, nil
}

func (b *bench) Get(name string) (string, bool, *outhaul.Failure) {
	value, isThere := b.rows[name]
	return value, isThere, nil
}

func run[T any](b *bench, work func(*Call) T) (T, *outhaul.Failure) {
	call := NewCall(b, b.now)
	made := work(call)
	if call.Failure == nil {
		for name, value := range call.Writes {
			if value == nil {
				delete(b.rows, name)
			} else {
				b.rows[name] = *value
			}
		}
	}
	return made, call.Failure
}

func must[T any](b *bench, work func(*Call) T) T {
	b.Helper()
	made, failure := run(b, work)
	if failure != nil {
		b.Fatal(failure.Detail)
	}
	return made
}

func equal(b *bench, got, want any) {
	b.Helper()
	if !reflect.DeepEqual(got, want) {
		b.Errorf("got %v, want %v", got, want)
	}
}

// message is what a test enqueues.
type message struct {
	id, key string
	topic   string
	headers []outhaul.Header
	payload []byte
}

func (b *bench) enqueue(messages ...message) ([]string, *outhaul.Failure) {
	var headers []outhaul.Header
	batch := outhaul.Batch{}
	orNil := func(text string) []byte {
		if text == "" {
			return nil
		}
		return []byte(text)
	}
	for _, its := range messages {
		headers = append(headers, its.headers...)
		batch.HeaderEnds = append(batch.HeaderEnds, uint32(len(headers)))
	}
	count := len(messages)
	batch.Ids = outhaul.ColumnOf(count, func(index int) []byte { return orNil(messages[index].id) })
	batch.Topics = outhaul.ColumnOf(count, func(index int) []byte { return []byte(messages[index].topic) })
	batch.Keys = outhaul.ColumnOf(count, func(index int) []byte { return orNil(messages[index].key) })
	batch.Payloads = outhaul.ColumnOf(count, func(index int) []byte { return messages[index].payload })
	batch.HeaderNames = outhaul.ColumnOf(len(headers), func(index int) []byte { return []byte(headers[index].Name) })
	batch.HeaderValues = outhaul.ColumnOf(len(headers), func(index int) []byte { return headers[index].Value })
	return run(b, func(call *Call) []string { return call.Enqueue(&batch) })
}

func request() outhaul_adapter_storage.ClaimRequest {
	return outhaul_adapter_storage.ClaimRequest{Worker: "w", Limit: 10, MaxBytes: 1000, LeaseMs: 5000, MaxMessageBytes: 1000}
}

func (b *bench) claim(request outhaul_adapter_storage.ClaimRequest) outhaul_adapter_storage.Claimed {
	b.Helper()
	return must(b, func(call *Call) outhaul_adapter_storage.Claimed { return call.Claim(request) })
}

func (b *bench) claimed(request outhaul_adapter_storage.ClaimRequest) []string {
	b.Helper()
	return outhaul.Texts(b.claim(request).Batch.Ids)
}

func limited(limit uint32) outhaul_adapter_storage.ClaimRequest {
	made := request()
	made.Limit = limit
	return made
}

func by(worker string) outhaul_adapter_storage.ClaimRequest {
	made := request()
	made.Worker = worker
	return made
}

func ids(texts ...string) outhaul.Column {
	return outhaul.ColumnOf(len(texts), func(index int) []byte { return []byte(texts[index]) })
}

func (b *bench) settle(worker string, verdict outhaul_adapter_storage.Verdict, texts ...string) []string {
	b.Helper()
	settlements := []outhaul_adapter_storage.Settlement{{Verdict: verdict, Ids: ids(texts...)}}
	return must(b, func(call *Call) []string { return call.Settle(worker, settlements) })
}

func (b *bench) row(id string) outhaul_adapter_storage_admin.Row {
	b.Helper()
	filter := outhaul_adapter_storage_admin.Filter{Ids: []string{id}}
	page := must(b, func(call *Call) outhaul_adapter_storage_admin.Page { return call.Browse(filter, "", 10, false) })
	if len(page.Rows) != 1 {
		b.Fatalf("%d rows have the id %s", len(page.Rows), id)
	}
	return page.Rows[0]
}

var (
	failure   = outhaul.NewFailure(outhaul.Network, "no")
	delivered = outhaul_adapter_storage.MakeVerdictDelivered()
	dead      = outhaul_adapter_storage.MakeVerdictDead(failure)
	release   = outhaul_adapter_storage.MakeVerdictRelease
)

func retry(delayMs uint64) outhaul_adapter_storage.Verdict {
	return outhaul_adapter_storage.MakeVerdictRetry(outhaul_adapter_storage.Retry{Failure: failure, DelayMs: delayMs})
}

func TestWhatGoesInComesOut(t *testing.T) {
	b := newBench(t)
	headers := []outhaul.Header{{Name: "a", Value: []byte("1")}, {Name: "a", Value: []byte{0, 255}}}
	made, _ := b.enqueue(message{key: "k\x00", headers: headers, payload: []byte{0, 255}}, message{id: "mine", payload: []byte{}}, message{})
	equal(b, made, []string{"1", "mine", "3"})
	claimed := b.claim(request())
	all := outhaul.Messages(&claimed.Batch)
	key, _ := all[0].Key()
	_, isKeyed := all[1].Key()
	equal(b, []any{key, isKeyed, all[0].Headers(), all[0].Attempts(), all[0].CreatedAt()}, []any{"k\x00", false, headers, uint32(1), uint64(1_000_000)})
	equal(b, [][]byte{all[0].Payload(), all[1].Payload(), all[2].Payload()}, [][]byte{{0, 255}, {}, nil})
	before := maps.Clone(b.rows)
	_, failure := b.enqueue(message{}, message{id: "mine"})
	equal(b, failure.Detail, "the id `mine` is taken")
	equal(b, b.rows, before)
}

func TestANumberThatWasGivenAsAnIdIsPassedOver(t *testing.T) {
	b := newBench(t)
	made, _ := b.enqueue(message{id: "2"}, message{}, message{})
	equal(b, made, []string{"2", "3", "4"})
	b.enqueue(message{id: "5"})
	made, _ = b.enqueue(message{})
	equal(b, made, []string{"6"})
}

func TestClaimsDoNotOverlapAndKeepTheOrderOfAKey(t *testing.T) {
	b := newBench(t)
	b.enqueue(message{key: "a"}, message{key: "a"}, message{key: "b"}, message{})
	equal(b, b.claimed(limited(1)), []string{"1"})
	// The second of `a` is held back by the lease on the first.
	equal(b, b.claimed(by("v")), []string{"3", "4"})
	equal(b, b.claimed(request()), []string{})
	equal(b, b.settle("w", delivered, "1"), []string{})
	equal(b, b.claimed(request()), []string{"2"})
}

func TestAWaitingHeadHoldsBackItsKeyUntilItsDelayIsOver(t *testing.T) {
	b := newBench(t)
	b.enqueue(message{key: "a"}, message{key: "a"})
	b.claim(limited(1))
	b.settle("w", retry(100), "1")
	equal(b, b.claimed(request()), []string{})
	row := b.row("1")
	equal(b, []any{row.DueInMs, row.LastError.SomeOr("")}, []any{uint64(100), "no"})
	b.now += 100
	equal(b, b.claimed(request()), []string{"1", "2"})
	equal(b, b.row("1").Attempts, uint32(2))
}

func TestAReleaseGivesTheAttemptBackAndTheLongestDelayIsForEver(t *testing.T) {
	b := newBench(t)
	b.enqueue(message{}, message{})
	b.claim(request())
	b.settle("w", release(50), "1")
	b.settle("w", release(math.MaxUint64), "2")
	first, second := b.row("1"), b.row("2")
	equal(b, []any{first.Attempts, first.DueInMs, second.DueInMs}, []any{uint32(0), uint64(50), uint64(math.MaxInt64 - b.now)})
}

func TestALeaseThatRanOutCountsAndEndsDeadAtTheLimit(t *testing.T) {
	b := newBench(t)
	b.enqueue(message{key: "a"}, message{key: "a"})
	b.claim(limited(1))
	b.now += 5000
	last := request()
	last.MaxAttempts = 1
	claimed := b.claim(last)
	equal(b, []any{claimed.Refused[0].Id, outhaul.Texts(claimed.Batch.Ids)}, []any{"1", []string{"2"}})
	equal(b, b.row("1").State, outhaul_adapter_storage_admin.RowStateDead)
}

func TestLateWritesChangeNothing(t *testing.T) {
	b := newBench(t)
	b.enqueue(message{}, message{})
	b.claim(by("old"))
	b.now += 5000
	b.claim(by("new"))
	for _, verdict := range []outhaul_adapter_storage.Verdict{delivered, dead, retry(0), release(0)} {
		equal(b, b.settle("old", verdict, "1", "2", "gone"), []string{"1", "2", "gone"})
	}
	equal(b, must(b, func(call *Call) []string { return call.Extend("old", ids("1"), 9000) }), []string{"1"})
	equal(b, must(b, func(call *Call) []string { return call.Extend("new", ids("2"), 9000) }), []string{})
	b.now += 8000
	equal(b, b.claimed(by("old")), []string{"1"})
	equal(b, []any{b.settle("new", delivered, "2"), b.settle("new", delivered, "2")}, []any{[]string{}, []string{"2"}})
}

func TestSizesAreKept(t *testing.T) {
	b := newBench(t)
	b.enqueue(message{payload: make([]byte, 60)}, message{payload: make([]byte, 50)}, message{payload: make([]byte, 500)})
	small := request()
	small.MaxBytes = 100
	equal(b, b.claimed(small), []string{"1"})
	strict := request()
	strict.MaxMessageBytes = 100
	equal(b, b.claim(strict).Refused[0].Id, "3")
	// Larger than MaxBytes, but the first: it has to go some time.
	b.settle("w", release(0), "1")
	small.MaxBytes = 1
	equal(b, b.claimed(small), []string{"1"})
}

func TestSettlingAndClaimingAreOne(t *testing.T) {
	b := newBench(t)
	b.enqueue(message{key: "a"}, message{key: "a"})
	b.claim(limited(1))
	settlements := []outhaul_adapter_storage.Settlement{{Verdict: delivered, Ids: ids("1", "9")}}
	equal(b, must(b, func(call *Call) []any {
		return []any{call.Settle("w", settlements), outhaul.Texts(call.Claim(request()).Batch.Ids)}
	}), []any{[]string{"9"}, []string{"2"}})
	settlements = []outhaul_adapter_storage.Settlement{{Verdict: retry(0), Ids: ids("2")}}
	equal(b, must(b, func(call *Call) []uint32 {
		call.Settle("w", settlements)
		return call.Claim(request()).Batch.Attempts
	}), []uint32{2})
}

func TestMoreRowsThanAreReadAtOnce(t *testing.T) {
	b := newBench(t)
	b.enqueue(make([]message, 1200)...)
	equal(b, len(b.claimed(limited(2000))), 1200)
	b.now += 5000
	last := request()
	last.MaxAttempts = 1
	claimed := b.claim(last)
	equal(b, []any{len(claimed.Refused), claimed.Unfinished}, []any{mostRefused, true})
}

func TestCounts(t *testing.T) {
	b := newBench(t)
	b.enqueue(message{}, message{}, message{}, message{})
	b.claim(limited(2))
	b.settle("w", dead, "1")
	b.now += 10
	counts := must(b, (*Call).Stats)
	equal(b, counts, outhaul_adapter_storage.Counts{Pending: 3, Due: 2, Leased: 1, Dead: 1, OldestPendingMs: witTypes.Some(uint64(10))})
}

func TestTheCommandLine(t *testing.T) {
	b := newBench(t)
	b.enqueue(message{topic: "a"}, message{topic: "b"}, message{topic: "a"})
	b.claim(request())
	b.settle("w", dead, "1", "2")
	b.settle("w", delivered, "3")
	every := outhaul_adapter_storage_admin.Filter{}
	page := must(b, func(call *Call) outhaul_adapter_storage_admin.Page { return call.Browse(every, "", 2, true) })
	messages := page.Messages.Some()
	equal(b, []string{page.Rows[0].Id, page.Rows[1].Id, outhaul.Texts(messages.Topics)[1]}, []string{"1", "2", "b"})
	after := page.Next.Some()
	page = must(b, func(call *Call) outhaul_adapter_storage_admin.Page { return call.Browse(every, after, 2, false) })
	if len(page.Rows) != 1 || page.Rows[0].Id != "3" || page.Next.IsSome() || page.Messages.IsSome() {
		t.Error("the second page:", page)
	}
	topicA := outhaul_adapter_storage_admin.Filter{Topic: witTypes.Some("a")}
	equal(b, must(b, func(call *Call) uint64 { return call.Requeue(topicA) }), uint64(1))
	equal(b, []any{b.row("1").State, b.row("1").Attempts}, []any{outhaul_adapter_storage_admin.RowStatePending, uint32(0)})
	both := outhaul_adapter_storage_admin.Filter{Ids: []string{"1", "2"}}
	equal(b, must(b, func(call *Call) uint64 { return call.Discard(both) }), uint64(1))
	purge := func(call *Call) uint64 { return call.Purge(1, 10) }
	equal(b, must(b, purge), uint64(0))
	b.now++
	equal(b, []uint64{must(b, purge), must(b, purge)}, []uint64{1, 0})
	equal(b, slices.Sorted(maps.Keys(b.rows)), []string{"id/1", "live/0000000000000001", "next"})
}
