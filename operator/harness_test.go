// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"

	"github.com/cadastre/cadastre/internal/testkit/logbuffer"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
)

func TestMain(m *testing.M) {
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	goleak.VerifyTestMain(m)
}

var errDown = errors.New("connection refused")

// stand is an API server and a store, for several operators.
type stand struct {
	Gomega
	t       *testing.T
	store   kvdb.Store
	tracker clienttesting.ObjectTracker
	objects clienttesting.ObjectTracker // ours
	version atomic.Int64
	writes  sync.Mutex                       // one at a time, as in an API server
	webhook func(clienttesting.Action) error // refuses writes of our objects; nil: none
}

func newStand(t *testing.T) *stand {
	s := &stand{Gomega: NewWithT(t), t: t, store: mem.New()}
	s.tracker = s.client(nil).Tracker()
	s.objects = newDynamic().Tracker()
	return s
}

// client is a fake client of the API server. While cut is true it answers nothing.
func (s *stand) client(cut *atomic.Bool) *fake.Clientset {
	c := fake.NewSimpleClientset() //nolint:staticcheck // with field management it is a hundred times slower
	if s.tracker == nil {
		return c
	}
	all := &fake.Clientset{}
	all.AddReactor("*", "*", clienttesting.ObjectReaction(s.tracker))
	all.AddWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
		w, err := s.tracker.Watch(a.GetResource(), a.GetNamespace())
		return true, w, err
	})
	all.PrependReactor("*", "*", s.stamp)
	all.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return cut.Load(), nil, errDown
	})
	return all
}

// stamp does what an API server does for optimistic locking. The cases are
// types, not interfaces: those of a create and of an update have the same methods.
func (s *stand) stamp(action clienttesting.Action) (bool, runtime.Object, error) {
	s.writes.Lock()
	defer s.writes.Unlock()
	switch a := action.(type) {
	case clienttesting.CreateActionImpl:
		is := a.GetObject().DeepCopyObject()
		s.next(is)
		return true, is, s.tracker.Create(a.GetResource(), is, a.GetNamespace())
	case clienttesting.UpdateActionImpl:
		is := a.GetObject().DeepCopyObject()
		m, err := meta.Accessor(is)
		must(err)
		if _, err := s.unchanged(action, m); err != nil {
			return true, nil, err
		}
		s.next(is)
		return true, is, s.tracker.Update(a.GetResource(), is, a.GetNamespace())
	case clienttesting.PatchActionImpl:
		is, err := s.patched(a)
		if err != nil {
			return true, nil, err
		}
		s.next(is)
		return true, is, s.tracker.Update(a.GetResource(), is, a.GetNamespace())
	case clienttesting.GetActionImpl, clienttesting.ListActionImpl, clienttesting.DeleteActionImpl:
		return false, nil, nil
	}
	return true, nil, fmt.Errorf("the test's API server has no rules for %s of %s", action.GetVerb(), action.GetResource().Resource)
}

// unchanged returns the object that is to be written, if it is the one that the
// writer names, and as the writer has read it.
func (s *stand) unchanged(a clienttesting.Action, want metav1.Object) (runtime.Object, error) {
	old, err := s.tracker.Get(a.GetResource(), a.GetNamespace(), want.GetName())
	if err != nil {
		return nil, err
	}
	was, err := meta.Accessor(old)
	must(err)
	patch := a.GetVerb() == "patch" // a patch sets no condition on what it does not name
	if same := was.GetResourceVersion() == want.GetResourceVersion(); !same && (!patch || want.GetResourceVersion() != "") {
		return nil, apierrors.NewConflict(a.GetResource().GroupResource(), want.GetName(), errors.New("the object has been modified"))
	}
	if want.GetUID() != "" && was.GetUID() != want.GetUID() {
		return nil, apierrors.NewConflict(a.GetResource().GroupResource(), want.GetName(), errors.New("the UID is another"))
	}
	return old, nil
}

// patched returns what a patch makes of its object, which it leaves as it is.
func (s *stand) patched(a clienttesting.PatchActionImpl) (runtime.Object, error) {
	var named struct{ Metadata metav1.ObjectMeta }
	if err := json.Unmarshal(a.GetPatch(), &named); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	named.Metadata.Name = a.GetName()
	old, err := s.unchanged(a, &named.Metadata)
	if err != nil {
		return nil, err
	}
	scratch := clienttesting.NewObjectTracker(scheme.Scheme, scheme.Codecs.UniversalDecoder())
	must(scratch.Create(a.GetResource(), old.DeepCopyObject(), a.GetNamespace()))
	_, is, err := clienttesting.ObjectReaction(scratch)(a)
	if err != nil {
		return nil, err
	}
	was, one := old.(*corev1.Node)
	if node, two := is.(*corev1.Node); one && two && len(was.Spec.PodCIDRs) > 0 && !slices.Equal(was.Spec.PodCIDRs, node.Spec.PodCIDRs) {
		return nil, apierrors.NewInvalid(schema.GroupKind{Kind: "Node"}, a.GetName(), field.ErrorList{field.Forbidden(field.NewPath("spec", "podCIDRs"), "it is set once")})
	}
	return is, nil
}

