// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package kvdbtest is the contract of package kvdb in executable form.
//
// Run examines a store for real; a Check examines one rule and answers an
// error, so that a test may also show that a broken store is found out. A
// check owns the store it is given and closes it. It may be called from any
// goroutine, checks of different stores at the same time too, unless these
// share one revision counter. After a failed check the store is closed, as far
// as it can be, and nothing else is left behind.
//
// A store to be checked is empty, and no other program raises its revision while a
// check runs. What the store did before is of no concern, so a fresh prefix of a
// cluster's etcd will do. It must keep the last 500 transactions for watches.
//
// If the contract leaves room, the suite holds all stores to the behaviour of etcd.
// Deleting a key that is not stored changes nothing, and a transaction that changes
// nothing takes no revision. Of conditions there may be as many as of operations,
// MaxOps. A batch of a watch is exactly one transaction.
package kvdbtest

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/onsi/gomega"

	"github.com/cadastre/cadastre/kvdb"
)

// patience limits the time of one check with a store that answers.
const patience = 60 * time.Second

// Check is one rule of the contract.
type Check struct {
	Name string
	run  func(x *suite)
}

// Checks are all rules of the contract.
func Checks() []Check {
	return slices.Concat(
		readChecks(), transactionChecks(), conditionChecks(),
		watchChecks(), endingChecks(), raceChecks(), modelChecks(),
	)
}

// Run holds the stores that open answers, each of them empty, to the contract.
func Run(t *testing.T, open func(t *testing.T) kvdb.Store) {
	t.Helper()
	for _, check := range Checks() {
		t.Run(check.Name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if err := check.Verify(ctx, open(t)); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// Verify tells how store breaks the rule; nil if it does not. It takes no
// longer than ctx, if the store heeds that, and closes store.
func (c Check) Verify(ctx context.Context, store kvdb.Store) (err error) {
	x := &suite{ctx: ctx, store: store}
	x.Gomega = gomega.NewGomega(func(message string, skip ...int) {
		depth := 1
		if len(skip) > 0 {
			depth += skip[0]
		}
		_, file, line, _ := runtime.Caller(depth)
		panic(finding{fmt.Sprintf("%s:%d: %s", filepath.Base(file), line, message)})
	})
	defer func() {
		if r := recover(); r != nil {
			found, ok := r.(finding)
			if !ok {
				panic(r)
			}
			err = fmt.Errorf("check %s: %s", c.Name, found.text)
		}
	}()
	defer x.cleanUp()
	c.run(x)
	return nil
}

// finding ends a check: gomega wants a failure not to return.
type finding struct{ text string }
