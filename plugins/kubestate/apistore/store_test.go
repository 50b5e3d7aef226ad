// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package apistore_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/internal/testkit/apistoretest"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/plugins/kubestate/apistore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 5 * time.Minute

// rig is a Store of a Server.
type rig struct {
	Gomega
	t      *testing.T
	server *apistoretest.Server
	*apistore.Store
}

func newRig(t *testing.T, changes ...func(*apistore.Config)) *rig {
	r := &rig{Gomega: NewWithT(t), t: t, server: apistoretest.New()}
	c := apistore.Config{REST: r.server.Config(), Node: "node-a", Log: slog.New(slog.DiscardHandler)}
	for _, change := range changes {
		change(&c)
	}
	var err error
	r.Store, err = apistore.Open(c)
	r.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(r.server.Close)
	t.Cleanup(func() { r.Expect(r.Close()).To(Succeed()) })
	return r
}

func impatient(c *apistore.Config) { c.Timeout = 300 * time.Millisecond }

func (r *rig) pool(name string, generation uint64) kvdb.Op {
	value, err := proto.Marshal(&kv.Pool{Name: name, Generation: generation})
	r.Expect(err).NotTo(HaveOccurred())
	return kvdb.Put(kv.PoolKey(name), value)
}

func (r *rig) put(name string, generation uint64) int64 {
	rev, err := r.Txn(r.t.Context(), nil, []kvdb.Op{r.pool(name, generation)})
	r.ExpectWithOffset(1, err).NotTo(HaveOccurred())
	return rev
}

// generation is that of a pool, 0 for none.
func (r *rig) generation(name string) uint64 {
	x, _, err := r.Get(r.t.Context(), kv.PoolKey(name))
	r.Expect(err).NotTo(HaveOccurred())
	return generationIn(x.Value)
}

func generationIn(value []byte) uint64 {
	m := &kv.Pool{}
	if proto.Unmarshal(value, m) != nil {
		return 0
	}
	return m.Generation
}

func (r *rig) watch(from int64) kvdb.Watcher {
	w, err := r.Watch(r.t.Context(), kv.PoolPrefix, from)
	r.ExpectWithOffset(1, err).NotTo(HaveOccurred())
	r.t.Cleanup(w.Close)
	return w
}

// next expects a generation of a pool next, 0 for its end.
func (r *rig) next(w kvdb.Watcher, want uint64) {
	select {
	case batch, open := <-w.Events():
		r.ExpectWithOffset(1, open).To(BeTrue(), "%v", w.Err())
		r.ExpectWithOffset(1, generationIn(batch[0].Value)).To(Equal(want))
		r.ExpectWithOffset(1, batch[0].Deleted).To(Equal(want == 0))
	case <-time.After(patience):
		r.t.Fatal("no event came")
	}
}

func (r *rig) ends(w kvdb.Watcher) error {
	r.Eventually(w.Events(), patience).Should(BeClosed())
	return w.Err()
}

// admin changes objects of other programs, and objects that only agents should write.
func (r *rig) admin(resource string) dynamic.ResourceInterface {
	client, err := dynamic.NewForConfig(r.server.Config())
	r.Expect(err).NotTo(HaveOccurred())
	return client.Resource(v1alpha1.Resource(resource))
}

// However its streams end, a watch delivers each change once.
func TestStreamsThatEnd(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*apistoretest.Server){
		"in good order": (*apistoretest.Server).EndWatches, "cut off": (*apistoretest.Server).CutWatches,
		"after a bookmark, and what was before is forgotten": func(s *apistoretest.Server) { s.Bookmark(); s.EndWatches(); s.Compact() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			w := r.watch(0)
			for i := uint64(1); i < 8; i += 2 {
				r.put("p", i)
				r.next(w, i)
				for range 5 { // a bookmark reports these
					_, err := r.Txn(t.Context(), nil, []kvdb.Op{kvdb.Put(kv.PoolsKey, nil)})
					r.Expect(err).NotTo(HaveOccurred())
				}
				end(r.server)
				r.put("p", i+1)
				r.next(w, i+1)
			}
		})
	}
}

// What has ended a stream may have been more than the stream.
func TestWatchesThatEnd(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		do   func(*rig)
		want any
	}{
		"too old":            {func(r *rig) { r.server.Expire() }, kvdb.ErrCompacted},
		"too old meanwhile":  {func(r *rig) { r.server.CutWatches(); r.put("q", 2); r.server.Compact() }, kvdb.ErrCompacted},
		"the server is away": {func(r *rig) { r.server.Down() }, ContainSubstring("nodeids")},
		"no watch any more": {func(r *rig) {
			r.server.Plan(apistoretest.Always("watch", apistoretest.Fail()))
			r.server.CutWatches()
		}, ContainSubstring("injected")},
		"no definition": {func(r *rig) { r.server.Undefine(v1alpha1.Pools, true); r.server.CutWatches() }, ContainSubstring("k8s/crd")},
		"closed":        {func(r *rig) { r.Expect(r.Close()).To(Succeed()) }, kvdb.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.put("p", 1)
			w := r.watch(0)
			c.do(r)
			r.Expect(r.ends(w)).To(MatchError(c.want))
		})
	}
}

