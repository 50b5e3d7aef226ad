// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/testkit/etcdtest"
	"github.com/cadastre/cadastre/internal/testkit/logbuffer"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/operator/runner"
)

// node reads a reflected node, nil for none.
func (s *stand) node(name string) *kv.Node {
	x, found, err := s.store.Get(context.Background(), kv.NodeKey(name))
	s.Expect(err).NotTo(HaveOccurred())
	if !found {
		return nil
	}
	m := &kv.Node{}
	s.Expect(proto.Unmarshal(x.Value, m)).To(Succeed())
	return m
}

// TestOneOperator: a node comes, gets its CIDRs, and agents can read them; the
// end is orderly.
func TestOneOperator(t *testing.T) {
	bubble(t, func(s *stand) {
		s.addNode("a")
		p := s.start("one", nil, all()...)
		advance(5 * time.Second)
		s.Expect(s.lease()).To(HavePrefix("one_"))
		s.Expect(s.cidrs("a")).To(Equal([]string{"10.1.0.0/24", "fd00::/64"}))
		s.Expect(s.node("a").GetPodCidrs()).To(Equal([]string{"10.1.0.0/24", "fd00::/64"}))
		s.addNode("b")
		advance(5 * time.Second)
		s.Expect(s.node("b").GetPodCidrs()).To(Equal([]string{"10.1.1.0/24", "fd00:0:0:1::/64"}))
		s.Expect(p.stop()).To(BeZero(), "%s", &p.log)
		s.Expect(s.lease()).To(BeEmpty(), "it is given back")
		s.Expect(p.log.String()).NotTo(Or(ContainSubstring("level=ERROR"), ContainSubstring("level=WARN")))
		for _, name := range allControllers() {
			s.Expect(p.log.String()).To(ContainSubstring(`msg="a controller runs" controller=` + name))
		}
	})
}

// TestTwoOperators: one works, the other waits, and takes over.
func TestTwoOperators(t *testing.T) {
	bubble(t, func(s *stand) {
		one := s.start("one", nil, all()...)
		advance(5 * time.Second)
		two := s.start("two", nil, all()...)
		advance(time.Minute)
		s.Expect(s.lease()).To(HavePrefix("one_"))
		s.Expect(two.log.String()).NotTo(ContainSubstring("a controller runs"))

		s.Expect(one.stop()).To(BeZero())
		advance(6 * time.Second)
		s.Expect(s.lease()).To(HavePrefix("two_"), "at once: the lease was given back")
		s.addNode("a")
		advance(5 * time.Second)
		s.Expect(s.node("a").GetPodCidrs()).To(HaveLen(2))

		three := s.start("three", nil, all()...)
		advance(time.Minute)
		two.cut.Store(true) // it is cut off, and its lease runs out
		advance(12 * time.Second)
		s.Expect(<-two.code).To(Equal(exitFailed))
		s.Expect(two.log.String()).To(ContainSubstring(runner.ErrLeaseLost.Error()))
		s.addNode("b")
		advance(20 * time.Second)
		s.Expect(s.lease()).To(HavePrefix("three_"))
		s.Expect(s.node("b").GetPodCidrs()).To(HaveLen(2))
		s.Expect(three.stop()).To(BeZero())
	})
}

