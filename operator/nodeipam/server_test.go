// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/cadastre/cadastre/operator/blocks"
)

// TestMain turns off what client-go does with unhandled errors: it
// writes them to standard error, and waits until a millisecond has gone by since
// the last one. In a bubble of simulated time that is a quarter of a century.
func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = nil
	goleak.VerifyTestMain(m)
}

func pfx(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, t := range texts {
		all = append(all, pfx(t))
	}
	return all
}

// server is the part of an API server that has nodes, with the rules that
// matter here: UIDs, resourceVersions, podCIDRs that are set once.
type server struct {
	mu     sync.Mutex
	rv     int
	nodes  map[string]*v1.Node
	calls  int
	writes []string // what patches have done
	fault  func(call) fault
	late   []latePatch
	lag    int           // after so many calls what is delayed arrives
	watch  func(*server) // is called after every write, if it is set

	history   []change // since the beginning
	followers []*follower
}

// latePatch is a patch that is still under way.
type latePatch struct {
	due int // it arrives before this call
	do  func()
}

// call is a request, as the plan of faults is asked about it.
type call struct {
	number int
	what   string // get, list, patch, status
	node   string
	body   string // of a patch
}

// gives reports whether the request is to set podCIDRs.
func (c call) allocates() bool { return strings.Contains(c.body, "podCIDRs") }

type fault int

const (
	none     fault = iota
	fail           // nothing is done, and the outcome is unknown
	tear           // it is done, and the outcome is unknown
	refuse         // nothing is done, and the answer says so
	conflict       // the node has changed since it was read
	delay          // the answer is lost, and it is done later
)

func (f fault) String() string {
	return []string{"none", "fail", "tear", "refuse", "conflict", "delay"}[f]
}

var errLost = errors.New("connection lost")

func newServer() *server { return &server{nodes: map[string]*v1.Node{}} }

func at(n int, f fault) func(call) fault {
	return func(c call) fault {
		if c.number == n {
			return f
		}
		return none
	}
}

func nodes() schema.GroupResource { return schema.GroupResource{Resource: "nodes"} }

// put makes a Node object, with what change does to it.
func (s *server) put(name string, change ...func(*v1.Node)) *v1.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rv++
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(fmt.Sprintf("3f2a7c1e-0b9d-4d5e-8f6a-%012x", s.rv))}}
	for _, f := range change {
		f(node)
	}
	node.ResourceVersion = strconv.Itoa(s.rv)
	s.nodes[name] = node
	s.changed(watch.Added, node)
	return node.DeepCopy()
}

func with(cidrs ...string) func(*v1.Node) {
	return func(n *v1.Node) {
		if len(cidrs) > 0 {
			n.Spec.PodCIDR, n.Spec.PodCIDRs = cidrs[0], cidrs
		}
	}
}

// edit changes a node as another process would.
func (s *server) edit(name string, change func(*v1.Node)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rv++
	node := s.nodes[name].DeepCopy()
	change(node)
	node.ResourceVersion = strconv.Itoa(s.rv)
	s.nodes[name] = node
	s.changed(watch.Modified, node)
}

func (s *server) remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	node := s.nodes[name]
	if node == nil {
		return
	}
	s.rv++
	delete(s.nodes, name)
	s.changed(watch.Deleted, node)
}

func (s *server) node(name string) *v1.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[name]; n != nil {
		return n.DeepCopy()
	}
	return nil
}

// cidrs are the podCIDRs of all nodes.
func (s *server) cidrs() map[string][]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string][]string{}
	for name, n := range s.nodes {
		all[name] = slices.Clone(podCIDRTexts(n))
	}
	return all
}

// arrive applies what was delayed.
func (s *server) arrive() {
	s.mu.Lock()
	late := s.late
	s.late = nil
	s.mu.Unlock()
	for _, l := range late {
		l.do()
	}
}

