// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package southbound

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/effort"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errInjected = errors.New("input/output error")

// world is a kernel in memory. A value is "TEXT" or "TEXT needs KEY KEY ...". The world
// refuses what no kernel would do: a value whose dependencies are not there, and the
// removal of a value that another one uses.
type world struct {
	mu       sync.Mutex // for a test that reads values while the scheduler runs
	values   map[string]string
	wrong    []string // breaches of the contract of a Descriptor
	log      []string
	calls    int
	leaving  int                        // from this call on the data plane is away; 0: it stays
	failing  int                        // the call that fails; 0: none
	fault    func(op, key string) error // asked before each call
	halfway  bool                       // a Delete that fails has removed the value
	torn     bool                       // a Create or Update that fails has made the value
	tearAway bool                       // likewise, if the data plane is away
	unsure   map[string]bool            // keys of calls that have failed and been torn
}

func newWorld() *world { return &world{values: map[string]string{}, unsure: map[string]bool{}} }

func needs(text string) []string {
	_, all, _ := strings.Cut(text, " needs ")
	return strings.Fields(all)
}

func (w *world) call(ctx context.Context, op, key string) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	w.calls++
	w.log = append(w.log, strings.TrimSpace(op+" "+key))
	if w.leaving > 0 && w.calls >= w.leaving {
		return errNoSocket
	}
	if w.calls == w.failing {
		return errInjected
	}
	if w.fault != nil {
		return w.fault(op, key)
	}
	return nil
}

func (w *world) breach(format string, args ...any) {
	w.wrong = append(w.wrong, fmt.Sprintf(format, args...))
}

// clone copies the values.
func (w *world) clone() map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.values)
}

func (w *world) set(key, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.values[key] = text
}

// lose removes a value and those that need it, as a kernel does with a link.
func (w *world) lose(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	gone := []string{key}
	for len(gone) > 0 {
		key, gone = gone[0], gone[1:]
		delete(w.values, key)
		for k, v := range w.values {
			if slices.Contains(needs(v), key) {
				gone = append(gone, k)
			}
		}
	}
}

// part is the descriptor of the values of the world with a prefix.
type part struct {
	*world
	prefix string
}

// double is a kind of a test. Its plans are the messages.
type double interface {
	Prefix() string
	Validate(key string, m proto.Message) error
	Dependencies(key string, m proto.Message) []string
	Create(ctx context.Context, key string, m proto.Message) error
	Update(ctx context.Context, key string, before, m proto.Message) error
	Delete(ctx context.Context, key string, m proto.Message) error
	Retrieve(ctx context.Context, wanted []controller.Value) ([]controller.Value, error)
}

// kinds returns doubles as a Scheduler calls them. The methods that only some have are optional.
func kinds(doubles ...double) (all []*Descriptor) {
	for _, d := range doubles {
		all = append(all, kind(d))
	}
	return all
}

func kind(d double) *Descriptor {
	k := Kind[proto.Message]{
		Name:   d.Prefix(),
		Prefix: d.Prefix(),
		Read:   func(key string, m proto.Message) (proto.Message, error) { return m, d.Validate(key, m) },
		Needs:  func(m proto.Message) []string { return d.Dependencies("", m) },
		Create: d.Create,
		Update: func(ctx context.Context, key string, was Made[proto.Message], want proto.Message) error {
			return d.Update(ctx, key, was.Message, want)
		},
		Delete: func(ctx context.Context, key string, was Made[proto.Message]) error {
			return d.Delete(ctx, key, was.Message)
		},
		Retrieve: func(ctx context.Context, wanted []Wanted[proto.Message]) ([]controller.Value, error) {
			var values []controller.Value
			for _, w := range wanted {
				values = append(values, controller.Value{Key: w.Key, Message: w.Message})
			}
			return d.Retrieve(ctx, values)
		},
	}
	if r, ok := d.(interface {
		Recreate(before, m proto.Message) bool
	}); ok {
		k.Recreates = func(_ string, was Made[proto.Message], want proto.Message) bool {
			return r.Recreate(was.Message, want)
		}
	}
	if s, ok := d.(interface {
		Substitute(m proto.Message) proto.Message
	}); ok {
		k.StandIn = s.Substitute
	}
	if i, ok := d.(interface {
		Inspect(ctx context.Context, key string, m proto.Message) error
	}); ok {
		k.Inspect = i.Inspect
	}
	if p, ok := d.(interface {
		Prepare(ctx context.Context, keys []string) error
	}); ok {
		k.Prepare = p.Prepare
	}
	if s, ok := d.(interface {
		Sweep(ctx context.Context) (bool, error)
	}); ok {
		k.Sweep = s.Sweep
	}
	if n, ok := d.(interface{ Notes() []string }); ok {
		k.Notes = n.Notes
	}
	if w, ok := d.(interface {
		Watch(ctx context.Context, changed func(string)) error
	}); ok {
		k.Watch = w.Watch
	}
	return k.Descriptor()
}

// parts are three kinds of values.
func (w *world) parts() []*Descriptor {
	return kinds(part{w, "a/"}, recreating{part{w, "b/"}}, part{w, "c/"})
}