// Several operators find the lease of one that is gone, at the same moment: each
// of them has read it when the first one writes it.
func TestOperatorsThatWantTheLeaseAtOnce(t *testing.T) {
	bubble(t, func(s *stand) {
		gone := s.start("gone", nil, all()...)
		advance(5 * time.Second)
		gone.cut.Store(true)
		s.Expect(<-gone.code).To(Equal(exitFailed))
		s.Expect(s.lease()).To(HavePrefix("gone_"))

		const n = 5
		var others []*program
		var read atomic.Int64
		together := make(chan struct{})
		for i := range n {
			others = append(others, s.start(fmt.Sprint("n", i), func(h *host) {
				connect := h.clients
				h.clients = func(o commandLine) (clients, error) {
					c, err := connect(o)
					c.kube.(*fake.Clientset).PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
						if read.Add(1) == n {
							close(together)
						}
						<-together // until each of them is about to write what it has read
						return false, nil, nil
					})
					return c, err
				}
			}, all()...))
		}
		advance(time.Minute)
		working := 0
		for _, p := range others {
			working += strings.Count(p.log.String(), "a controller runs\" controller=nodeipam")
		}
		s.Expect(working).To(Equal(1))
		for _, p := range others {
			s.Expect(p.stop()).To(BeZero(), "%s", &p.log)
		}
	})
}

// stuck is a store whose transactions end when they are released, and not before.
type stuck struct {
	kvdb.Store
	released chan struct{}
}

func (s stuck) Txn(ctx context.Context, conds []kvdb.Cond, ops []kvdb.Op) (int64, error) {
	<-s.released
	return s.Store.Txn(ctx, conds, ops)
}

// TestTheLeaseIsHeldUntilTheWorkHasEnded: no controller works when the next leader begins.
func TestTheLeaseIsHeldUntilTheWorkHasEnded(t *testing.T) {
	bubble(t, func(s *stand) {
		released := make(chan struct{})
		s.addNode("a")
		one := s.start("one", func(h *host) {
			h.store = func(storeOptions, clients, *slog.Logger) (kvdb.Store, error) {
				return stuck{unclosed{s.store}, released}, nil
			}
		}, all()...)
		advance(5 * time.Second)
		two := s.start("two", nil, all()...)
		one.cancel()
		advance(10 * time.Minute)
		s.Expect(s.lease()).To(HavePrefix("one_"))
		s.Expect(two.log.String()).NotTo(ContainSubstring("a controller runs"))
		close(released)
		s.Expect(<-one.code).To(BeZero())
		advance(10 * time.Second)
		s.Expect(s.lease()).To(HavePrefix("two_"))
		s.Expect(two.stop()).To(BeZero())
	})
}

// TestTheLeaseIsStolen: a process that does not lead any more writes nothing, ends,
// and says so.
func TestTheLeaseIsStolen(t *testing.T) {
	bubble(t, func(s *stand) {
		p := s.start("one", nil, all()...)
		advance(5 * time.Second)
		s.steal("another")
		s.addNode("a")
		advance(time.Minute)
		s.Expect(<-p.code).To(Equal(exitFailed))
		s.Expect(s.cidrs("a")).To(BeEmpty())
		s.Expect(s.node("a")).To(BeNil())
		s.Expect(s.lease()).To(Equal("another"), "the lease of another process stays")
		s.Expect(p.log.String()).To(ContainSubstring("another"))
	})
}

// TestBeforeTheFirstAnswer: an operator that never reaches the API server ends
// when it is told to.
func TestBeforeTheFirstAnswer(t *testing.T) {
	bubble(t, func(s *stand) {
		p := s.start("one", nil, all()...)
		p.cut.Store(true)
		advance(time.Hour)
		s.Expect(p.stop()).To(BeZero())
	})
}

// TestWithoutElection: the work begins at once.
func TestWithoutElection(t *testing.T) {
	bubble(t, func(s *stand) {
		s.addNode("a")
		p := s.start("one", nil, all("--leader-elect=false")...)
		advance(5 * time.Second)
		s.Expect(s.lease()).To(BeEmpty())
		s.Expect(s.node("a").GetPodCidrs()).To(HaveLen(2))
		s.Expect(p.stop()).To(BeZero())
	})
}

