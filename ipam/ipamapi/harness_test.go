// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/ledger"
)

func pfx(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func ip(s string) netip.Addr    { return netip.MustParseAddr(s) }

// host is a HostView.
type host []netip.Prefix

func (h *host) Networks() []netip.Prefix { return *h }

// flaky is Records that fail as told: the next commits, one fault each.
type flaky struct {
	*ipamapi.MemoryRecords
	mu   sync.Mutex
	next []journal.Fault
}

func (f *flaky) Commit(ctx context.Context, put map[string][]byte, del []string) error {
	f.mu.Lock()
	fault := journal.None
	if len(f.next) > 0 {
		fault, f.next = f.next[0], f.next[1:]
	}
	f.mu.Unlock()
	if fault == journal.Fail {
		return journal.ErrInjected
	}
	if err := f.MemoryRecords.Commit(ctx, put, del); err != nil {
		return err
	}
	if fault == journal.Tear {
		return journal.ErrInjected
	}
	return nil
}

func (f *flaky) keys() (all []string) {
	_ = f.Load(context.Background(), func(key string, _ []byte) error { all = append(all, key); return nil })
	return all
}

// world is a driver with all that it stands on.
type world struct {
	*ipamapi.Driver
	g       Gomega
	ledger  *ledger.Ledger
	journal ledger.Journal
	records *flaky
	host    *host
	config  ipamapi.Config
	engine  *engine // nil: none
}

// newWorld returns a driver on a ledger with the journal j, or with the null journal if j is nil.
func newWorld(g Gomega, j ledger.Journal, config ipamapi.Config) *world {
	if j == nil {
		j = ledger.NullJournal{}
	}
	w := &world{g: g, journal: j, records: &flaky{MemoryRecords: ipamapi.NewMemoryRecords()}, host: &host{}, config: config}
	w.restart()
	return w
}

// restart begins a new process on what is durable.
func (w *world) restart() {
	l, err := ledger.Open(context.Background(), w.journal, ledger.Options{})
	w.g.ExpectWithOffset(1, err).NotTo(HaveOccurred())
	w.ledger = l
	w.g.ExpectWithOffset(1, w.begin()).To(Succeed())
}

func (w *world) begin() (err error) {
	deps := ipamapi.Deps{Ledger: w.ledger, Records: w.records, Host: w.host, Config: w.config}
	if w.engine != nil {
		deps.Engine = ipamapi.Engine{Reader: w.engine, Name: "cadastre"}
	}
	w.Driver, err = ipamapi.New(context.Background(), deps)
	return err
}

// forget loses the records.
func (w *world) forget() { w.records.MemoryRecords = ipamapi.NewMemoryRecords() }

func (w *world) request(prefix, sub string, pairs ...string) (string, error) {
	p, err := w.RequestPool(ipamapi.PoolRequest{AddressSpace: "LocalDefault", Pool: prefix, SubPool: sub, Options: options(pairs...)})
	return p.PoolID, err
}

func (w *world) pool(prefix, sub string, pairs ...string) string {
	id, err := w.request(prefix, sub, pairs...)
	w.g.ExpectWithOffset(1, err).NotTo(HaveOccurred())
	return id
}

func (w *world) ask(pool, addr string, pairs ...string) (string, error) {
	n, _, err := w.RequestAddress(pool, net.ParseIP(addr), options(pairs...))
	if err != nil {
		return "", err
	}
	return n.String(), nil
}

func (w *world) get(pool, addr string, pairs ...string) string {
	a, err := w.ask(pool, addr, pairs...)
	w.g.ExpectWithOffset(1, err).NotTo(HaveOccurred())
	return a
}

func (w *world) free(pool, addr string) {
	w.g.ExpectWithOffset(1, w.ReleaseAddress(pool, net.ParseIP(addr))).To(Succeed())
}

func options(pairs ...string) map[string]string {
	all := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		all[pairs[i]] = pairs[i+1]
	}
	return all
}

// pools are all pools in one line: ID and how often it is requested.
func (w *world) pools() string {
	var all []string
	for _, p := range w.Pools() {
		all = append(all, fmt.Sprintf("%s*%d", p.ID, p.Requests))
	}
	return strings.Join(all, " ")
}

// leases are all leases in one line.
func (w *world) leases() string {
	var all []string
	for _, l := range w.ledger.Leases() {
		all = append(all, fmt.Sprintf("%s:%s:%s:%s:%s", l.Addr, l.Pool, l.State, l.Purpose, l.Key))
	}
	return strings.Join(all, " ")
}

// check says what does not fit in the ledger.
func (w *world) check() error {
	findings, err := w.ledger.Check(context.Background())
	if len(findings) > 0 {
		err = errors.Join(err, errors.New(strings.Join(findings, "; ")))
	}
	return err
}

func has(class string, err error) bool {
	switch class {
	case "InvalidParameter":
		var x interface{ InvalidParameter() }
		return errors.As(err, &x)
	case "Forbidden":
		var x interface{ Forbidden() }
		return errors.As(err, &x)
	case "Unavailable":
		var x interface{ Unavailable() }
		return errors.As(err, &x)
	}
	var x interface{ NotFound() }
	return errors.As(err, &x)
}

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, s := range texts {
		all = append(all, pfx(s))
	}
	return all
}
