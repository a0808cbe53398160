// One run of Watermill's forwarder: writes enveloped messages through its own publisher, forwards them to nowhere, counts.
//
// PEER_DATABASE is the URL of a PostgreSQL database. Prints one line of JSON.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
)

// topic names the table: watermill_outbox.
const topic = "outbox"

// transaction is how many rows a transaction writes, as in the other tables.
const transaction = 500

// period is after how many bytes payloads have the same characters again.
const period = 1 << 20

// nowhere takes every message at once.
type nowhere struct{ sent atomic.Int64 }

func (n *nowhere) Publish(_ string, messages ...*message.Message) error {
	n.sent.Add(int64(len(messages)))
	return nil
}

func (n *nowhere) Close() error { return nil }

func main() {
	rows := flag.Int("rows", 100_000, "messages")
	keys := flag.Int("keys", 1000, "keys")
	payload := flag.Int("payload", 256, "bytes of a payload")
	batch := flag.Int("batch", 100, "messages of a query")
	flag.Parse()
	if err := run(*rows, *keys, *payload, *batch); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(rows, keys, payload, batch int) error {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("PEER_DATABASE"))
	if err != nil {
		return err
	}
	defer pool.Close()
	schema := sql.DefaultPostgreSQLSchema{SubscribeBatchSize: batch}
	subscriber, err := sql.NewSubscriber(sql.BeginnerFromPgx(pool), sql.SubscriberConfig{
		ConsumerGroup: "peer",
		// A second by default, which it waits each time that nothing is new.
		PollInterval:   5 * time.Millisecond,
		SchemaAdapter:  schema,
		OffsetsAdapter: sql.DefaultPostgreSQLOffsetsAdapter{},
	}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	if err := subscriber.SubscribeInitialize(topic); err != nil {
		return err
	}
	last, err := fill(ctx, pool, schema, rows, keys, payload)
	if err != nil {
		return err
	}

	sink := &nowhere{}
	relay, err := forwarder.NewForwarder(subscriber, sink, watermill.NopLogger{}, forwarder.Config{ForwarderTopic: topic})
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	started := time.Now()
	go func() { ended <- relay.Run(ctx) }()
	if err := settled(ctx, pool, sink, int64(rows), last, ended); err != nil {
		return err
	}
	seconds := time.Since(started).Seconds()
	if err := relay.Close(); err != nil {
		return err
	}
	return report(ctx, pool, sink.sent.Load(), seconds)
}

// fill returns the offset of the last message.
func fill(ctx context.Context, pool *pgxpool.Pool, schema sql.DefaultPostgreSQLSchema, rows, keys, payload int) (int64, error) {
	table, err := sql.NewPublisher(sql.BeginnerFromPgx(pool), sql.PublisherConfig{SchemaAdapter: schema}, watermill.NopLogger{})
	if err != nil {
		return 0, err
	}
	outbox := forwarder.NewPublisher(table, forwarder.PublisherConfig{ForwarderTopic: topic})
	noise := noiseOf(period + payload - 2)
	for begin := 0; begin < rows; begin += transaction {
		var messages []*message.Message
		for row := begin; row < min(begin+transaction, rows); row++ {
			next := message.NewMessage(watermill.NewUUID(), payloadOf(noise, row, payload-2))
			next.Metadata.Set("key", fmt.Sprintf("k%d", row%keys))
			messages = append(messages, next)
		}
		if err := outbox.Publish("bench", messages...); err != nil {
			return 0, err
		}
	}
	var last int64
	err = pool.QueryRow(ctx, `SELECT max("offset") FROM watermill_outbox`).Scan(&last)
	return last, err
}

// noiseOf returns at least so many characters: Base64 of SHA-256 of 0, 1 and so on. The other programs make the same.
func noiseOf(size int) string {
	var digests []byte
	for number := 0; number <= size/32; number++ {
		digest := sha256.Sum256([]byte(strconv.Itoa(number)))
		digests = append(digests, digest[:]...)
	}
	return base64.StdEncoding.EncodeToString(digests)
}

// payloadOf returns a JSON string with room for so many characters: other ones in each row, those behind the row before.
func payloadOf(noise string, row, room int) []byte {
	begin := row * room % period
	return []byte(`"` + noise[begin:begin+room] + `"`)
}

// acked is up to which offset the forwarder has committed.
func acked(ctx context.Context, pool *pgxpool.Pool) (offset int64, err error) {
	err = pool.QueryRow(ctx, "SELECT coalesce(max(offset_acked), 0) FROM watermill_offsets_outbox").Scan(&offset)
	return offset, err
}

// settled returns when everything was sent and committed.
func settled(ctx context.Context, pool *pgxpool.Pool, sink *nowhere, rows, last int64, ended <-chan error) error {
	for {
		select {
		case err := <-ended:
			return fmt.Errorf("the forwarder ended early: %v", err)
		case <-time.After(2 * time.Millisecond):
		}
		if sink.sent.Load() < rows {
			continue
		}
		if offset, err := acked(ctx, pool); err != nil || offset >= last {
			return err
		}
	}
}

func report(ctx context.Context, pool *pgxpool.Pool, sent int64, seconds float64) error {
	var count int64
	offset, err := acked(ctx, pool)
	if err != nil {
		return err
	}
	if err := pool.QueryRow(ctx, `SELECT count(*) FROM watermill_outbox WHERE "offset" <= $1`, offset).Scan(&count); err != nil {
		return err
	}
	var server string
	if err := pool.QueryRow(ctx, "SHOW server_version").Scan(&server); err != nil {
		return err
	}
	versions := map[string]string{"PostgreSQL (Watermill)": server}
	if build, ok := debug.ReadBuildInfo(); ok {
		versions["Go"] = strings.TrimPrefix(build.GoVersion, "go")
		for _, module := range build.Deps {
			if name, ok := strings.CutPrefix(module.Path, "github.com/ThreeDotsLabs/"); ok {
				versions[name] = module.Version
			}
		}
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"sent": sent, "settled": count, "seconds": seconds, "versions": versions,
	})
}
