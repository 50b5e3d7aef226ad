// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package etcd is the store of a cluster: what agents, operator and tools have
// in common lives below one prefix of an etcd.
//
// The caller of Open owns the Store and closes it. The etcd is not ours: other programs
// may write to it, below the prefix too, and every transaction
// of theirs raises the revision. Every method may be called from any goroutine.
// All reads are linearizable, all prefixes of a List are of one revision.
//
// Open sends no request: etcd may be away. A call waits for it until its
// context ends, or for RequestTimeout, and then fails with an error that names
// the endpoints. A Get or List that failed has changed nothing. A Txn that
// failed with anything but kvdb.ErrConditions, kvdb.ErrTooManyOps or
// kvdb.ErrKey may have been applied; it is never sent twice. Requests go to all
// members in turns. The Store gives up a connection that has gone silent when data sent
// was not acknowledged within KeepAliveTimeout. Otherwise it does so after ten seconds
// more, which is as soon as gRPC asks. Until then requests that meet it fail.
//
// # Watches
//
// A watch is one stream to one member, and ends with that stream. It ends when the
// connection breaks, and when the member finds no leader for a while. It also ends when
// nothing has come for KeepAlive and the member, asked for a sign of life, has given
// none within KeepAliveTimeout. It is not resumed: between two streams etcd may have
// been wiped or restored, after which a revision means something else. The caller lists
// again and watches from there. A reader that is slow holds up its own stream only.
// Some hundred kilobytes of that are kept here and the rest by etcd. If etcd compacts
// what was not read yet, the watch ends with kvdb.ErrCompacted.
//
// # A store that came back as another one
//
// The Store remembers the cluster ID and the highest revision that it has seen.
// A linearizable answer may have another ID, or a revision below one that was seen
// before the request was sent. Such an answer shows that etcd was wiped, restored from
// a backup or exchanged. All watches that are open then end with ErrReset, what was
// remembered is forgotten, and the answer itself is returned as it is. Most watches
// have ended by then, with their streams; what is left are those of members that were
// not exchanged yet. Probe, called every few seconds, makes sure that this is found
// where there is no other traffic.
//
// An etcd that went back and was written past the old revision before the store
// looked cannot be told from one that never was away by its revision. But it
// cannot do so without ending its connections. So a Watch is refused if it
// continues what was read before a connection was lost and made again. A List whose
// pages are from before and after that starts over. A caller that wants to see changes
// of that time opens another Store. One case remains. The store is exchanged between a
// List and the Watch that continues it, and other calls find it at just the same
// revision, or first below and then above.
package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/cadastre/cadastre/kvdb"
)

// ErrReset ends watches, and a Probe, where the store has another past than
// the one that was known: list again.
var ErrReset = errors.New("etcd: the store came back older or as another one")

// The operations that Config.Observe is told of.
const (
	OpGet   = "get"
	OpList  = "list"
	OpTxn   = "txn"
	OpWatch = "watch" // until it is open
	OpProbe = "probe"
)

// What a Config has where it says nothing.
const (
	defaultRequestTimeout = 5 * time.Second
	defaultKeepAlive      = 3 * time.Second
	defaultPageSize       = 1000
)

// Config tells which store to open.
type Config struct {
	// Endpoints are host:port, or URLs of which all are http or all https.
	Endpoints []string
	// Prefix begins all keys of the store in etcd, as
	// "/cadastre/"; callers never see it. It may be empty.
	Prefix string
	// TLS is used for https, and for endpoints that are not URLs.
	TLS *tls.Config
	// Username and Password are used if both are given.
	Username, Password string
	// Log is told what etcd's client has to say, at level Debug, and at level
	// Warn of a store that came back as another one. Nil is silence.
	Log *slog.Logger
	// RequestTimeout bounds each request; a List may consist of several.
	RequestTimeout time.Duration
	// KeepAlive limits the silence of a watch before its member is asked for a sign of
	// life, KeepAliveTimeout the time until that comes.
	KeepAlive, KeepAliveTimeout time.Duration
	// PageSize is the number of keys that List asks for at a time.
	PageSize int
	// Observe, if not nil, is called after each request that was sent to etcd,
	// or should have been. It must return soon and call nothing of the Store.
	Observe func(op string, took time.Duration, err error)
}

// Store is a kvdb.Store in etcd.
type Store struct {
	cfg     Config
	log     *slog.Logger
	life    context.Context // ends with Close
	end     context.CancelFunc
	dialing chan struct{} // held by the one call that makes the client
	lines   lines
	work    sync.WaitGroup // calls and watches

	mu      sync.Mutex
	etcd    *clientv3.Client // nil until a call needed it and could make it
	closed  bool
	past    past
	watches map[*watcher]struct{}
}

var _ kvdb.Store = (*Store)(nil)

// Open returns a store without asking etcd anything.
func Open(cfg Config) (*Store, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("open store in etcd: %w", err)
	}
	cfg.Endpoints = slices.Clone(cfg.Endpoints)
	cfg.RequestTimeout = orDefault(cfg.RequestTimeout, defaultRequestTimeout)
	cfg.KeepAlive = orDefault(cfg.KeepAlive, defaultKeepAlive)
	cfg.KeepAliveTimeout = orDefault(cfg.KeepAliveTimeout, defaultKeepAlive)
	cfg.PageSize = orDefault(cfg.PageSize, defaultPageSize)
	s := &Store{cfg: cfg, log: cfg.Log, dialing: make(chan struct{}, 1), watches: map[*watcher]struct{}{}}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.life, s.end = context.WithCancel(context.Background())
	return s, nil
}

func (c Config) check() error {
	if len(c.Endpoints) == 0 {
		return errors.New("no endpoints")
	}
	secure := 0
	for _, e := range c.Endpoints {
		scheme, _, isURL := strings.Cut(e, "://")
		switch {
		case e == "":
			return errors.New("an endpoint is empty")
		case isURL && scheme != "http" && scheme != "https":
			return fmt.Errorf("endpoint %s: only http and https are known", e)
		case scheme == "http" && isURL && c.TLS != nil:
			return fmt.Errorf("endpoint %s: TLS is configured, the endpoint is without", e)
		case isURL && scheme == "https":
			secure++
		}
	}
	if secure > 0 && secure < len(c.Endpoints) && c.TLS == nil {
		return fmt.Errorf("endpoints %v: some are with TLS, some without", c.Endpoints)
	}
	if (c.Username == "") != (c.Password == "") {
		return errors.New("a user and a password are given together or not at all")
	}
	if c.RequestTimeout < 0 || c.KeepAlive < 0 || c.KeepAliveTimeout < 0 || c.PageSize < 0 {
		return errors.New("timeouts and page size must not be negative")
	}
	return nil
}

func orDefault[T time.Duration | int](v, otherwise T) T {
	if v == 0 {
		return otherwise
	}
	return v
}

// Close implements kvdb.Store. Calls that are under way fail with kvdb.ErrClosed.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	for w := range s.watches {
		w.stop(ending{kvdb.ErrClosed})
	}
	s.mu.Unlock()
	s.end()
	s.work.Wait()
	s.mu.Lock()
	client := s.etcd
	s.etcd = nil
	s.mu.Unlock()
	if client == nil {
		return nil
	}
	if err := client.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("close store in etcd %v: %w", s.cfg.Endpoints, err)
	}
	return nil
}