func (s *stand) next(obj runtime.Object) {
	m, err := meta.Accessor(obj)
	must(err)
	m.SetResourceVersion(strconv.FormatInt(10_000+s.version.Add(1), 10))
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func (s *stand) addNode(name string) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.Now()}}
	s.next(n)
	s.Expect(s.tracker.Create(nodes(), n, "")).To(Succeed())
}

func nodes() schema.GroupVersionResource { return corev1.SchemeGroupVersion.WithResource("nodes") }

func (s *stand) cidrs(name string) []string {
	obj, err := s.tracker.Get(nodes(), "", name)
	s.Expect(err).NotTo(HaveOccurred())
	return obj.(*corev1.Node).Spec.PodCIDRs
}

func leases() schema.GroupVersionResource {
	return coordinationv1.SchemeGroupVersion.WithResource("leases")
}

// lease returns the holder of the lease, "" if it has none.
func (s *stand) lease() string {
	obj, err := s.tracker.Get(leases(), "kube-system", "cadastre-operator")
	if apierrors.IsNotFound(err) {
		return ""
	}
	s.Expect(err).NotTo(HaveOccurred())
	if holder := obj.(*coordinationv1.Lease).Spec.HolderIdentity; holder != nil {
		return *holder
	}
	return ""
}

// steal gives the lease to another process.
func (s *stand) steal(who string) {
	obj, err := s.tracker.Get(leases(), "kube-system", "cadastre-operator")
	s.Expect(err).NotTo(HaveOccurred())
	l := obj.DeepCopyObject().(*coordinationv1.Lease)
	l.Spec.HolderIdentity = &who
	*l.Spec.LeaseTransitions++
	s.next(l)
	s.Expect(s.tracker.Update(leases(), l, "kube-system")).To(Succeed())
}

// unclosed is a store that outlives who uses it.
type unclosed struct{ kvdb.Store }

func (unclosed) Close() error { return nil }

// program is one operator.
type program struct {
	log    logbuffer.Buffer
	cut    atomic.Bool // it does not reach the API server any more
	cancel context.CancelFunc
	code   chan int
	addr   chan net.Addr
}

// start runs an operator with the flags.
func (s *stand) start(name string, change func(*host), args ...string) *program {
	p := &program{code: make(chan int, 1), addr: make(chan net.Addr, 1)}
	client := s.client(&p.cut)
	h := host{
		hostname: func() (string, error) { return name, nil },
		clients: func(commandLine) (clients, error) {
			return clients{kube: client, leases: client.CoordinationV1(), dynamic: s.dynamic(&p.cut)}, nil
		},
		store:     func(storeOptions, clients, *slog.Logger) (kvdb.Store, error) { return unclosed{s.store}, nil },
		listening: func(a net.Addr) { p.addr <- a },
	}
	if change != nil {
		change(&h)
	}
	var ctx context.Context
	ctx, p.cancel = context.WithCancel(context.Background())
	go func() { p.code <- run(ctx, args, &p.log, &p.log, h) }()
	return p
}

// stop ends an operator as SIGTERM does.
func (p *program) stop() int {
	p.cancel()
	return <-p.code
}

// advance lets some time pass, and then waits until all goroutines block.
func advance(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// all are the flags of an operator with all controllers and no listener.
func all(more ...string) []string {
	return append([]string{"--allocate-node-cidrs", "--cluster-cidr=10.1.0.0/16,fd00::/48", "--kvdb-endpoints=https://192.0.2.1:2379", "--netresource-provider=clusterpool", "--bind-address="}, more...)
}

// bubble runs a test in simulated time.
func bubble(t *testing.T, f func(s *stand)) {
	synctest.Test(t, func(t *testing.T) {
		s := newStand(t)
		defer s.store.Close()
		f(s)
	})
}

// patient returns a context for tests in real time. It ends shortly before the
// limit of go test: how fast the machine is does not matter, and a test that
// waits in vain still says for what.
func patient(t *testing.T) context.Context {
	end, ok := t.Deadline()
	if !ok {
		return t.Context()
	}
	ctx, cancel := context.WithDeadline(t.Context(), end.Add(-10*time.Second))
	t.Cleanup(cancel)
	return ctx
}