// TestAnOperatorIsKilled while it gives a node its podCIDRs. The next one, with or
// without an election, gives the block that is under way to no other node. It does
// not wait for a node that it cannot write.
func TestAnOperatorIsKilled(t *testing.T) {
	for _, elect := range []string{"--leader-elect=true", "--leader-elect=false"} {
		t.Run(elect, func(t *testing.T) {
			bubble(t, func(s *stand) {
				args := all(elect, "--cluster-cidr=10.1.0.0/22", "--leader-elect-lease-duration=3s", "--leader-elect-renew-deadline=2s", "--leader-elect-retry-period=1s")
				gives := func(a clienttesting.Action) bool {
					p, ok := a.(clienttesting.PatchActionImpl)
					return ok && p.GetName() == "stuck" && strings.Contains(string(p.GetPatch()), "podCIDRs")
				}
				sent := make(chan clienttesting.Action, 100)
				var dead atomic.Bool
				faulty := func(fault func(clienttesting.Action) bool) func(*host) {
					return func(h *host) {
						connect := h.clients
						h.clients = func(o commandLine) (clients, error) {
							c, err := connect(o)
							c.kube.(*fake.Clientset).PrependReactor("patch", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
								return fault(a), nil, errDown
							})
							return c, err
						}
					}
				}
				s.addNode("stuck")
				one := s.start("one", faulty(func(a clienttesting.Action) bool {
					if gives(a) {
						dead.Store(true)
						sent <- a.DeepCopy()
					}
					return dead.Load()
				}), args...)
				late := <-sent
				one.cut.Store(true)
				one.cancel()
				<-one.code
				for i := range 3 {
					s.addNode(fmt.Sprint("n", i))
				}

				began := time.Now()
				two := s.start("two", faulty(func(a clienttesting.Action) bool {
					return a.(clienttesting.PatchActionImpl).GetName() == "stuck"
				}), args...)
				advance(10 * time.Second)
				for i := range 3 {
					s.Expect(s.cidrs(fmt.Sprint("n", i))).To(HaveLen(1), "%s after the start: %s", time.Since(began), &two.log)
				}
				_, _, err := s.stamp(late)
				s.Expect(err).NotTo(HaveOccurred(), "it arrives")
				advance(time.Minute)
				given := map[string]string{}
				for _, name := range []string{"stuck", "n0", "n1", "n2"} {
					s.Expect(s.cidrs(name)).To(HaveLen(1), name)
					s.Expect(given).NotTo(HaveKey(s.cidrs(name)[0]), name)
					given[s.cidrs(name)[0]] = name
				}
				s.Expect(two.stop()).To(BeZero())
			})
		})
	}
}

// TestAControllerEnds: then all end, and the lease is given back.
func TestAControllerEnds(t *testing.T) {
	bubble(t, func(s *stand) {
		p := s.start("one", nil, all()...)
		advance(5 * time.Second)
		s.Expect(s.store.Close()).To(Succeed())
		advance(time.Minute)
		s.Expect(<-p.code).To(Equal(exitFailed))
		s.Expect(p.log.String()).To(ContainSubstring("controller ksr: "))
		s.Expect(s.lease()).To(BeEmpty())
	})
}