// partsWithSubstitutes are these kinds, one of them with values that stand in.
func (w *world) partsWithSubstitutes() []*Descriptor {
	return kinds(part{w, "a/"}, recreating{part{w, "b/"}}, substituting{part{w, "c/"}})
}

func (p part) Prefix() string { return p.prefix }

func (p part) Validate(_ string, m proto.Message) error {
	if strings.HasPrefix(text(m), "bad") {
		return errors.New("it is bad")
	}
	return nil
}

func (p part) Dependencies(_ string, m proto.Message) []string { return needs(text(m)) }

func (p part) check(op, key string, m proto.Message) {
	if m == nil {
		p.breach("%s %s without a value", op, key)
		return
	}
	for _, k := range needs(text(m)) {
		if v := p.values[k]; (v == "" || v == standIn) && k != key {
			p.breach("%s %s without %s", op, key, k)
		}
	}
}

func (p part) Create(ctx context.Context, key string, m proto.Message) error {
	p.check("create", key, m)
	return p.put(key, m, p.call(ctx, "create", key))
}

// put sets a value after a call, also after one that has failed and is torn.
func (p part) put(key string, m proto.Message, err error) error {
	if err == nil || p.torn && errors.Is(err, errInjected) || p.tearAway && errors.Is(err, ErrAway) {
		p.set(key, text(m))
	}
	p.unsure[key] = err != nil
	return err
}

func (p part) Update(ctx context.Context, key string, before, m proto.Message) error {
	p.check("update", key, m)
	if p.values[key] != text(before) && !p.unsure[key] {
		p.breach("update %s from %q, which is %q", key, text(before), p.values[key])
	}
	if text(before) == text(m) {
		p.breach("update %s to what it is", key)
	}
	if text(m) == standIn {
		p.unused("replace", key)
	}
	if p.prefix == "b/" && major(before) != major(m) {
		p.breach("update %s instead of recreating it", key)
	}
	return p.put(key, m, p.call(ctx, "update", key))
}

// unused notes a breach if a value uses key.
func (p part) unused(op, key string) {
	for k, v := range p.values {
		if k != key && slices.Contains(needs(v), key) {
			p.breach("%s %s, which %s uses", op, key, k)
		}
	}
}

func (p part) Delete(ctx context.Context, key string, _ proto.Message) error {
	p.unused("delete", key)
	err := p.call(ctx, "delete", key)
	if err == nil || p.halfway {
		p.mu.Lock()
		delete(p.values, key)
		p.mu.Unlock()
	}
	return err
}

func (p part) Retrieve(ctx context.Context, wanted []controller.Value) (all []controller.Value, err error) {
	if !slices.IsSortedFunc(wanted, func(x, y controller.Value) int { return cmp.Compare(x.Key, y.Key) }) {
		p.breach("retrieve %s: the wanted values are not in order", p.prefix)
	}
	if err := p.call(ctx, "retrieve", p.prefix); err != nil {
		return nil, err
	}
	for k, v := range p.clone() {
		if strings.HasPrefix(k, p.prefix) {
			all = append(all, controller.Value{Key: k, Message: wrapperspb.String(v)})
		}
	}
	return all, nil
}

// preparing notes the keys that are prepared.
type preparing struct {
	part
	prepared *[]string
}

func (p preparing) Prepare(_ context.Context, keys []string) error {
	*p.prepared = append(*p.prepared, strings.Join(keys, " "))
	return nil
}

// checks sets the number of random runs: some of the mistakes that were found come once in
// ten thousand.
func checks(t *testing.T) {
	if err := flag.Set("rapid.checks", strconv.Itoa(500*effort.Level(t))); err != nil {
		t.Fatal(err)
	}
}

// recreating changes the first character of a value only by making it anew.
type recreating struct{ part }

func (recreating) Recreate(before, m proto.Message) bool { return major(before) != major(m) }

// standIn is the value that stands in for pending ones.
const standIn = "hold"

// substituting has values that another one stands in for.
type substituting struct{ part }

func (substituting) Substitute(proto.Message) proto.Message {
	return wrapperspb.String(standIn)
}

func major(m proto.Message) string { return text(m)[:1] }

func text(m proto.Message) string {
	s, ok := m.(*wrapperspb.StringValue)
	if !ok {
		return ""
	}
	return s.Value
}

// is is a value; "" is none.
func is(key, text string) controller.Value {
	if text == "" {
		return controller.Value{Key: key}
	}
	return controller.Value{Key: key, Message: wrapperspb.String(text)}
}

func update(values ...controller.Value) controller.Transaction {
	return controller.Transaction{Method: controller.Update, Values: values}
}

func reverting(values ...controller.Value) controller.Transaction {
	txn := update(values...)
	txn.RevertOnFailure = true
	return txn
}

func resync(values ...controller.Value) controller.Transaction {
	return controller.Transaction{Method: controller.FullResync, Values: values}
}

// lines returns the calls since the last time.
func (w *world) lines() []string {
	all := w.log
	w.log = nil
	return all
}
