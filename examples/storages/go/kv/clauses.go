package kv

import (
	"sort"
	"strconv"
	"strings"

	witTypes "go.bytecodealliance.org/pkg/wit/types"

	"wit_component/outhaul"
	"wit_component/outhaul_adapter_storage"
	"wit_component/outhaul_adapter_storage_admin"
)

// Rows that one claim ends dead; the host claims again at once.
const mostRefused = 1000

// Claim takes the first rows that are due, each key's as an unbroken run from its first live row.
func (c *Call) Claim(request outhaul_adapter_storage.ClaimRequest) outhaul_adapter_storage.Claimed {
	blocked := map[string]bool{}
	var chosen []*Row
	var refused []outhaul_adapter_storage.Refusal
	bytes := uint64(0)
	for name, row := range c.rows("live", "") {
		if row.Key != nil && blocked[*row.Key] {
			continue
		}
		if row.isLeased(c.Now) || row.Due > c.Now {
			if row.Key != nil {
				blocked[*row.Key] = true
			}
			continue
		}
		if failure := row.refusal(request); failure != nil {
			row.Worker, row.Error, row.SettledAt = nil, &failure.Detail, c.Now
			c.move(name, "dead", row)
			refused = append(refused, outhaul_adapter_storage.Refusal{Id: row.ID, Failure: *failure})
			if len(refused) == mostRefused {
				return outhaul_adapter_storage.Claimed{Batch: batchOf(chosen), Refused: refused, Unfinished: true}
			}
			continue
		}
		bytes += row.Bytes
		if len(chosen) > 0 && bytes > request.MaxBytes {
			break
		}
		row.Attempts++
		row.Worker, row.LeaseEnd = &request.Worker, c.after(request.LeaseMs)
		c.put(name, row)
		chosen = append(chosen, row)
		if uint32(len(chosen)) == request.Limit {
			break
		}
	}
	return outhaul_adapter_storage.Claimed{Batch: batchOf(chosen), Refused: refused}
}

// eachHeld changes each row that the worker holds, and returns the other ids. A lease that nobody took over is still its holder's.
func (c *Call) eachHeld(worker string, ids outhaul.Column, change func(name string, row *Row)) []string {
	lost := []string{}
	for _, id := range outhaul.Texts(ids) {
		name, _ := c.get("id/" + id)
		var row *Row
		if strings.HasPrefix(name, "live/") {
			if value, isThere := c.get(name); isThere {
				row = c.parse(name, value)
			}
		}
		if row == nil || row.Worker == nil || *row.Worker != worker {
			lost = append(lost, id)
			continue
		}
		change(name, row)
	}
	return lost
}

// Settle writes verdicts, and returns the ids that the worker does not hold.
func (c *Call) Settle(worker string, settlements []outhaul_adapter_storage.Settlement) []string {
	lost := []string{}
	for _, settlement := range settlements {
		verdict := settlement.Verdict
		lost = append(lost, c.eachHeld(worker, settlement.Ids, func(name string, row *Row) {
			row.Worker = nil
			switch verdict.Tag() {
			case outhaul_adapter_storage.VerdictDelivered:
				row.SettledAt = c.Now
				c.move(name, "done", row)
			case outhaul_adapter_storage.VerdictDead:
				detail := verdict.Dead().Detail
				row.SettledAt, row.Error = c.Now, &detail
				c.move(name, "dead", row)
			case outhaul_adapter_storage.VerdictRetry:
				detail := verdict.Retry().Failure.Detail
				row.Due, row.Error = c.after(verdict.Retry().DelayMs), &detail
				c.put(name, row)
			case outhaul_adapter_storage.VerdictRelease:
				row.Due = c.after(verdict.Release())
				row.Attempts--
				c.put(name, row)
			}
		})...)
	}
	return lost
}

// Extend renews leases, and returns the ids that the worker does not hold.
func (c *Call) Extend(worker string, ids outhaul.Column, leaseMs uint64) []string {
	return c.eachHeld(worker, ids, func(name string, row *Row) {
		row.LeaseEnd = c.after(leaseMs)
		c.put(name, row)
	})
}

