// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ksr

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errDown = errors.New("connection refused")

// world is an API server, as client-go's fake clients are one, and what is wrong
// with it.
type world struct {
	client  *fake.Clientset
	dynamic *dynamicfake.FakeDynamicClient

	mu       sync.Mutex
	version  int
	down     bool
	lost     map[string]error // by resource: what every request for it is answered
	expired  map[string]bool  // by resource: changes were missed, the next watch says so
	watchers []watch.Interface
}

func newWorld() *world {
	scheme := runtime.NewScheme()
	w := &world{
		client: fake.NewSimpleClientset(), //nolint:staticcheck // with field management it is a hundred times slower
		lost:   map[string]error{}, expired: map[string]bool{},
		dynamic: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(scheme, map[schema.GroupVersionResource]string{
			v1alpha1.Resource(v1alpha1.CustomNetworks): "CustomNetworkList",
			v1alpha1.Resource(v1alpha1.NodeConfigs):    "NodeConfigList",
		}),
	}
	w.intercept(&w.client.Fake, w.client.Tracker())
	w.intercept(&w.dynamic.Fake, w.dynamic.Tracker())
	return w
}

// intercept puts what is wrong before the fake.
func (w *world) intercept(f *clienttesting.Fake, tracker clienttesting.ObjectTracker) {
	f.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		resource := action.GetResource().Resource
		if err := cmp.Or(w.trouble(resource), w.lost[action.GetVerb()+" "+resource]); err != nil {
			return true, nil, err
		}
		return false, nil, nil
	})
	f.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		resource := action.GetResource().Resource
		if err := w.trouble(resource); err != nil {
			return true, nil, err
		}
		if w.expired[resource] {
			delete(w.expired, resource)
			return true, nil, apierrors.NewResourceExpired("too old")
		}
		inner, err := tracker.Watch(action.GetResource(), action.GetNamespace())
		if err == nil {
			w.watchers = append(w.watchers, inner)
		}
		return true, inner, err
	})
}

func (w *world) trouble(resource string) error {
	if w.down {
		return errDown
	}
	return w.lost[resource]
}

// breakWatches ends all watches; what changes until they are back is missed.
func (w *world) breakWatches() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range []string{"pods", "nodes", v1alpha1.CustomNetworks, v1alpha1.NodeConfigs} {
		w.expired[r] = true
	}
	for _, x := range w.watchers {
		x.Stop()
	}
	w.watchers = nil
}

// goDown makes the API server refuse everything.
func (w *world) goDown() {
	w.mu.Lock()
	w.down = true
	w.mu.Unlock()
	w.breakWatches()
}

func (w *world) comeUp() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = false
}

// lose has every request for a resource answered with err, nil for no more. With
// "list nodes" that is every list of them.
func (w *world) lose(resource string, err error) {
	w.mu.Lock()
	w.lost[resource] = err
	w.mu.Unlock()
	if err != nil {
		w.breakWatches()
	}
}

func noSuchResource(resource string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Code: 404, Reason: metav1.StatusReasonNotFound, Message: "the server could not find the requested resource: " + resource}}
}

// next stamps an object, as an API server does.
func (w *world) next(m metav1.Object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.version++
	m.SetResourceVersion(strconv.Itoa(10_000 + w.version))
	if m.GetUID() == "" {
		m.SetUID(types.UID("uid-" + strconv.Itoa(w.version)))
	}
}

func (w *world) put(obj runtime.Object) {
	m, err := meta.Accessor(obj)
	must(err)
	w.next(m)
	gvr, tracker := w.where(obj)
	if err := tracker.Create(gvr, obj, m.GetNamespace()); apierrors.IsAlreadyExists(err) {
		must(tracker.Update(gvr, obj, m.GetNamespace()))
	} else {
		must(err)
	}
}

// remove deletes an object, if it is there.
func (w *world) remove(obj runtime.Object) {
	m, err := meta.Accessor(obj)
	must(err)
	gvr, tracker := w.where(obj)
	if err := tracker.Delete(gvr, m.GetNamespace(), m.GetName()); !apierrors.IsNotFound(err) {
		must(err)
	}
}