// A server that comes back with an older state is noticed: by what reopens a
// stream, and by any List. Nothing waits for revisions that were already.
func TestAnOlderState(t *testing.T) {
	t.Parallel()
	for name, look := range map[string]func(*rig){
		"by the watch": func(*rig) {},
		"by a list": func(r *rig) {
			_, _, err := r.List(r.t.Context(), kv.PoolPrefix)
			r.Expect(err).NotTo(HaveOccurred())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.put("p", 1)
			then := r.server.Snapshot()
			for i := range uint64(10) {
				r.put("p", 2+i)
			}
			w := r.watch(0)
			r.server.Restore(then, false)
			look(r)
			r.Expect(r.ends(w)).To(MatchError(apistore.ErrOlder))
			kvs, rev, err := r.List(t.Context(), kv.PoolPrefix)
			r.Expect(err).NotTo(HaveOccurred())
			r.Expect(generationIn(kvs[0].Value)).To(Equal(uint64(1)))
			w = r.watch(rev + 1)
			r.put("p", 20)
			r.next(w, 20)
		})
	}
	t.Run("that counts on", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		r.put("p", 1)
		then := r.server.Snapshot()
		r.put("p", 2)
		w := r.watch(0)
		r.server.Restore(then, true)
		r.Expect(r.ends(w)).To(MatchError(kvdb.ErrCompacted))
	})
}

// A lost answer does not show the outcome of a write; repeating it is safe.
func TestAnswersThatAreLost(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]apistoretest.Fault{"torn": apistoretest.Tear(), "dropped": apistoretest.Drop(), "failed": apistoretest.Fail()} {
		r := newRig(t)
		rev := r.put("p", 1)
		r.server.Plan(apistoretest.On("update", 1, f))
		change := func() error {
			_, err := r.Txn(t.Context(), []kvdb.Cond{kvdb.AtRevision(kv.PoolKey("p"), rev)}, []kvdb.Op{r.pool("p", 2)})
			return err
		}
		err := change()
		r.Expect(err).To(And(MatchError(ContainSubstring("cluster/pool/p")), Not(MatchError(kvdb.ErrConditions))), name)
		if name == "failed" {
			r.Expect(r.generation("p")).To(Equal(uint64(1)))
			r.Expect(change()).To(Succeed())
		} else {
			r.Expect(r.generation("p")).To(Equal(uint64(2)), name)
			r.Expect(change()).To(MatchError(kvdb.ErrConditions), name)
		}
	}
}

// A server that does not answer delays a caller by Timeout at most, and Close not at
// all.
func TestASilentServer(t *testing.T) {
	t.Parallel()
	for name, ask := range map[string]func(*rig, context.Context) error{
		"get":  func(r *rig, ctx context.Context) error { _, _, err := r.Get(ctx, kv.PoolKey("p")); return err },
		"list": func(r *rig, ctx context.Context) error { _, _, err := r.List(ctx, ""); return err },
		"txn": func(r *rig, ctx context.Context) error {
			_, err := r.Txn(ctx, nil, []kvdb.Op{r.pool("p", 1)})
			return err
		},
		"watch": func(r *rig, ctx context.Context) error { _, err := r.Watch(ctx, "", 2); return err },
		"probe": func(r *rig, ctx context.Context) error { return r.Probe(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			release := make(chan struct{})
			silence := func(_, _ string, _ int) apistoretest.Fault { return apistoretest.Hold(release) }
			r := newRig(t, impatient)
			r.server.Plan(silence)
			defer close(release)
			r.Expect(ask(r, t.Context())).To(MatchError(context.DeadlineExceeded))
			ctx, cancel := context.WithCancel(t.Context())
			context.AfterFunc(t.Context(), cancel)
			time.AfterFunc(20*time.Millisecond, cancel)
			r.Expect(ask(r, ctx)).To(MatchError(context.Canceled))
			patient := newRig(t)
			patient.server.Plan(silence)
			asked := make(chan error, 1)
			go func() { asked <- ask(patient, t.Context()) }()
			patient.Eventually(patient.server.Count, patience).Should(BeNumerically(">", 0))
			patient.Expect(patient.Close()).To(Succeed())
			var err error
			patient.Eventually(asked, patience).Should(Receive(&err))
			patient.Expect(err).To(MatchError(kvdb.ErrClosed))
		})
	}
}