// TestNodeIDsAreReleased when neither agent nor Node is there for a day.
func TestNodeIDsAreReleased(t *testing.T) {
	for _, args := range [][]string{{"--controllers=ksr", "--kvdb-endpoints=e:1"}, {"--controllers=nodeids", "--kvdb-type=kubernetes"}, {"--controllers=*,-nodeids", "--kvdb-endpoints=e:1"}} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			bubble(t, func(s *stand) {
				put := func(key string, m proto.Message) {
					value, err := proto.Marshal(m)
					s.Expect(err).NotTo(HaveOccurred())
					_, err = s.store.Txn(context.Background(), nil, []kvdb.Op{kvdb.Put(key, value)})
					s.Expect(err).NotTo(HaveOccurred())
				}
				released := func(id uint32) bool {
					x, _, err := s.store.Get(context.Background(), kv.NodeRecordKey(id))
					s.Expect(err).NotTo(HaveOccurred())
					m := &kv.NodeRecord{}
					s.Expect(proto.Unmarshal(x.Value, m)).To(Succeed())
					return m.Released != 0
				}
				for id, name := range map[uint32]string{1: "there", 2: "gone"} {
					put(kv.NodeRecordKey(id), &kv.NodeRecord{Id: id, Name: name, Instance: name, Generation: 1})
					put(kv.BeatKey(id), &kv.NodeBeat{Id: id, Instance: name, Generation: 1, At: time.Now().UnixNano()})
				}
				s.addNode("there")
				p := s.start("one", nil, append(args, "--bind-address=", "--leader-elect-lease-duration=3h", "--leader-elect-renew-deadline=2h", "--leader-elect-retry-period=1h")...)
				advance(23 * time.Hour)
				s.Expect(released(2)).To(BeFalse())
				advance(2 * time.Hour)
				s.Expect(released(2)).To(Equal(!strings.Contains(args[0], "-nodeids")), "%s", &p.log)
				s.Expect(released(1)).To(BeFalse())
				s.Expect(p.stop()).To(BeZero())
			})
		})
	}
}

// get reads a page.
func get(g Gomega, addr net.Addr, path string) (int, string) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + addr.String() + path)
	g.Expect(err).NotTo(HaveOccurred())
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	g.Expect(err).NotTo(HaveOccurred())
	return resp.StatusCode, string(text)
}

// TestProbesAndMetrics of two operators in real time, with a real etcd.
func TestProbesAndMetrics(t *testing.T) {
	s := newStand(t)
	defer s.store.Close()
	server := etcdtest.Start(t)
	s.addNode("a")
	args := append(all("--leader-elect-retry-period=50ms"), "--bind-address=127.0.0.1:0", "--kvdb-endpoints="+server.Endpoint())
	args[2] = "--kvdb-prefix=/test/"
	change := func(h *host) { h.store = openStore }
	one := s.start("one", change, args...)
	at := <-one.addr
	s.Eventually(func(g Gomega) {
		status, text := get(g, at, "/readyz")
		g.Expect(status).To(Equal(http.StatusOK), text)
		g.Expect(text).To(Equal("[+]election: leading\n[+]nodeipam ok\n[+]ksr ok\n[+]nodeids ok\n[+]netresource ok\n[+]audit ok\n"))
	}).WithContext(patient(t)).WithPolling(20 * time.Millisecond).Should(Succeed())
	s.Eventually(func() []string { return s.cidrs("a") }).WithContext(patient(t)).Should(HaveLen(2))
	s.Eventually(func(g Gomega) {
		_, text := get(g, at, "/metrics")
		for _, line := range []string{
			"cadastre_operator_leader 1\n", `cadastre_operator_build_info{go_version="go`, `cadastre_ksr_objects{resource="node"} 1`, "cadastre_node_cidr_leader 1\n",
			`node_ipam_controller_cidrset_cidrs_allocations_total{clusterCIDR="10.1.0.0/16"} 1`, "cadastre_node_ids_released_total 0\n", "cadastre_operator_ipam_resync_total ", "cadastre_audit_rounds_total ", "process_start_time_seconds",
		} {
			g.Expect(text).To(ContainSubstring(line))
		}
	}).WithContext(patient(t)).WithPolling(20 * time.Millisecond).Should(Succeed())

	two := s.start("two", change, args...)
	second := <-two.addr
	for _, path := range []string{"/readyz", "/livez", "/healthz"} {
		status, text := get(s, second, path)
		s.Expect(status).To(Equal(http.StatusOK), text)
	}
	_, text := get(s, second, "/readyz")
	s.Expect(text).To(Equal("[+]election: waiting to lead\n"))
	_, text = get(s, second, "/metrics")
	s.Expect(text).To(ContainSubstring("cadastre_operator_leader 0\n"))
	s.Expect(one.stop()).To(BeZero(), "%s", &one.log)
	s.Eventually(func(g Gomega) {
		_, text := get(g, second, "/readyz")
		g.Expect(text).To(ContainSubstring("[+]ksr ok"))
	}).WithContext(patient(t)).WithPolling(20 * time.Millisecond).Should(Succeed())
	s.Expect(two.stop()).To(BeZero())
}

