package kv

import (
	"strings"

	witTypes "go.bytecodealliance.org/pkg/wit/types"

	"wit_component/outhaul"
	"wit_component/outhaul_adapter_storage"
	"wit_component/outhaul_adapter_storage_admin"
)

// Row is a message and what became of it so far, as it stands in the table. Times are milliseconds of the database's clock.
type Row struct {
	ID      string           `json:"id"`
	Topic   string           `json:"topic"`
	Key     *string          `json:"key"`
	Headers []outhaul.Header `json:"headers"`
	// Nil is a tombstone: JSON keeps it apart from empty.
	Payload   []byte  `json:"payload"`
	Bytes     uint64  `json:"bytes"`
	CreatedAt int64   `json:"created_at"`
	Due       int64   `json:"due"`
	Attempts  uint32  `json:"attempts"`
	Worker    *string `json:"worker"`
	LeaseEnd  int64   `json:"lease_end"`
	Error     *string `json:"error"`
	SettledAt int64   `json:"settled_at"`
}

func newRow(id string, message outhaul.Message, now int64) *Row {
	row := &Row{ID: id, Topic: message.Topic(), Headers: message.Headers(), Payload: message.Payload(), CreatedAt: now, Due: now}
	row.Bytes = uint64(len(row.Payload))
	if key, isKeyed := message.Key(); isKeyed {
		row.Key = &key
		row.Bytes += uint64(len(key))
	}
	for _, header := range row.Headers {
		row.Bytes += uint64(len(header.Name) + len(header.Value))
	}
	return row
}

func (r *Row) isLeased(now int64) bool { return r.Worker != nil && r.LeaseEnd > now }

// refusal is why it can never be claimed again; nil: it can.
func (r *Row) refusal(request outhaul_adapter_storage.ClaimRequest) *outhaul.Failure {
	var failure outhaul.Failure
	switch {
	case request.MaxAttempts > 0 && r.Attempts >= request.MaxAttempts:
		failure = outhaul.NewFailure("attempts-used-up", text("gave up after %d attempts: the lease of the last one ran out", r.Attempts))
	case r.Bytes > request.MaxMessageBytes:
		failure = outhaul.NewFailure(outhaul.TooLarge, text("%d bytes are more than the limit of %d", r.Bytes, request.MaxMessageBytes))
	default:
		return nil
	}
	return &failure
}

// found is a row of a search.
type found struct {
	number string
	row    *Row
	state  outhaul_adapter_storage_admin.RowState
}

func (f found) matches(filter *outhaul_adapter_storage_admin.Filter) bool {
	if filter.State.SomeOr(f.state) != f.state || filter.Topic.SomeOr(f.row.Topic) != f.row.Topic {
		return false
	}
	for _, id := range filter.Ids {
		if id == f.row.ID {
			return true
		}
	}
	return len(filter.Ids) == 0
}

func (f found) shown(now int64) outhaul_adapter_storage_admin.Row {
	shown := outhaul_adapter_storage_admin.Row{
		Id: f.row.ID, Topic: f.row.Topic, Key: option(f.row.Key), State: f.state, Attempts: f.row.Attempts,
		LastError: option(f.row.Error), CreatedAt: uint64(f.row.CreatedAt),
	}
	if f.state == outhaul_adapter_storage_admin.RowStatePending {
		shown.DueInMs = uint64(max(f.row.Due-now, 0))
	}
	return shown
}

func option(value *string) witTypes.Option[string] {
	if value == nil {
		return witTypes.None[string]()
	}
	return witTypes.Some(*value)
}

// batchOf is rows as the host takes them.
func batchOf(rows []*Row) outhaul.Batch {
	var headers []outhaul.Header
	batch := outhaul.Batch{}
	for _, row := range rows {
		headers = append(headers, row.Headers...)
		batch.HeaderEnds = append(batch.HeaderEnds, uint32(len(headers)))
		batch.Attempts = append(batch.Attempts, max(row.Attempts, 1))
		batch.CreatedAt = append(batch.CreatedAt, uint64(row.CreatedAt))
	}
	batch.Ids = outhaul.ColumnOf(len(rows), func(index int) []byte { return []byte(rows[index].ID) })
	batch.Topics = outhaul.ColumnOf(len(rows), func(index int) []byte { return []byte(rows[index].Topic) })
	batch.Keys = outhaul.ColumnOf(len(rows), func(index int) []byte {
		if rows[index].Key == nil {
			return nil
		}
		return []byte(*rows[index].Key)
	})
	batch.HeaderNames = outhaul.ColumnOf(len(headers), func(index int) []byte { return []byte(headers[index].Name) })
	batch.HeaderValues = outhaul.ColumnOf(len(headers), func(index int) []byte { return headers[index].Value })
	batch.Payloads = outhaul.ColumnOf(len(rows), func(index int) []byte { return rows[index].Payload })
	return batch
}

// number is the part of a name behind its prefix.
func number(name string) string {
	_, number, _ := strings.Cut(name, "/")
	return number
}
