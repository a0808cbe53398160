// Package export_outhaul_adapter_publisher sends each message as one HTTP POST to the URL of its configuration. (The generated bindings
// look for a package of this name.)
package export_outhaul_adapter_publisher

import (
	"encoding/json"
	"fmt"
	"net/url"
	"runtime/debug"
	"sort"
	"strconv"
	"strings"
	"time"

	witTypes "go.bytecodealliance.org/pkg/wit/types"

	"wit_component/httppost"
	"wit_component/outhaul"
)

func init() {
	// The collector must not run while the host hands over arguments: a component may not call out then. InKeyOrder runs it.
	debug.SetGCPercent(-1)
}

// What belongs to the connection, or is set here: not the message's to say.
var own = map[string]bool{
	"connection": true, "content-length": true, "expect": true, "host": true, "keep-alive": true, "te": true, "trailer": true,
	"transfer-encoding": true, "upgrade": true, "idempotency-key": true, "outhaul-topic": true, "outhaul-key": true,
	"outhaul-attempt": true, "outhaul-tombstone": true,
}

// Most bytes of a request's headers, each counted as its name, its value and 32 (RFC 9113 section 6.5.2). No server takes more by
// itself than 1 MiB, most take less, and the host stops a component that hands over too much.
const maxHeaderBytes = 256 * 1024

var settings struct {
	url     *url.URL
	timeout time.Duration
}

// parse reads the configuration; the error names the key.
func parse(config string) (*url.URL, time.Duration, error) {
	table := map[string]json.RawMessage{}
	if err := json.Unmarshal([]byte(config), &table); err != nil {
		return nil, 0, err
	}
	for _, key := range sortedKeys(table) {
		if key != "url" && key != "timeout_ms" {
			return nil, 0, fmt.Errorf("`%s`: unknown key; there are `url` and `timeout_ms`", key)
		}
	}
	var text string
	var target *url.URL
	err := json.Unmarshal(table["url"], &text)
	if err == nil {
		target, err = url.Parse(text)
	}
	if err != nil || (target.Scheme != "http" && target.Scheme != "https") || target.Host == "" || target.User != nil || strings.Contains(text, "#") {
		return nil, 0, fmt.Errorf("`url`: must be an absolute http:// or https:// URL without user name or fragment")
	}
	timeoutMs := int64(10_000)
	if raw, isSet := table["timeout_ms"]; isSet {
		if err := json.Unmarshal(raw, &timeoutMs); err != nil || timeoutMs < 1 || timeoutMs > 600_000 {
			return nil, 0, fmt.Errorf("`timeout_ms`: must be a whole number of milliseconds from 1 to 600000")
		}
	}
	return target, time.Duration(timeoutMs) * time.Millisecond, nil
}

func sortedKeys(table map[string]json.RawMessage) []string {
	keys := make([]string, 0, len(table))
	for key := range table {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}

// Open is called once for each instance, before anything else.
func Open(config string) witTypes.Result[witTypes.Unit, outhaul.Failure] {
	target, timeout, err := parse(config)
	if err != nil {
		return witTypes.Err[witTypes.Unit](outhaul.NewFailure(outhaul.InvalidConfiguration, err.Error()))
	}
	settings.url, settings.timeout = target, timeout
	outhaul.Info("http-go is open", "destination", target.Host)
	return witTypes.Ok[witTypes.Unit, outhaul.Failure](witTypes.Unit{})
}

// Publish sends a batch.
func Publish(batch outhaul.Batch, deadlineMs uint64) []outhaul.Outcome {
	publish := send
	if batch.Destinations.IsSome() {
		publish = refuse
	}
	outcomes := outhaul.InKeyOrder(&batch, deadlineMs, publish)
	open := 0
	for _, outcome := range outcomes {
		if !outhaul.IsDelivered(outcome) {
			open++
		}
	}
	if open > 0 {
		outhaul.Warn("not all messages were delivered", "messages", strconv.Itoa(len(outcomes)), "open", strconv.Itoa(open))
	}
	return outcomes
}

// A delivery of a fan-out has an address of its own: the configured one would be the wrong place.
func refuse(outhaul.Message, time.Duration) outhaul.Outcome {
	const detail = "this publisher sends to its own `url` only, not to the destinations of a fan-out"
	return outhaul.Retry(outhaul.NewFailure(outhaul.InvalidConfiguration, detail))
}

func send(message outhaul.Message, left time.Duration) outhaul.Outcome {
	headers, size := headersOf(message), 0
	for _, header := range headers {
		size += len(header.Name) + len(header.Value) + 32
	}
	if size > maxHeaderBytes {
		return outhaul.Reject(outhaul.NewFailure(outhaul.TooLarge, fmt.Sprintf("the headers are over %d KiB", maxHeaderBytes/1024)))
	}
	answer, outcome := httppost.Post(settings.url, headers, message.Payload(), min(settings.timeout, left))
	if outcome != nil {
		return *outcome
	}
	return outhaul.OutcomeOf(answer.Status, answer.RetryAfter, answer.HasRetryAfter, settings.url.Host)
}

func headersOf(message outhaul.Message) []outhaul.Header {
	text := func(name, value string) outhaul.Header { return outhaul.Header{Name: name, Value: []byte(value)} }
	headers := []outhaul.Header{text("idempotency-key", message.ID()), text("outhaul-topic", escape(message.Topic()))}
	if key, isKeyed := message.Key(); isKeyed {
		headers = append(headers, text("outhaul-key", escape(key)))
	}
	headers = append(headers, text("outhaul-attempt", strconv.FormatUint(uint64(message.Attempts()), 10)))
	if message.Payload() == nil {
		headers = append(headers, text("outhaul-tombstone", "true"))
	}
	hasType := false
	for _, header := range message.Headers() {
		if name := strings.ToLower(header.Name); !own[name] {
			headers = append(headers, header)
			hasType = hasType || name == "content-type"
		}
	}
	if !hasType {
		headers = append(headers, text("content-type", "application/octet-stream"))
	}
	return headers
}

// escape is percent-encoding of all but letters, digits and `-._~`.
func escape(text string) string { return strings.ReplaceAll(url.QueryEscape(text), "+", "%20") }