// enter counts a call and says what happens to it.
func (s *server) enter(what, name string, body []byte) fault {
	s.mu.Lock()
	s.calls++
	due := slices.IndexFunc(s.late, func(l latePatch) bool { return l.due <= s.calls })
	s.mu.Unlock()
	if due >= 0 {
		s.arrive()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fault == nil {
		return none
	}
	return s.fault(call{s.calls, what, name, string(body)})
}

func (s *server) get(ctx context.Context, name string) (*v1.Node, error) {
	if s.enter("get", name, nil) != none {
		return nil, errLost
	}
	if n := s.node(name); n != nil {
		return n, ctx.Err()
	}
	return nil, apierrors.NewNotFound(nodes(), name)
}

func (s *server) list(context.Context) (all []v1.Node, err error) {
	if s.enter("list", "", nil) != none {
		return nil, errLost
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(s.nodes)) {
		all = append(all, *s.nodes[name].DeepCopy())
	}
	return all, nil
}

func (s *server) patch(_ context.Context, name string, body []byte) (*v1.Node, error) {
	return s.answer("patch", name, body, func() (*v1.Node, error) { return s.apply(name, body) })
}

func (s *server) patchStatus(_ context.Context, name string, body []byte) error {
	_, err := s.answer("status", name, body, func() (*v1.Node, error) { return s.apply(name, body) })
	return err
}

func (s *server) answer(what, name string, body []byte, do func() (*v1.Node, error)) (*v1.Node, error) {
	switch s.enter(what, name, body) {
	case fail:
		return nil, errLost
	case tear:
		_, _ = do()
		return nil, errLost
	case refuse:
		return nil, apierrors.NewForbidden(nodes(), name, errors.New("refused"))
	case conflict:
		s.edit(name, func(n *v1.Node) { n.Labels = map[string]string{"changed": strconv.Itoa(s.rv)} })
	case delay:
		s.mu.Lock()
		s.late = append(s.late, latePatch{s.calls + s.lag, func() { _, _ = do() }})
		s.mu.Unlock()
		return nil, apierrors.NewTimeoutError("timed out", 1)
	}
	return do()
}

// apply applies a patch as an API server does.
func (s *server) apply(name string, body []byte) (*v1.Node, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.nodes[name]
	if old == nil {
		return nil, apierrors.NewNotFound(nodes(), name)
	}
	node, err := patched(old, body)
	if err != nil {
		return nil, err
	}
	if reflect.DeepEqual(old, node) { // a patch without a change writes nothing
		return node, nil
	}
	s.writes = append(s.writes, name+" "+string(body))
	s.rv++
	node.ResourceVersion = strconv.Itoa(s.rv)
	s.nodes[name] = node
	s.changed(watch.Modified, node)
	if s.watch != nil {
		s.watch(s)
	}
	return node.DeepCopy(), nil
}

// overlaps are two nodes with a CIDR in common.
func (s *server) overlaps() error {
	type held struct {
		node string
		cidr netip.Prefix
	}
	var all []held
	for name, n := range s.nodes {
		blocks, _ := podCIDRsOf(n)
		for _, p := range blocks {
			for _, h := range all {
				if h.node != name && h.cidr.Overlaps(p) {
					return fmt.Errorf("%s has %s, and %s has %s", name, p, h.node, h.cidr)
				}
			}
			all = append(all, held{name, p})
		}
	}
	return nil
}

// patched is old with a patch of one of the kinds that are used here.
func patched(old *v1.Node, body []byte) (*v1.Node, error) {
	var p struct {
		Metadata meta
		Spec     *spec
		Status   struct{ Conditions []v1.NodeCondition }
	}
	if err := json.Unmarshal(body, &p); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if p.Metadata.UID != "" && p.Metadata.UID != old.UID {
		return nil, apierrors.NewConflict(nodes(), old.Name, errors.New("the UID is another"))
	}
	if p.Metadata.ResourceVersion != "" && p.Metadata.ResourceVersion != old.ResourceVersion {
		return nil, apierrors.NewConflict(nodes(), old.Name, errors.New("the object has been modified"))
	}
	node := old.DeepCopy()
	for k, v := range p.Metadata.Annotations {
		if v == nil {
			delete(node.Annotations, k)
			continue
		}
		metav1.SetMetaDataAnnotation(&node.ObjectMeta, k, *v)
	}
	if p.Spec != nil {
		if hasPodCIDRs(old) && !slices.Equal(podCIDRTexts(old), p.Spec.PodCIDRs) {
			return nil, &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity,
				Reason: metav1.StatusReasonInvalid, Message: "spec.podCIDRs: Forbidden: node updates may not change podCIDR except from \"\" to valid"}}
		}
		node.Spec.PodCIDR, node.Spec.PodCIDRs = p.Spec.PodCIDR, p.Spec.PodCIDRs
	}
	for _, c := range p.Status.Conditions {
		node.Status.Conditions = slices.DeleteFunc(node.Status.Conditions, func(x v1.NodeCondition) bool { return x.Type == c.Type })
		node.Status.Conditions = append(node.Status.Conditions, c)
	}
	return node, nil
}