// What is not there is not an error; that there can be none is.
func TestNoDefinition(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.server.Undefine(v1alpha1.Pools, true)
	what := And(ContainSubstring("pools"), ContainSubstring("k8s/crd"))
	_, _, err := r.Get(t.Context(), kv.PoolKey("p"))
	r.Expect(err).To(MatchError(what))
	_, _, err = r.List(t.Context(), kv.ClusterPrefix)
	r.Expect(err).To(MatchError(what))
	_, err = r.Watch(t.Context(), kv.ClusterPrefix, 2)
	r.Expect(err).To(MatchError(what))
	for _, conds := range [][]kvdb.Cond{nil, {kvdb.Absent(kv.PoolKey("p"))}, {kvdb.AtRevision(kv.PoolKey("p"), 7)}} {
		_, err = r.Txn(t.Context(), conds, []kvdb.Op{r.pool("p", 1)})
		r.Expect(err).To(And(MatchError(what), Not(MatchError(kvdb.ErrConditions))))
	}
	_, found, err := r.Get(t.Context(), kv.NodeRecordKey(1))
	r.Expect(err).NotTo(HaveOccurred())
	r.Expect(found).To(BeFalse())
}

// A refusal by a policy differs from a missing right and from a lost race.
func TestAPolicyRefuses(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rev := r.put("p", 1)
	key := kv.PoolKey("p")
	for verb, txn := range map[string]func() (int64, error){
		"create": func() (int64, error) { return r.Txn(t.Context(), nil, []kvdb.Op{r.pool("q", 1)}) },
		"update": func() (int64, error) {
			return r.Txn(t.Context(), []kvdb.Cond{kvdb.AtRevision(key, rev)}, []kvdb.Op{r.pool("p", 2)})
		},
		"delete": func() (int64, error) {
			return r.Txn(t.Context(), []kvdb.Cond{kvdb.AtRevision(key, rev)}, []kvdb.Op{kvdb.Delete(key)})
		},
	} {
		r.server.Plan(apistoretest.On(verb, 1, apistoretest.Refuse()))
		_, err := txn()
		r.Expect(err).To(And(MatchError(apistore.ErrPolicy), MatchError(ContainSubstring("it is of node b")), Not(MatchError(kvdb.ErrConditions)), Not(MatchError(ContainSubstring("the role")))), verb)
	}
	r.Expect(r.generation("p")).To(Equal(uint64(1)))
}

// An object that cannot be read is there all the same: it can be written over,
// and does not look free.
func TestAnUnreadableObjectIsAnUnreadableValue(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w, err := r.Watch(t.Context(), kv.NodeRecordPrefix, 0)
	r.Expect(err).NotTo(HaveOccurred())
	defer w.Close()
	u := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "5"}, "spec": map[string]any{"released": "yesterday"}}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion().WithKind("NodeID"))
	_, err = r.admin(v1alpha1.NodeIDs).Create(t.Context(), u, metav1.CreateOptions{})
	r.Expect(err).NotTo(HaveOccurred())
	for _, list := range []func() ([]kvdb.KeyValue, int64, error){
		func() ([]kvdb.KeyValue, int64, error) { return r.List(t.Context(), kv.NodeRecordPrefix) },
		func() ([]kvdb.KeyValue, int64, error) {
			x, _, err := r.Get(t.Context(), kv.NodeRecordKey(5))
			return []kvdb.KeyValue{x}, 0, err
		},
		func() ([]kvdb.KeyValue, int64, error) {
			ev := <-w.Events()
			r.Expect(ev[0].Deleted).To(BeFalse())
			return []kvdb.KeyValue{ev[0].KeyValue}, 0, nil
		},
	} {
		kvs, _, err := list()
		r.Expect(err).NotTo(HaveOccurred())
		r.Expect(kvs).To(HaveLen(1))
		r.Expect(kvs[0].Key).To(Equal(kv.NodeRecordKey(5)))
		r.Expect(proto.Unmarshal(kvs[0].Value, &kv.NodeRecord{})).NotTo(Succeed())
		r.Expect(kvs[0].ModRevision).To(BeNumerically(">", 0))
	}
	x, _, err := r.Get(t.Context(), kv.NodeRecordKey(5))
	r.Expect(err).NotTo(HaveOccurred())
	value, err := proto.Marshal(&kv.NodeRecord{Id: 5, Name: "a"})
	r.Expect(err).NotTo(HaveOccurred())
	_, err = r.Txn(t.Context(), []kvdb.Cond{kvdb.AtRevision(x.Key, x.ModRevision)}, []kvdb.Op{kvdb.Put(x.Key, value)})
	r.Expect(err).NotTo(HaveOccurred())
}