func (w *world) where(obj runtime.Object) (schema.GroupVersionResource, clienttesting.ObjectTracker) {
	switch obj := obj.(type) {
	case *corev1.Pod:
		return corev1.SchemeGroupVersion.WithResource("pods"), w.client.Tracker()
	case *corev1.Node:
		return corev1.SchemeGroupVersion.WithResource("nodes"), w.client.Tracker()
	case *unstructured.Unstructured:
		return v1alpha1.Resource(strings.ToLower(obj.GetKind()) + "s"), w.dynamic.Tracker()
	}
	panic("no such kind")
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// wanted returns the expected content of the store: the naive model.
func (w *world) wanted() map[string]string {
	all := map[string]string{}
	add := func(key string, m proto.Message) {
		value, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		must(err)
		all[key] = string(value)
	}
	list := func(gvr schema.GroupVersionResource, kind string, tracker clienttesting.ObjectTracker) []runtime.Object {
		l, err := tracker.List(gvr, gvr.GroupVersion().WithKind(kind), "")
		must(err)
		objs, err := meta.ExtractList(l)
		must(err)
		return objs
	}
	for _, obj := range list(corev1.SchemeGroupVersion.WithResource("pods"), "Pod", w.client.Tracker()) {
		if p := obj.(*corev1.Pod); p.Spec.NodeName != "" {
			add("node/"+p.Spec.NodeName+"/pod/"+p.Namespace+"/"+p.Name, v1alpha1.PodToKV(p))
		}
	}
	for _, obj := range list(corev1.SchemeGroupVersion.WithResource("nodes"), "Node", w.client.Tracker()) {
		add("cluster/node/"+obj.(*corev1.Node).Name, v1alpha1.NodeToKV(obj.(*corev1.Node)))
	}
	for _, obj := range list(v1alpha1.Resource(v1alpha1.CustomNetworks), "CustomNetwork", w.dynamic.Tracker()) {
		n := &v1alpha1.CustomNetwork{}
		must(runtime.DefaultUnstructuredConverter.FromUnstructured(obj.(*unstructured.Unstructured).Object, n))
		add("cluster/network/"+n.Name, n.ToKV())
	}
	for _, obj := range list(v1alpha1.Resource(v1alpha1.NodeConfigs), "NodeConfig", w.dynamic.Tracker()) {
		n := &v1alpha1.NodeConfig{}
		must(runtime.DefaultUnstructuredConverter.FromUnstructured(obj.(*unstructured.Unstructured).Object, n))
		add("node/"+n.Name+"/config", n.ToKV())
	}
	return all
}

func pod(namespace, name, node string, ips ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.PodSpec{NodeName: node}}
	for _, ip := range ips {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	return p
}

func node(name string, cidrs ...string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDRs: cidrs}}
}

func custom(kind, name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec,
	}}
}

func network(name, cidr string) *unstructured.Unstructured {
	return custom("CustomNetwork", name, map[string]any{"subnetCIDR": cidr, "subnetOneNodePrefixLen": int64(24)})
}

func nodeConfig(name, gateway string) *unstructured.Unstructured {
	return custom("NodeConfig", name, map[string]any{"gateway": gateway})
}

// others are keys that are not the reflector's.
func others() map[string]string {
	return map[string]string{
		kv.NodeRecordKey(1): "record", kv.BeatKey(1): "beat", kv.NodeNameKey("a"): "name", kv.PoolKey("default"): "pool",
		kv.ExternalKey("a", "pod/x"): "external", "node/a": "?", "other/thing": "?",
	}
}

// exchange is a store that can be exchanged for another one.
type exchange struct {
	mu   sync.Mutex
	all  []kvdb.Store
	stop []context.CancelFunc
}

func newExchange(s kvdb.Store) *exchange { return &exchange{all: []kvdb.Store{s}} }

func (e *exchange) now() kvdb.Store {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.all[len(e.all)-1]
}

