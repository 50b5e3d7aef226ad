// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/cadastre/cadastre/ledger"
)

// A pool with one block. The NullJournal stores nothing; with the journal of
// kvdb/bolt the lease is on the disk when Claim returns.
func Example() {
	ctx := context.Background()
	l, err := ledger.Open(ctx, ledger.NullJournal{}, ledger.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := openPool(ctx, l); err != nil {
		fmt.Println(err)
		return
	}
	key := ledger.Key{Network: "pods", ContainerID: "4f1d", IfName: "eth0"}
	pod := ledger.Pod{Namespace: "default", Name: "web-0"}
	leases, _, err := l.Claim(ctx, ledger.Request{Pool: "default", Key: key, Pod: pod})
	if err != nil {
		fmt.Println(err)
		return
	}
	released, err := l.Release(ctx, ledger.Selector{Key: key})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(leases[0].Prefix(), leases[0].State, "by", leases[0].Pod, "then", len(released), "released")
	// Output: 10.1.5.1/24 held by default/web-0 then 1 released
}

func openPool(ctx context.Context, l *ledger.Ledger) error {
	st := l.Begin()
	if err := st.SetPool(ledger.Pool{Name: "default", CoolDown: time.Minute, ReserveEdges: true}); err != nil {
		return err
	}
	if err := st.SetBlocks("default", []netip.Prefix{netip.MustParsePrefix("10.1.5.0/24")}); err != nil {
		return err
	}
	return st.Commit(ctx)
}
