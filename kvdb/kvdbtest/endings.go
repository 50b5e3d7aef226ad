// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kvdbtest

import (
	"context"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/kvdb"
)

func endingChecks() []Check {
	return []Check{
		{"end a watch with its context", watchEndsWithContext},
		{"end a watch with its Close", watchEndsWithClose},
		{"end all watches with the store", watchEndsWithStore},
		{"answer nothing after Close", closed},
		{"heed the context", heedContext},
	}
}

func watchEndsWithContext(x *suite) {
	ctx, cancel := context.WithCancel(x.ctx)
	defer cancel()
	idle, unread, open := x.watchWith(ctx, "", 0), x.watchWith(ctx, "", 0), x.watch("", 0)
	rev := x.put("a", "1")
	x.expectNext(idle, stored("a", "1", rev))
	cancel()
	rest, err := x.end(idle)
	x.Expect(err).NotTo(HaveOccurred())
	x.Expect(rest).To(BeEmpty())
	rest, err = x.end(unread)
	x.Expect(err).NotTo(HaveOccurred())
	x.Expect(len(rest)).To(BeNumerically("<=", 1))
	x.expectNext(open, stored("a", "1", rev))
}

func watchEndsWithClose(x *suite) {
	w, other := x.watch("", 0), x.watch("", 0)
	rev := x.put("a", "1")
	w.Close()
	w.Close()
	rest, err := x.end(w)
	x.Expect(err).NotTo(HaveOccurred())
	x.Expect(len(rest)).To(BeNumerically("<=", 1))
	x.expectNext(other, stored("a", "1", rev))
}

func watchEndsWithStore(x *suite) {
	idle, unread, closed := x.watch("b", 0), x.watch("a", 0), x.watch("", 0)
	closed.Close()
	x.put("a", "1")
	x.Expect(x.store.Close()).To(Succeed())
	for _, w := range []kvdb.Watcher{idle, unread} {
		_, err := x.end(w)
		x.Expect(err).To(MatchError(kvdb.ErrClosed))
	}
	_, err := x.end(closed)
	x.Expect(err).NotTo(HaveOccurred(), "it had ended before")
}

func closed(x *suite) {
	rev := x.put("a", "1")
	x.Expect(x.store.Close()).To(Succeed())
	_, _, err := x.store.Get(x.ctx, "a")
	x.Expect(err).To(MatchError(kvdb.ErrClosed), "Get")
	_, _, err = x.store.List(x.ctx, "")
	x.Expect(err).To(MatchError(kvdb.ErrClosed), "List")
	x.Expect(x.try(nil, puts("a=2")...)).To(MatchError(kvdb.ErrClosed), "Txn")
	x.Expect(x.try(nil)).To(MatchError(kvdb.ErrClosed), "Txn without operations")
	for _, from := range []int64{0, rev, rev + 1} {
		_, err = x.store.Watch(x.ctx, "", from)
		x.Expect(err).To(MatchError(kvdb.ErrClosed), "Watch from %d", from)
	}
	x.Expect(x.store.Close()).To(Succeed(), "a second time")
}

func heedContext(x *suite) {
	rev := x.put("a", "1")
	ctx, cancel := context.WithCancel(x.ctx)
	cancel()
	_, _, err := x.store.Get(ctx, "a")
	x.Expect(err).To(MatchError(context.Canceled), "Get")
	_, _, err = x.store.List(ctx, "")
	x.Expect(err).To(MatchError(context.Canceled), "List")
	_, err = x.store.Txn(ctx, nil, puts("b=1"))
	x.Expect(err).To(MatchError(context.Canceled), "Txn")
	// A watch may fail, or be one that has ended.
	if w, err := x.store.Watch(ctx, "", rev); err != nil {
		x.Expect(err).To(MatchError(context.Canceled), "Watch")
	} else {
		_, err = x.end(w)
		x.Expect(err).NotTo(HaveOccurred(), "Watch")
	}
	x.put("a", "2")
	x.expectStored("a", "a=2")
}
