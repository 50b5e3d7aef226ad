// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
)

// defaultProtocol is the protocol number of own routes.
const defaultProtocol = 0xCA

// answerTimeout bounds the wait for each answer of the kernel.
const answerTimeout = 10 * time.Second

var (
	// errForeign is the error of a key if another program has a route to its destination.
	errForeign = errors.New("there is a route that is not ours")
	// errClosed is returned after Close.
	errClosed = errors.New("sink was closed")
)

// Options holds the options of New. The zero value is for the main table of the process's
// network namespace.
type Options struct {
	// namespace is the path of a network namespace, as in CNI_NETNS; "": the caller's.
	// Only New uses it.
	namespace string
	protocol  int // of own routes; 0: 202
	table     int // of own routes; 0: main
	// forwarding turns on forwarding of IPv4 and IPv6 in the namespace, once.
	// IPv6 then takes no more router advertisements unless accept_ra is 2.
	forwarding bool
	// OnFailure is called from Run after the last attempt of a key failed; may be nil.
	// It may call Dump.
	OnFailure func(key string, err error)
	Now       func() time.Time                     // nil: time.Now
	After     func(time.Duration) <-chan time.Time // nil: time.After
}

// Sink is a southbound for the kernel.
type Sink struct {
	opt    Options
	form   form
	wake   chan struct{}
	closed chan struct{}

	mu      sync.Mutex
	kernel  kernel                   // nil: closed
	wanted  map[string]proto.Message // the last requested values
	pending map[string]*pending
}

var _ controller.Sink = (*Sink)(nil)

// New opens a netlink socket. It changes nothing unless forwarding is set.
func New(opt Options) (*Sink, error) {
	if opt.protocol == 0 {
		opt.protocol = defaultProtocol
	}
	if opt.table == 0 {
		opt.table = unix.RT_TABLE_MAIN
	}
	if opt.protocol <= unix.RTPROT_STATIC || opt.protocol > 255 {
		return nil, fmt.Errorf("open the kernel's routes: protocol %d is not between 5 and 255 "+
			"(0 to 4 belong to the kernel and the administrator)", opt.protocol)
	}
	if opt.table < 0 || opt.table == unix.RT_TABLE_LOCAL {
		return nil, fmt.Errorf("open the kernel's routes: table %d cannot be ours", opt.table)
	}
	var handle *netlink.Handle
	err := within(opt.namespace, func() (err error) {
		if opt.forwarding {
			if err := forward(); err != nil {
				return err
			}
		}
		handle, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err == nil {
		err = handle.SetSocketTimeout(answerTimeout)
	}
	if err != nil {
		if handle != nil {
			handle.Close()
		}
		return nil, fmt.Errorf("open the kernel's routes: %w", err)
	}
	return newSink(opt, handle), nil
}

func newSink(opt Options, k kernel) *Sink {
	if opt.Now == nil {
		opt.Now = time.Now
	}
	if opt.After == nil {
		opt.After = time.After
	}
	return &Sink{
		opt:     opt,
		form:    form{opt.protocol, opt.table},
		wake:    make(chan struct{}, 1),
		closed:  make(chan struct{}),
		kernel:  k,
		wanted:  map[string]proto.Message{},
		pending: map[string]*pending{},
	}
}

// Close ends Run and all use of the kernel. The routes stay.
func (s *Sink) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kernel != nil {
		s.kernel.Close()
		s.kernel = nil
		close(s.closed)
	}
	return nil
}

// failure is a want that could not be applied.
type failure struct {
	want
	err error
}

// Commit applies a transaction to the kernel; see the package for failures. When ctx ends,
// the remaining keys fail. The error is controller.ValueErrors, unless the routes could not
// be listed for a resync or a step could not be undone.
func (s *Sink) Commit(ctx context.Context, txn controller.Transaction) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kernel == nil {
		return fmt.Errorf("commit to the kernel: %w", errClosed)
	}
	wants := readAll(txn.Values)
	var failed []failure
	for _, w := range wants {
		if w.invalid != nil {
			failed = append(failed, failure{w, w.invalid})
		}
	}
	if txn.RevertOnFailure && len(failed) > 0 {
		return report(failed)
	}
	c := &change{form: s.form, kernel: s.kernel}
	more, err := s.apply(ctx, c, wants, txn)
	failed = append(failed, more...)
	if txn.RevertOnFailure && (err != nil || len(failed) > 0) {
		err = errors.Join(err, c.undo(0))
	} else {
		s.remember(txn, wants, failed)
	}
	if err != nil {
		return errors.Join(report(failed), err) // err is about more than single values
	}
	return report(failed)
}

