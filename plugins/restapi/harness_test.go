// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
	"github.com/cadastre/cadastre/plugins/restapi"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// agent stands behind the API: a real ledger, and the other parts as the test sets them.
type agent struct {
	g       Gomega
	book    *ledger.Ledger
	deps    restapi.Deps
	handler http.Handler
	metrics *restapi.Metrics

	mu      sync.Mutex
	status  localapi.Status
	asked   []cni.Request
	reply   cni.Reply
	err     error // of CNI, Resync, Dump
	records []controller.Record
	more    chan struct{}
	backup  func(io.Writer) (int64, error)
	deleted []string // keys of the pods that were deleted through the loop
}

func ctx() context.Context { return context.Background() }

// newAgent has a pool of both families with some leases in it.
func newAgent(t testing.TB) *agent { return newAgentOn(t, journal.NewMemory()) }

// newAgentOn is newAgent with a journal.
func newAgentOn(t testing.TB, j ledger.Journal) *agent {
	a := &agent{g: NewGomega(func(message string, _ ...int) { t.Helper(); t.Fatal(message) }), more: make(chan struct{})}
	a.status = localapi.Status{Version: "test", NodeName: "node-a", NodeID: 5, Live: true, Ready: true}
	var err error
	a.book, err = ledger.Open(ctx(), j, ledger.Options{})
	a.g.Expect(err).NotTo(HaveOccurred())
	a.metrics = restapi.NewMetrics(a.book.Stats, func() controller.Status { return controller.Status{Queued: 3, FollowUps: 1, Processed: 17} })
	a.deps = restapi.Deps{
		Agent:      a,
		Ledger:     a.book,
		Metrics:    a.metrics.Registry,
		Pods:       &pods{serve: a.serveCNI, remove: a.delete},
		Loop:       loop{events: a.events},
		State:      state{resync: func(context.Context) error { return a.err }},
		Database:   copier(func(w io.Writer) (int64, error) { return a.backup(w) }),
		Southbound: dumper(a.dump),
	}
	a.handler = restapi.NewPlugin(a.deps).Handler()
	a.fill()
	return a
}

// fill makes the pool "default" with a gateway and leases of two pods, one
// that cools down and one in quarantine.
func (a *agent) fill() {
	st := a.book.Begin()
	a.g.Expect(st.SetPool(ledger.Pool{Name: "default", CoolDown: time.Hour, ReserveEdges: true})).To(Succeed())
	a.g.Expect(st.SetBlocks("default", []netip.Prefix{netip.MustParsePrefix("10.1.5.0/24"), netip.MustParsePrefix("fd00:1:0:5::/64")})).To(Succeed())
	_, _, err := st.Claim(ledger.Request{
		Pool: "default", Purpose: ledger.ForInfra, Key: ledger.Key{Network: "infra/default", ContainerID: "10.1.5.0/24", IfName: "gateway"},
		Wanted: []netip.Addr{netip.MustParseAddr("10.1.5.1")},
	})
	a.g.Expect(err).NotTo(HaveOccurred())
	a.g.Expect(st.Commit(ctx())).To(Succeed())
	a.lease("c1", "web-0") // 10.1.5.2
	a.lease("c2", "web-0") // .3
	a.lease("c3", "web-1") // .4
	a.lease("c4", "gone")  // .5
	_, err = a.book.Release(ctx(), ledger.Selector{Key: key("c4")})
	a.g.Expect(err).NotTo(HaveOccurred())
	_, err = st.Quarantine("default", netip.MustParseAddr("10.1.5.77"), ledger.Pod{Namespace: "ns", Name: "stranger"}, "a host uses it")
	a.g.Expect(err).NotTo(HaveOccurred())
	a.g.Expect(st.Commit(ctx())).To(Succeed())
}

func key(container string) ledger.Key {
	return ledger.Key{Network: "pods", ContainerID: container, IfName: "eth0"}
}

// lease gives a container of a pod an IPv4 address.
func (a *agent) lease(container, pod string) {
	_, _, err := a.book.Claim(ctx(), ledger.Request{
		Pool: "default", Key: key(container), Pod: ledger.Pod{Namespace: "ns", Name: pod}, Families: []ledger.Family{ledger.IPv4},
	})
	a.g.Expect(err).NotTo(HaveOccurred())
}

func (a *agent) serveCNI(_ context.Context, r cni.Request) (cni.Reply, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, r)
	return a.reply, a.err
}

// delete ends the attachment of a lease if it still is that claim, as podmanager does.
func (a *agent) delete(ctx context.Context, l ledger.Lease) error {
	if a.err != nil {
		return a.err
	}
	freed, err := a.book.Release(ctx, ledger.Selector{Key: l.Key, Generation: l.Generation})
	if len(freed) > 0 {
		a.deleted = append(a.deleted, l.Key.String())
	}
	return err
}

// Status returns the status that the test has set.
func (a *agent) Status() localapi.Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.status
}

func (a *agent) dump(context.Context) (map[string]proto.Message, error) {
	return map[string]proto.Message{"node": &kv.NodeNetwork{Id: 5, PodSubnets: []string{"10.1.5.0/24"}}}, a.err
}

// pods, loop, state, cluster and the types of one function stand for the parts of an
// agent. A function that is nil must not be called, except delivered.
type pods struct {
	serve     func(context.Context, cni.Request) (cni.Reply, error)
	delivered func(error)
	remove    func(context.Context, ledger.Lease) error
}

