// Package httppost is one HTTP POST by wasi:http, as a function that blocks.
package httppost

import (
	"net/url"
	"strconv"
	"time"

	witTypes "go.bytecodealliance.org/pkg/wit/types"

	"wit_component/outhaul"
	"wit_component/wasi_http_outgoing_handler"
	"wit_component/wasi_http_types"
)

// A blocking write of wasi:io takes so many bytes.
const chunk = 4096

// Answer is what is asked of a response.
type Answer struct {
	Status        uint16
	RetryAfter    time.Duration
	HasRetryAfter bool
}

// Post sends a body. Without an answer, the second result is what that means for the message.
func Post(target *url.URL, headers []outhaul.Header, body []byte, timeout time.Duration) (Answer, *outhaul.Outcome) {
	entries := make([]witTypes.Tuple2[string, []uint8], 0, len(headers))
	for _, header := range headers {
		entries = append(entries, witTypes.Tuple2[string, []uint8]{F0: header.Name, F1: header.Value})
	}
	fields := wasi_http_types.FieldsFromList(entries)
	if fields.IsErr() {
		return nothing(outhaul.Reject(outhaul.NewFailure(outhaul.InvalidMessage, "a header cannot be sent")))
	}
	request := wasi_http_types.MakeOutgoingRequest(fields.Ok())
	request.SetMethod(wasi_http_types.MakeMethodPost())
	scheme := wasi_http_types.MakeSchemeHttp()
	if target.Scheme == "https" {
		scheme = wasi_http_types.MakeSchemeHttps()
	}
	request.SetScheme(witTypes.Some(scheme))
	request.SetAuthority(witTypes.Some(target.Host))
	request.SetPathWithQuery(witTypes.Some(target.RequestURI()))
	outgoing := request.Body().Ok()
	options := wasi_http_types.MakeRequestOptions()
	limit := witTypes.Some(uint64(timeout.Nanoseconds()))
	options.SetConnectTimeout(limit)
	options.SetFirstByteTimeout(limit)

	handled := wasi_http_outgoing_handler.Handle(request, witTypes.Some(options))
	if handled.IsErr() {
		outgoing.Drop()
		return nothing(noAnswer(handled.Err(), target.Host))
	}
	waiting := handled.Ok()
	defer waiting.Drop()
	// What goes wrong while writing shows in the answer, or in there being none.
	if stream := outgoing.Write(); stream.IsOk() {
		for len(body) > 0 {
			part := body[:min(chunk, len(body))]
			if written := stream.Ok().BlockingWriteAndFlush(part); written.IsErr() {
				break
			}
			body = body[len(part):]
		}
		stream.Ok().Drop()
	}
	wasi_http_types.OutgoingBodyFinish(outgoing, witTypes.None[*wasi_http_types.Fields]())
	pollable := waiting.Subscribe()
	pollable.Block()
	pollable.Drop()
	result := waiting.Get()
	if result.IsNone() || result.Some().IsErr() {
		return nothing(outhaul.Retry(outhaul.NewFailure(outhaul.Network, target.Host+": the answer was taken already")))
	}
	answered := result.Some().Ok()
	if answered.IsErr() {
		return nothing(noAnswer(answered.Err(), target.Host))
	}
	response := answered.Ok()
	defer response.Drop()
	found := response.Headers()
	defer found.Drop()
	answer := Answer{Status: response.Status()}
	if values := found.Get("retry-after"); len(values) > 0 {
		// Seconds; the form with a date is left out here, and counts as absent.
		if seconds, err := strconv.ParseUint(string(values[0]), 10, 32); err == nil {
			answer.RetryAfter, answer.HasRetryAfter = time.Duration(seconds)*time.Second, true
		}
	}
	return answer, nil
}

func nothing(outcome outhaul.Outcome) (Answer, *outhaul.Outcome) { return Answer{}, &outcome }

func noAnswer(code wasi_http_types.ErrorCode, where string) outhaul.Outcome {
	word, what := outhaul.Network, "not reached, or the connection broke"
	switch code.Tag() {
	case wasi_http_types.ErrorCodeHttpRequestDenied, wasi_http_types.ErrorCodeDestinationIpProhibited:
		word, what = outhaul.InvalidConfiguration, "the host does not allow this request; its log has the line to add"
	case wasi_http_types.ErrorCodeDnsTimeout, wasi_http_types.ErrorCodeConnectionTimeout, wasi_http_types.ErrorCodeConnectionReadTimeout,
		wasi_http_types.ErrorCodeConnectionWriteTimeout, wasi_http_types.ErrorCodeHttpResponseTimeout:
		word, what = outhaul.Timeout, "no answer in time"
	}
	return outhaul.Retry(outhaul.NewFailure(word, where+": "+what))
}