// Stats counts.
func (c *Call) Stats() outhaul_adapter_storage.Counts {
	counts := outhaul_adapter_storage.Counts{}
	for range c.rows("dead", "") {
		counts.Dead++
	}
	oldest := int64(0)
	for _, row := range c.rows("live", "") {
		counts.Pending++
		if row.isLeased(c.Now) {
			counts.Leased++
		} else if row.Due <= c.Now {
			counts.Due++
		}
		oldest = max(oldest, c.Now-row.CreatedAt)
	}
	if counts.Pending > 0 {
		counts.OldestPendingMs = witTypes.Some(uint64(oldest))
	}
	return counts
}

// Enqueue inserts messages, and returns their ids.
func (c *Call) Enqueue(batch *outhaul.Batch) []string {
	next := uint64(1)
	if value, isThere := c.get("next"); isThere {
		next, _ = strconv.ParseUint(value, 10, 64)
	}
	ids := []string{}
	for _, message := range outhaul.Messages(batch) {
		id := message.ID()
		if id == "" {
			// A number that was given as an id is passed over.
			for c.has(text("id/%d", next)) {
				next++
			}
			id = text("%d", next)
		}
		if c.has("id/" + id) {
			failure := outhaul.NewFailure(outhaul.InvalidMessage, text("the id `%s` is taken", id))
			c.fail(&failure)
			return ids
		}
		name := text("live/%016d", next)
		c.put(name, newRow(id, message, c.Now))
		c.putText("id/"+id, name)
		ids = append(ids, id)
		next++
	}
	c.putText("next", text("%d", next))
	return ids
}

// Browse shows rows in the order of insertion.
func (c *Call) Browse(filter outhaul_adapter_storage_admin.Filter, after string, limit uint32, withMessages bool) outhaul_adapter_storage_admin.Page {
	all := []found{}
	for _, prefix := range []string{"live", "done", "dead"} {
		taken := uint32(0)
		for name, row := range c.rows(prefix, after) {
			its := found{number(name), row, c.state(prefix, row)}
			if its.matches(&filter) {
				all = append(all, its)
				// One more than asked for tells whether there is a next page.
				if taken++; taken > limit {
					break
				}
			}
		}
	}
	sort.Slice(all, func(a, b int) bool { return all[a].number < all[b].number })
	page := outhaul_adapter_storage_admin.Page{}
	if uint32(len(all)) > limit {
		all = all[:limit]
		page.Next = witTypes.Some(all[limit-1].number)
	}
	var rows []*Row
	for _, its := range all {
		page.Rows = append(page.Rows, its.shown(c.Now))
		rows = append(rows, its.row)
	}
	if withMessages {
		page.Messages = witTypes.Some(batchOf(rows))
	}
	return page
}

func (c *Call) state(prefix string, row *Row) outhaul_adapter_storage_admin.RowState {
	switch {
	case prefix == "done":
		return outhaul_adapter_storage_admin.RowStateDelivered
	case prefix == "dead":
		return outhaul_adapter_storage_admin.RowStateDead
	case row.isLeased(c.Now):
		return outhaul_adapter_storage_admin.RowStateLeased
	}
	return outhaul_adapter_storage_admin.RowStatePending
}

// eachDead changes dead rows that match, and counts them; rows in other states are left alone, whatever the filter says.
func (c *Call) eachDead(filter outhaul_adapter_storage_admin.Filter, change func(name string, row *Row)) uint64 {
	count := uint64(0)
	for name, row := range c.rows("dead", "") {
		if (found{row: row, state: outhaul_adapter_storage_admin.RowStateDead}).matches(&filter) {
			change(name, row)
			count++
		}
	}
	return count
}

// Requeue makes dead rows pending again.
func (c *Call) Requeue(filter outhaul_adapter_storage_admin.Filter) uint64 {
	return c.eachDead(filter, func(name string, row *Row) {
		row.Attempts, row.Due, row.SettledAt = 0, c.Now, 0
		c.move(name, "live", row)
	})
}

// Discard deletes dead rows.
func (c *Call) Discard(filter outhaul_adapter_storage_admin.Filter) uint64 {
	return c.eachDead(filter, c.forget)
}

// Purge deletes delivered rows that were settled so long ago.
func (c *Call) Purge(olderThanMs uint64, limit uint32) uint64 {
	count := uint32(0)
	for name, row := range c.rows("done", "") {
		if count == limit {
			break
		}
		if uint64(max(c.Now-row.SettledAt, 0)) >= olderThanMs {
			c.forget(name, row)
			count++
		}
	}
	return uint64(count)
}