func (p *pods) Accept(ctx context.Context, _ func() bool) (context.Context, func()) {
	return ctx, func() {}
}
func (p *pods) Serve(ctx context.Context, r cni.Request) (cni.Reply, error) { return p.serve(ctx, r) }
func (p *pods) Delete(ctx context.Context, l ledger.Lease) error            { return p.remove(ctx, l) }
func (p *pods) Delivered(_ cni.Request, _ cni.Reply, err error) {
	if p.delivered != nil {
		p.delivered(err)
	}
}

type loop struct {
	events func(uint64) ([]controller.Record, <-chan struct{})
	query  func(controller.HistoryQuery) ([]controller.Record, error)
}

func (l loop) Events(seq uint64) ([]controller.Record, <-chan struct{}) { return l.events(seq) }
func (l loop) Query(q controller.HistoryQuery) ([]controller.Record, error) {
	return l.query(q)
}

type state struct {
	resync, dispatch func(context.Context) error
}

func (s state) Resync(ctx context.Context) error   { return s.resync(ctx) }
func (s state) Dispatch(ctx context.Context) error { return s.dispatch(ctx) }

type cluster struct {
	nodes       func(context.Context) ([]localapi.Node, error)
	releaseNode func(context.Context, string, bool) (localapi.NodeReleaseReply, error)
	pools       func(context.Context) ([]localapi.Pool, error)
	apply       func(context.Context, []byte, bool) (localapi.ApplyResult, error)
	ipam        func() (localapi.ContivIPAM, error)
}

func (c cluster) Nodes(ctx context.Context) ([]localapi.Node, error) { return c.nodes(ctx) }
func (c cluster) Pools(ctx context.Context) ([]localapi.Pool, error) { return c.pools(ctx) }
func (c cluster) IPAM() (localapi.ContivIPAM, error)                 { return c.ipam() }
func (c cluster) ReleaseNode(ctx context.Context, req localapi.NodeReleaseRequest) (localapi.NodeReleaseReply, error) {
	return c.releaseNode(ctx, req.Name, req.Force)
}
func (c cluster) Apply(ctx context.Context, file []byte, dryRun bool) (localapi.ApplyResult, error) {
	return c.apply(ctx, file, dryRun)
}

type copier func(io.Writer) (int64, error)

func (f copier) Backup(w io.Writer) (int64, error) { return f(w) }

type dumper func(context.Context) (map[string]proto.Message, error)

func (f dumper) Dump(ctx context.Context) (map[string]proto.Message, error) { return f(ctx) }

func (a *agent) events(seq uint64) ([]controller.Record, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var rs []controller.Record
	for _, r := range a.records {
		if r.SeqNum >= seq {
			rs = append(rs, r)
		}
	}
	return rs, a.more
}

// happens is one more event.
func (a *agent) happens(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.records = append(a.records, controller.Record{SeqNum: uint64(len(a.records)), Name: name, Method: controller.Update})
	close(a.more)
	a.more = make(chan struct{})
}

// held are the addresses that are in use, infra aside.
func (a *agent) held() []string {
	all := []string{}
	for _, l := range a.book.Leases() {
		if l.State != ledger.Cooling && l.Purpose != ledger.ForInfra {
			all = append(all, l.Addr.String())
		}
	}
	return all
}

// ask asks a handler and returns the status and the body.
func ask(h http.Handler, method, path, body string) (int, string) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
	return w.Code, w.Body.String()
}

// reason is the text of an error's JSON.
func reason(g Gomega, body string) string {
	d := json.NewDecoder(strings.NewReader(body))
	d.DisallowUnknownFields()
	var e localapi.Error
	g.Expect(d.Decode(&e)).To(Succeed(), body)
	return e.Error
}

// server is the API on its own socket.
type server struct {
	socket string
	http   *http.Client
	stop   context.CancelFunc
	ended  chan error
}

// runDir is a directory whose name is short enough for a socket.
func runDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "api")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// serve answers on a socket until the test ends.
func (a *agent) serve(t *testing.T, socket string) *server {
	t.Helper()
	deps := a.deps
	deps.Listen.Socket = socket
	c, cancel := context.WithCancel(ctx())
	s := &server{socket: socket, stop: cancel, ended: make(chan error, 1)}
	s.http = &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", socket) },
	}}
	go func() { s.ended <- restapi.NewPlugin(deps).Serve(c) }()
	t.Cleanup(func() {
		cancel()
		if err := <-s.ended; err != nil {
			t.Error(err)
		}
	})
	a.g.Eventually(func() error {
		select {
		case err := <-s.ended:
			s.ended <- err
			return nil
		default:
		}
		c, err := net.Dial("unix", socket)
		if err == nil {
			c.Close()
		}
		return err
	}, 5*time.Second, time.Millisecond).Should(Succeed())
	return s
}

func (s *server) get(g Gomega, path string) (int, string) {
	r, err := s.http.Get("http://localhost" + path)
	g.Expect(err).NotTo(HaveOccurred())
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	g.Expect(err).NotTo(HaveOccurred())
	return r.StatusCode, string(body)
}

var errInjected = errors.New("injected")

func lines(body []byte) []string {
	var all []string
	for l := range bytes.Lines(body) {
		all = append(all, strings.TrimSpace(string(l)))
	}
	return all
}

func socketIn(dir string) string { return filepath.Join(dir, "agent.sock") }
