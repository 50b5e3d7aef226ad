// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package awsdatastore

import (
	"runtime"
	"testing"
	"time"

	"github.com/cadastre/cadastre/test/peers/workload"
)

// churn assigns an address to a new sandbox and takes that of the oldest back,
// again and again.
type churn struct {
	name string
	node node
	held []int // sandboxes, the oldest first
	last int   // the next new one
}

// newChurn is of a node that sandboxes 0 to n-1 have addresses of.
func newChurn(name string, s node, n int) *churn {
	c := &churn{name: name, node: s, last: n}
	for i := range n {
		c.held = append(c.held, i)
	}
	return c
}

// batch makes n pairs and says how long the store took.
func (c *churn) batch(n int) (time.Duration, error) {
	young, old := make([]sandbox, n), make([]sandbox, n)
	for i := range n {
		c.held = append(c.held, c.last+i)
		young[i], old[i] = sandboxOf(c.last+i), sandboxOf(c.held[i])
	}
	c.held, c.last = c.held[n:], c.last+n
	began := time.Now()
	for i := range n {
		if err := c.node.assign(young[i]); err != nil {
			return 0, err
		}
		if err := c.node.unassign(old[i]); err != nil {
			return 0, err
		}
	}
	return time.Since(began), nil
}

// turn is one round of turns: so many pairs of one store, timed at once.
type turn struct {
	pairs  int
	rounds int // of an iteration of the benchmark: what waits for a disk needs many
}

// turns runs one store after the other, and reports the times of each, a pair.
func turns(b *testing.B, t turn, all ...*churn) {
	took := make([][]time.Duration, len(all))
	runtime.GC()
	for round := 0; b.Loop(); {
		for range t.rounds {
			if round++; round%256 == 0 {
				runtime.GC() // the published file is left open for the finalizer to close
			}
			for i, c := range all {
				d, err := c.batch(t.pairs)
				if err != nil {
					b.Fatalf("%s: %v", c.name, err)
				}
				took[i] = append(took[i], d)
			}
		}
	}
	b.ReportMetric(0, "ns/op")
	for i, c := range all {
		workload.ReportTimes(b, c.name, took[i], t.pairs)
	}
}
