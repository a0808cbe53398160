// Package kv keeps the contract over a table of names and values: every message is one JSON text under `live/`, `done/` or `dead/` and
// its number. A claim reads the live messages from the first on, so it is for tables of thousands, not of millions.
package kv

import (
	"encoding/json"
	"fmt"
	"iter"
	"math"

	"wit_component/outhaul"
)

// Names read at once.
const page = 500

// Entry is a name and its value.
type Entry struct{ Name, Value string }

// Table is what a call reads, as of the call's beginning.
type Table interface {
	// Range is at most so many entries between two names, both excluded, in the order of the names.
	Range(after, before string, limit int) ([]Entry, *outhaul.Failure)
	// Get is a value; false: there is none.
	Get(name string) (string, bool, *outhaul.Failure)
}

// Call is one call of the host, and one transaction.
type Call struct {
	// Now is when it began, in milliseconds of the database's clock, which alone judges what is due.
	Now int64
	// Writes are to be written at its end, all or none; nil: deleted.
	Writes map[string]*string
	// Failure of the call: nothing is to be written.
	Failure *outhaul.Failure
	table   Table
}

// NewCall begins a call.
func NewCall(table Table, now int64) *Call {
	return &Call{Now: now, Writes: map[string]*string{}, table: table}
}

func text(format string, values ...any) string { return fmt.Sprintf(format, values...) }

// fail ends the call, if it has not failed before.
func (c *Call) fail(failure *outhaul.Failure) {
	if c.Failure == nil {
		c.Failure = failure
	}
}

// rows are those below a prefix, behind a number, as this call has written them, in the order of their numbers.
func (c *Call) rows(prefix, after string) iter.Seq2[string, *Row] {
	return func(yield func(string, *Row) bool) {
		// `0` is the character behind `/`.
		last, end := prefix+"/"+after, prefix+"0"
		for count := page; count == page && c.Failure == nil; {
			entries, failure := c.table.Range(last, end, page)
			if failure != nil {
				c.fail(failure)
				return
			}
			count = len(entries)
			for _, entry := range entries {
				last = entry.Name
				value := &entry.Value
				if written, isWritten := c.Writes[entry.Name]; isWritten {
					value = written
				}
				if value == nil {
					continue
				}
				if row := c.parse(entry.Name, *value); row == nil || !yield(entry.Name, row) {
					return
				}
			}
		}
	}
}

// parse reads a row; nil: the call has failed.
func (c *Call) parse(name, value string) *Row {
	row := &Row{}
	if err := json.Unmarshal([]byte(value), row); err != nil {
		failure := outhaul.NewFailure("integrity", text("what stands under `%s` is no message: %v", name, err))
		c.fail(&failure)
		return nil
	}
	return row
}

// get is a value, as this call has written it.
func (c *Call) get(name string) (string, bool) {
	if value, isWritten := c.Writes[name]; isWritten {
		if value == nil {
			return "", false
		}
		return *value, true
	}
	value, isThere, failure := c.table.Get(name)
	if failure != nil {
		c.fail(failure)
	}
	return value, isThere
}

func (c *Call) has(name string) bool {
	_, isThere := c.get(name)
	return isThere
}

func (c *Call) put(name string, row *Row) {
	value, err := json.Marshal(row)
	if err != nil {
		failure := outhaul.NewFailure(outhaul.InvalidMessage, text("`%s` cannot be written: %v", row.ID, err))
		c.fail(&failure)
		return
	}
	c.putText(name, string(value))
}

func (c *Call) putText(name, value string) { c.Writes[name] = &value }

// move puts a row under another prefix; its number stays.
func (c *Call) move(name, prefix string, row *Row) {
	moved := prefix + "/" + number(name)
	c.Writes[name] = nil
	c.put(moved, row)
	c.putText("id/"+row.ID, moved)
}

func (c *Call) forget(name string, row *Row) {
	c.Writes[name] = nil
	c.Writes["id/"+row.ID] = nil
}

// after is a time so much later; beyond what can be counted, the last that can.
func (c *Call) after(ms uint64) int64 {
	if ms > uint64(math.MaxInt64-c.Now) {
		return math.MaxInt64
	}
	return c.Now + int64(ms)
}