func TestReadinessNamesWhatAControllerWaitsFor(t *testing.T) {
	g := NewWithT(t)
	x := runner.Controller{
		Name:  "x",
		Run:   func(ctx context.Context) error { <-ctx.Done(); return nil },
		Ready: func() error { return errors.New("it reads\nmuch") },
	}
	p := &operator{runner: runner.New(runner.Config{
		Controllers: func(*runner.Term) ([]runner.Controller, error) { return []runner.Controller{x}, nil },
	})}
	answer := func() (int, string) {
		w := &recorder{header: http.Header{}}
		p.answer(p.ready)(w, nil)
		return w.status, w.String()
	}
	status, text := answer()
	g.Expect(status).To(Equal(http.StatusOK))
	g.Expect(text).To(Equal("[+]election: waiting to lead\n"))
	ctx, cancel := context.WithCancel(patient(t))
	ended := make(chan error, 1)
	go func() { ended <- p.runner.Run(ctx) }()
	g.Eventually(p.runner.Leading).WithContext(ctx).Should(BeTrue())
	status, text = answer()
	g.Expect(status).To(Equal(http.StatusServiceUnavailable))
	g.Expect(text).To(Equal("[+]election: leading\n[-]x: it reads: much\n"))
	cancel()
	g.Expect(<-ended).To(Succeed())
}

type recorder struct {
	bytes.Buffer
	header http.Header
	status int
}

func (r *recorder) Header() http.Header    { return r.header }
func (r *recorder) WriteHeader(status int) { r.status = status }

// TestItCannotStart: what is missing outside is said, and nothing is left behind.
func TestItCannotStart(t *testing.T) {
	g := NewWithT(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	defer taken.Close()
	missing := t.TempDir() + "/missing"
	empty := t.TempDir()
	base := []string{"--allocate-node-cidrs", "--cluster-cidr=10.1.0.0/16", "--kvdb-endpoints=https://e:1"}
	for _, c := range []struct {
		args []string
		said string
	}{
		{[]string{"--bind-address=" + taken.Addr().String()}, "--bind-address=" + taken.Addr().String()},
		{[]string{"--kvdb-ca=" + missing}, "--kvdb-ca: open"},
		{[]string{"--kvdb-cert=" + missing, "--kvdb-key=" + missing}, "--kvdb-cert="},
		{[]string{"--kvdb-username=u", "--kvdb-password-file=" + missing}, "--kvdb-password-file"},
		{[]string{"--kvdb-ca=" + empty}, "--kvdb-ca"},
	} {
		s := newStand(t)
		p := s.start("one", func(h *host) { h.store = openStore }, append(append([]string{}, base...), c.args...)...)
		g.Expect(<-p.code).To(Equal(exitFailed), "%v", c.args)
		g.Expect(p.log.String()).To(And(ContainSubstring("level=ERROR"), ContainSubstring(c.said)))
		_ = s.store.Close()
	}
	var out logbuffer.Buffer
	code := run(t.Context(), append([]string{"--kubeconfig=" + missing}, base...), &out, &out, host{hostname: func() (string, error) { return "h", nil }, clients: connect, store: openStore})
	g.Expect(code).To(Equal(exitFailed))
	g.Expect(out.String()).To(ContainSubstring("--kubeconfig=" + missing))
	code = run(t.Context(), base, &out, &out, host{hostname: func() (string, error) { return "h", nil }, clients: connect, store: openStore, klog: func(*slog.Logger) {}})
	g.Expect(code).To(Equal(exitFailed))
	g.Expect(out.String()).To(ContainSubstring("outside of a pod"))
}
