// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package attack counts what tests try against the promises of the agent.
//
// A test names the kind of its attack and counts each try. If FileEnv names a
// file, the count and the outcome of the test are appended to it as one JSON
// line each; if it is unset, nothing is written. Command reliability reads those
// lines and writes docs/reliability.md. A Tally may be used by many goroutines,
// a file by many processes.
package attack

import (
	"encoding/json"
	"os"
	"sync"
	"sync/atomic"
	"testing"
)

// FileEnv is the environment variable that names the file for the records.
const FileEnv = "CADASTRE_ATTACKS"

// Outcome says how far a test came.
type Outcome string

// Outcomes of a test. A test that only has Began did not end in good order.
const (
	Began   Outcome = "began"
	Passed  Outcome = "passed"
	Failed  Outcome = "failed"
	Skipped Outcome = "skipped"
)

// Record is one line of the file.
type Record struct {
	Kind    Kind    `json:"kind"`
	Test    string  `json:"test"`
	Outcome Outcome `json:"outcome"`
	Count   int64   `json:"count,omitempty"`
	// Excepted counts what the tests found and no promise covers, by its reason.
	Excepted map[string]int `json:"excepted,omitempty"`
}

// Tally counts the tries of one test.
type Tally struct {
	count atomic.Int64
	path  string

	mu       sync.Mutex
	excepted map[string]int
}

// Begin records that t begins an attack, and at the end of t its count and outcome.
func Begin(t testing.TB, kind Kind) *Tally {
	t.Helper()
	c := &Tally{path: os.Getenv(FileEnv)}
	if c.path == "" {
		return c
	}
	c.write(t, Record{Kind: kind, Test: t.Name(), Outcome: Began})
	t.Cleanup(func() {
		r := Record{Kind: kind, Test: t.Name(), Outcome: Passed, Count: c.count.Load(), Excepted: c.excepted}
		switch {
		case t.Failed():
			r.Outcome = Failed
		case t.Skipped():
			r.Outcome = Skipped
		}
		c.write(t, r)
	})
	return c
}

// Add counts n more tries.
func (c *Tally) Add(n int) { c.count.Add(int64(n)) }

// Except counts n cases in which the test found what a promise forbids, or did not
// look, for a reason that the promise excludes.
func (c *Tally) Except(reason string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.excepted == nil {
		c.excepted = map[string]int{}
	}
	c.excepted[reason] += n
}

// write appends a line with one write, which O_APPEND does not mix with others.
func (c *Tally) write(t testing.TB, r Record) {
	line, err := json.Marshal(r)
	if err != nil {
		t.Errorf("record the attack %s: %v", r.Kind, err)
		return
	}
	f, err := os.OpenFile(c.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		t.Errorf("record the attack %s: %v", r.Kind, err)
		return
	}
	_, err = f.Write(append(line, '\n'))
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		t.Errorf("record the attack %s: %v", r.Kind, err)
	}
}