// nodeCache is a lister of what a server had when it was last refreshed.
type nodeCache struct {
	corelisters.NodeListerExpansion
	mu    sync.Mutex
	nodes map[string]*v1.Node
}

func (c *nodeCache) refresh(s *server, names ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(names) == 0 {
		c.nodes = map[string]*v1.Node{}
		names = slices.Collect(maps.Keys(s.nodes))
	}
	for _, name := range names {
		delete(c.nodes, name)
		if n := s.nodes[name]; n != nil {
			c.nodes[name] = n.DeepCopy()
		}
	}
}

// names are those of all nodes.
func (c *nodeCache) names() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.nodes))
}

func (c *nodeCache) Get(name string) (*v1.Node, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.nodes[name]; n != nil {
		return n, nil
	}
	return nil, apierrors.NewNotFound(nodes(), name)
}

func (c *nodeCache) List(labels.Selector) (all []*v1.Node, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.nodes)), nil
}

// recorder keeps events.
type recorder struct {
	mu     sync.Mutex
	events []string
}

func (r *recorder) Eventf(object runtime.Object, kind, reason, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, strings.Join([]string{object.(*v1.Node).Name, reason, fmt.Sprintf(format, args...)}, " "))
}

// of are the events of a reason.
func (r *recorder) of(reason string) (some []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		if strings.Contains(e, " "+reason+" ") {
			some = append(some, e)
		}
	}
	return some
}

// bench is an Allocator with all around it, without Run: tests call sync.
type bench struct {
	*Allocator
	server *server
	cache  *nodeCache
	events *recorder
	clock  *clock
}

// clock is the time, as tests say it is.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func newClock() *clock { return &clock{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)} }

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// ranges are the settings of some cluster ranges, each a pool: "10.0.0.0/8 24".
func ranges(texts ...string) Settings {
	s := Settings{FirstRetry: time.Millisecond, MaxRetry: 10 * time.Millisecond, Workers: 2}
	for i, t := range texts {
		var p string
		var bits int
		if _, err := fmt.Sscan(t, &p, &bits); err != nil {
			panic(err)
		}
		s.Ranges = append(s.Ranges, blocks.Range{Prefix: pfx(p), Bits: bits, Pool: i})
	}
	return s
}

// newBench makes an Allocator over a server, loaded.
func newBench(t testing.TB, s *server, settings Settings, change ...func(*Deps)) *bench {
	t.Helper()
	b := &bench{server: s, cache: &nodeCache{}, events: &recorder{}, clock: newClock()}
	deps := Deps{Events: b.events, Log: quiet(), Now: b.clock.Now, Random: func() float64 { return .5 }, Instance: "test"}
	for _, f := range change {
		f(&deps)
	}
	a, err := NewAllocator(deps, settings)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	b.Allocator = a
	a.api, a.reports.api, a.lister = s, s, b.cache
	b.cache.refresh(s)
	NewWithT(t).Expect(a.load(t.Context())).To(Succeed())
	return b
}

// look is a sync of a node, or of all, with a cache that is up to date.
func (b *bench) look(ctx context.Context, names ...string) error {
	if len(names) == 0 {
		for name := range b.server.cidrs() {
			names = append(names, name)
		}
		for _, o := range b.assigned.all() {
			names = append(names, o.Name)
		}
		for _, p := range b.reports.list() {
			names = append(names, p.Node)
		}
		names = append(names, b.reports.waitingNodes()...)
		slices.Sort(names)
		names = slices.Compact(names)
	}
	var errs error
	for _, name := range names {
		b.cache.refresh(b.server, name)
		errs = errors.Join(errs, b.sync(ctx, name))
	}
	return errs
}

// held returns the recorded blocks, by owner.
func (b *bench) held() map[string][]string {
	all := map[string][]string{}
	for _, o := range b.assigned.all() {
		blocks, _ := b.assigned.blocks(o)
		for _, p := range blocks {
			all[o.Name] = append(all[o.Name], p.String())
		}
	}
	return all
}

// queued returns the nodes that wait to be processed, and removes them from the queue.
func (b *bench) queued() (names []string) {
	for b.queue.Len() > 0 {
		if name, ok := b.queue.Take(); ok {
			names = append(names, name)
		}
	}
	return names
}