// replace makes s the store. If loud is false the watches do not notice.
func (e *exchange) replace(s kvdb.Store, loud bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, s)
	for _, stop := range e.stop {
		if loud {
			stop()
		}
	}
}

func (e *exchange) Get(ctx context.Context, key string) (kvdb.KeyValue, bool, error) {
	return e.now().Get(ctx, key)
}

func (e *exchange) List(ctx context.Context, prefixes ...string) ([]kvdb.KeyValue, int64, error) {
	return e.now().List(ctx, prefixes...)
}

func (e *exchange) Txn(ctx context.Context, conds []kvdb.Cond, ops []kvdb.Op) (int64, error) {
	return e.now().Txn(ctx, conds, ops)
}

func (e *exchange) Watch(ctx context.Context, prefix string, from int64) (kvdb.Watcher, error) {
	ctx, stop := context.WithCancel(ctx)
	e.mu.Lock()
	e.stop = append(e.stop, stop)
	e.mu.Unlock()
	return e.now().Watch(ctx, prefix, from)
}

func (e *exchange) Close() (err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.all {
		err = errors.Join(err, s.Close())
	}
	for _, stop := range e.stop {
		stop()
	}
	return err
}

// bench is a world, a store and a reflector between them, in a bubble of
// simulated time.
type bench struct {
	Gomega
	*world
	store kvdb.Store
	*Reflector
	stop func() error
}

func newBench(t *testing.T, w *world, store kvdb.Store, change ...func(*Deps, *timing)) *bench {
	b := &bench{Gomega: NewWithT(t), world: w, store: store}
	deps := Deps{Client: w.client, Dynamic: w.dynamic, Store: store, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), random: func() float64 { return 0.5 }}
	settings := timing{}
	for _, f := range change {
		f(&deps, &settings)
	}
	b.Reflector = newReflector(deps, settings)
	return b
}

// start runs the reflector; what it answers is that of stop.
func (b *bench) start() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	b.stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
}

// advance lets some time pass, and then waits until all goroutines block.
func advance(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// write changes the store like another process.
func (b *bench) write(ops ...kvdb.Op) {
	b.writeTo(b.store, ops...)
}

func (b *bench) writeTo(s kvdb.Store, ops ...kvdb.Op) {
	_, err := s.Txn(context.Background(), nil, ops)
	b.Expect(err).NotTo(HaveOccurred())
}

func (b *bench) writeAll(s kvdb.Store, all map[string]string) {
	for key, value := range all {
		b.writeTo(s, kvdb.Put(key, []byte(value)))
	}
}

// has is everything in a store.
func (b *bench) has(s kvdb.Store) map[string]string {
	kvs, _, err := s.List(context.Background(), "")
	b.Expect(err).NotTo(HaveOccurred())
	all := map[string]string{}
	for _, x := range kvs {
		all[x.Key] = string(x.Value)
	}
	return all
}

// expectReflected checks that the store has what the API server has, and more.
func (b *bench) expectReflected(s kvdb.Store, more map[string]string, why ...any) {
	wanted := b.wanted()
	maps.Copy(wanted, more)
	b.Expect(b.has(s)).To(Equal(wanted), why...)
}

// metric is the value of one metric, by its name behind "cadastre_ksr_" and its labels.
func (b *bench) metric(name string) float64 {
	registry := prometheus.NewPedanticRegistry()
	b.Expect(registry.Register(b.Metrics())).To(Succeed())
	families, err := registry.Gather()
	b.Expect(err).NotTo(HaveOccurred())
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			full := f.GetName()
			if len(labels) > 0 {
				full += "{" + strings.Join(labels, ",") + "}"
			}
			if full == "cadastre_ksr_"+name {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	b.Expect(name).To(BeEmpty(), "there is no such metric")
	return 0
}

// bubble runs a test in simulated time, with a store in memory.
func bubble(t *testing.T, f func(t *testing.T, w *world, store *mem.Store)) {
	synctest.Test(t, func(t *testing.T) {
		store := mem.New()
		defer store.Close()
		f(t, newWorld(), store)
	})
}

var _ dynamic.Interface = (*dynamicfake.FakeDynamicClient)(nil)

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