// A transaction that loses an object that nodes compete for, while it writes the others, fails.
func TestContendedObjectsAreCheckedAfterTheLastWrite(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	name := func(id uint32) kvdb.Op {
		value, err := proto.Marshal(&kv.NodeName{Id: id})
		r.Expect(err).NotTo(HaveOccurred())
		return kvdb.Put(kv.NodeNameKey("a"), value)
	}
	raced := false
	r.server.Plan(func(verb, resource string, _ int) apistoretest.Fault {
		if verb != "create" || resource != v1alpha1.Pools || raced {
			return apistoretest.Fault{}
		}
		raced = true
		release := make(chan struct{})
		go func() {
			defer close(release)
			if _, err := r.Txn(t.Context(), nil, []kvdb.Op{name(6)}); err != nil {
				t.Error(err)
			}
		}()
		return apistoretest.Hold(release)
	})
	_, err := r.Txn(t.Context(), []kvdb.Cond{kvdb.Absent(kv.NodeNameKey("a"))}, []kvdb.Op{name(5), r.pool("p", 1)})
	r.Expect(err).To(MatchError(kvdb.ErrConditions))
	r.Expect(r.generation("p")).To(Equal(uint64(1)), "it was written")
}

// Conditions on what is not written are looked at again when all is written.
func TestConditionsAreCheckedAfterTheLastWrite(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	q := r.pool("q", 1)
	r.server.Plan(func(verb, _ string, n int) apistoretest.Fault {
		if verb != "create" || n > 3 { // get of q, get and create of p
			return apistoretest.Fault{}
		}
		release := make(chan struct{})
		go func() {
			defer close(release)
			if _, err := r.Txn(t.Context(), nil, []kvdb.Op{q}); err != nil {
				t.Error(err)
			}
		}()
		return apistoretest.Hold(release)
	})
	_, err := r.Txn(t.Context(), []kvdb.Cond{kvdb.Absent(kv.PoolKey("q"))}, []kvdb.Op{r.pool("p", 1)})
	r.Expect(err).To(MatchError(kvdb.ErrConditions))
	r.Expect(r.generation("p")).To(Equal(uint64(1)), "it was written")
}

// A list whose revision is compacted meanwhile is repeated.
func TestAListThatTakesLong(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	seen := 0
	r.server.Plan(func(verb, _ string, _ int) apistoretest.Fault {
		if verb != "list" {
			return apistoretest.Fault{}
		}
		if seen++; seen != 3 {
			return apistoretest.Fault{}
		}
		release := make(chan struct{})
		go func() {
			defer close(release)
			if _, err := r.Txn(t.Context(), nil, []kvdb.Op{r.pool("p", 1)}); err != nil {
				t.Error(err)
			}
			r.server.Compact()
		}()
		return apistoretest.Hold(release)
	})
	kvs, _, err := r.List(t.Context(), kv.ClusterPrefix)
	r.Expect(err).NotTo(HaveOccurred())
	r.Expect(kvs).To(HaveLen(1))
}

// Close at any moment of a watch's life leaves nothing behind, as TestMain sees.
func TestCloseAtAnyMoment(t *testing.T) {
	t.Parallel()
	for i := range 30 {
		r := newRig(t)
		done := make(chan struct{})
		go func() {
			defer close(done)
			if w, err := r.Watch(t.Context(), "", 0); err == nil {
				for range w.Events() {
				}
				w.Close()
			}
		}()
		go func() { _, _ = r.Txn(t.Context(), nil, []kvdb.Op{r.pool("p", 1)}) }()
		r.Eventually(r.server.Count, patience, time.Microsecond).Should(BeNumerically(">=", i/3))
		r.Expect(r.Close()).To(Succeed())
		r.Eventually(done, patience).Should(BeClosed())
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	server := apistoretest.New()
	defer server.Close()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %q}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\ncurrent-context: c\nusers: [{name: u, user: {}}]\n", server.Config().Host)
	g.Expect(os.WriteFile(path, []byte(text), 0o600)).To(Succeed())
	store, err := apistore.Open(apistore.Config{Kubeconfig: path})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(store.Probe(t.Context())).To(Succeed())
	g.Expect(store.Close()).To(Succeed())
	_, err = apistore.Open(apistore.Config{Kubeconfig: path + "-none"})
	g.Expect(err).To(MatchError(And(ContainSubstring("kubeconfig"), ContainSubstring("account of a pod"))))
}