// apply applies routes, first the wanted ones, then the removals. The error is about more
// than single keys.
func (s *Sink) apply(
	ctx context.Context,
	c *change,
	wants []want,
	txn controller.Transaction,
) (failed []failure, err error) {
	resync := txn.Method != controller.Update
	todo := slices.DeleteFunc(slices.Clone(wants), func(w want) bool { return !w.isRoute() })
	if resync {
		todo = append(todo, s.former(wants)...)
	}
	requested, families := map[netip.Prefix]bool{}, map[int]bool{netlink.FAMILY_V4: resync, netlink.FAMILY_V6: resync}
	for _, w := range todo {
		requested[w.dst] = true
		families[family(w.dst)] = true
	}
	maps.DeleteFunc(families, func(_ int, listed bool) bool { return !listed })
	if len(families) == 0 {
		return nil, nil
	}
	t, err := s.form.list(ctx, s.kernel, slices.Sorted(maps.Keys(families)), requested)
	if err != nil {
		for _, w := range todo {
			failed = append(failed, failure{w, err})
		}
		if !resync {
			err = nil // each key has it
		}
		return failed, err
	}
	if resync {
		todo = append(todo, unwanted(t, slices.Concat(wants, todo))...)
	}
	slices.SortStableFunc(todo, func(x, y want) int { return order(x) - order(y) })
	for _, w := range todo {
		err := context.Cause(ctx)
		if err == nil {
			err = c.apply(t, w)
		}
		if err != nil {
			failed = append(failed, failure{w, err})
			if txn.RevertOnFailure {
				break
			}
		}
	}
	return failed, nil
}

// former returns the removals of routes that were wanted and are not in the transaction.
func (s *Sink) former(wants []want) []want {
	left := maps.Clone(s.wanted)
	for _, w := range wants {
		delete(left, w.key)
	}
	var all []want
	for _, key := range slices.Sorted(maps.Keys(left)) {
		if w := read(controller.Value{Key: key}); w.isRoute() {
			all = append(all, w)
		}
	}
	return all
}

// unwanted returns the removals of own routes that are not in the transaction.
func unwanted(t *table, wants []want) []want {
	left := maps.Clone(t.ours)
	for _, w := range wants {
		delete(left, w.dst) // an invalid value leaves the present route
	}
	var all []want
	for _, dst := range slices.SortedFunc(maps.Keys(left), netip.Prefix.Compare) {
		all = append(all, want{key: kv.SinkRoutePrefix + dst.String(), dst: dst})
	}
	return all
}

func order(w want) int {
	if w.message == nil {
		return 1
	}
	return 0
}

func family(p netip.Prefix) int {
	if p.Addr().Is4() {
		return netlink.FAMILY_V4
	}
	return netlink.FAMILY_V6
}

// remember records the requested values, and schedules the failed ones.
func (s *Sink) remember(txn controller.Transaction, wants []want, failed []failure) {
	before := s.wanted
	if txn.Method == controller.Update {
		before = maps.Clone(before)
	} else {
		s.wanted, s.pending = map[string]proto.Message{}, map[string]*pending{}
	}
	for _, w := range wants {
		delete(s.pending, w.key)
		m := w.message
		if w.invalid != nil {
			m = before[w.key]
		}
		if m == nil {
			delete(s.wanted, w.key)
		} else {
			s.wanted[w.key] = m
		}
	}
	s.schedule(txn.Retry, failed)
}

// report returns the failures as ValueErrors.
func report(failed []failure) error {
	if len(failed) == 0 {
		return nil
	}
	errs := controller.ValueErrors{}
	for _, f := range failed {
		errs[f.key] = f.err
	}
	return errs
}

// Dump returns the present values: the own routes of the kernel, and the values that are
// only kept. An own route of a form that this package never makes has its whole
// description as the gateway.
func (s *Sink) Dump(ctx context.Context) (map[string]proto.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kernel == nil {
		return nil, fmt.Errorf("dump the kernel's routes: %w", errClosed)
	}
	t, err := s.form.list(ctx, s.kernel, []int{netlink.FAMILY_V4, netlink.FAMILY_V6}, nil)
	if err != nil {
		return nil, fmt.Errorf("dump the kernel's routes: %w", err)
	}
	all := maps.Clone(s.wanted)
	maps.DeleteFunc(all, func(_ string, m proto.Message) bool {
		_, isRoute := m.(*kv.NodeRoute)
		return isRoute
	})
	for dst, routes := range t.ours {
		key := kv.SinkRoutePrefix + dst.String()
		have := &kv.NodeRoute{Dst: dst.String(), Gateway: describe(routes[0])}
		for _, r := range routes {
			gateway, plain := s.form.gateway(r)
			if !plain {
				continue
			}
			have.Gateway = ""
			if gateway.IsValid() {
				have.Gateway = gateway.String()
			}
			break
		}
		all[key] = have
		if w, ok := s.wanted[key].(*kv.NodeRoute); ok && sameGateway(w.Gateway, have.Gateway) {
			all[key] = w // with the name of its node
		}
	}
	return all, nil
}

// sameGateway compares gateways, which have several spellings.
func sameGateway(x, y string) bool {
	a, errA := netip.ParseAddr(x)
	b, errB := netip.ParseAddr(y)
	return x == y || errA == nil && errB == nil && a == b
}
