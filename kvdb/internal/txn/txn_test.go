// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package txn_test

import (
	"errors"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/internal/txn"
)

func TestNewChecks(t *testing.T) {
	for _, c := range []struct {
		name  string
		conds []kvdb.Cond
		ops   []kvdb.Op
		want  error
	}{
		{"nothing", nil, nil, nil},
		{"one condition twice", []kvdb.Cond{kvdb.Absent("a"), kvdb.Absent("a")}, nil, nil},
		{"all that is allowed", make([]kvdb.Cond, 0), []kvdb.Op{kvdb.Put("b", nil), kvdb.Delete("a")}, nil},
		{"empty key", nil, []kvdb.Op{kvdb.Delete("")}, kvdb.ErrKey},
		{"empty key in a condition", []kvdb.Cond{{}}, nil, kvdb.ErrKey},
		{"key twice", nil, []kvdb.Op{kvdb.Put("a", nil), kvdb.Put("b", nil), kvdb.Delete("a")}, kvdb.ErrKey},
		{"too many operations", nil, make([]kvdb.Op, kvdb.MaxOps+1), kvdb.ErrTooManyOps},
		{"too many conditions", make([]kvdb.Cond, kvdb.MaxOps+1), nil, kvdb.ErrTooManyOps},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			_, err := txn.New(c.conds, c.ops)
			if c.want == nil {
				g.Expect(err).NotTo(HaveOccurred())
			} else {
				g.Expect(err).To(MatchError(c.want))
			}
		})
	}
}

func TestEvents(t *testing.T) {
	g := NewWithT(t)
	stored := map[string]int64{"a": 3, "c": 4}
	lookup := func(key string) (int64, error) { return stored[key], nil }

	value := []byte("1")
	ops := []kvdb.Op{kvdb.Delete("c"), kvdb.Delete("b"), kvdb.Put("a", value)}
	conds := []kvdb.Cond{kvdb.AtRevision("a", 3), kvdb.Absent("b")}
	tx, err := txn.New(conds, ops)
	g.Expect(err).NotTo(HaveOccurred())
	value[0], ops[0].Key, conds[0].Key = '2', "x", "x" // all of it was copied

	events, err := tx.Events(5, lookup)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(events).To(Equal([]kvdb.Event{
		{KeyValue: kvdb.KeyValue{Key: "a", Value: []byte("1"), ModRevision: 5}},
		{KeyValue: kvdb.KeyValue{Key: "c", ModRevision: 5}, Deleted: true},
	}))

	stored["b"] = 5
	_, err = tx.Events(6, lookup)
	g.Expect(err).To(MatchError(kvdb.ErrConditions))
}

func TestEventsWithoutLookup(t *testing.T) {
	broken := errors.New("broken")
	lookup := func(string) (int64, error) { return 0, broken }
	for name, c := range map[string]struct {
		conds []kvdb.Cond
		ops   []kvdb.Op
	}{
		"condition": {[]kvdb.Cond{kvdb.Absent("a")}, nil},
		"deletion":  {nil, []kvdb.Op{kvdb.Delete("a")}},
	} {
		g := NewWithT(t)
		tx, err := txn.New(c.conds, c.ops)
		g.Expect(err).NotTo(HaveOccurred())
		_, err = tx.Events(1, lookup)
		g.Expect(err).To(MatchError(broken), name)
	}
}
