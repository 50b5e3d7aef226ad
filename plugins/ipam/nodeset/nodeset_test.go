// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeset_test

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/plugins/ipam/nodeset"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestInstanceOf(t *testing.T) {
	for id, want := range map[string]string{
		"aws:///eu-west-1a/i-0abc": "i-0abc", "openstack:///6a1e": "6a1e", "openstack://region/6a1e": "6a1e", "kind://docker/c/node": "node",
		"i-0abc": "", "": "", "aws:///": "",
	} {
		NewWithT(t).Expect(nodeset.InstanceOf(id)).To(Equal(want), id)
	}
}

func TestOnlyMarkedBlocksAreRefused(t *testing.T) {
	leased := func(netip.Prefix) bool { return true }
	for _, c := range []struct {
		state     handshake.State
		restoring bool
		open      int
		refused   int
	}{
		{handshake.Marked, false, 1, 1},
		{handshake.Marked, true, 1, 0}, // no answer yet
		{handshake.Ready, false, 0, 0}, // the operator may have released it by now
		{handshake.Ready, true, 0, 0},
		{handshake.Released, false, 0, 0},
		{handshake.DoNotRelease, false, 1, 0},
		{"nonsense", false, 0, 0},
	} {
		set := &kv.NetResourceSet{Pool: map[string]*kv.NetResource{"10.0.0.7": {}}, Releases: map[string]string{"10.0.0.7": string(c.state)}}
		u := nodeset.Read(set, nodeset.Rules{Leased: leased, Restoring: c.restoring})
		NewWithT(t).Expect(u.Open).To(HaveLen(c.open), "%+v", c)
		NewWithT(t).Expect(u.Refused).To(HaveLen(c.refused), "%+v", c)
	}
}

// flaky is a store whose lists fail while down is set.
type flaky struct {
	*mem.Store
	down  atomic.Bool
	lists atomic.Int64
}

func (f *flaky) List(ctx context.Context, prefixes ...string) ([]kvdb.KeyValue, int64, error) {
	if f.lists.Add(1); f.down.Load() {
		return nil, 0, errors.New("connection refused")
	}
	return f.Store.List(ctx, prefixes...)
}

// followed runs Follow over a store in simulated time.
type followed struct {
	g     Gomega
	store *flaky
	fail  atomic.Int64 // so many calls of apply fail
	log   logbuffer

	mu       sync.Mutex
	versions []nodeset.Version
}

// logbuffer collects a log.
type logbuffer struct {
	mu sync.Mutex
	strings.Builder
}

func (b *logbuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Builder.Write(p)
}

func (b *logbuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Builder.String()
}

func (f *followed) seen() []nodeset.Version {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.versions)
}

func follow(t *testing.T) *followed {
	f := &followed{g: NewWithT(t), store: &flaky{Store: mem.New()}}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	t.Cleanup(func() {
		cancel()
		<-ended
		_ = f.store.Close()
	})
	deps := nodeset.FollowDeps{Log: slog.New(slog.NewTextHandler(&f.log, nil)), Store: f.store, Node: "n1"}
	go func() {
		defer close(ended)
		nodeset.Follow(ctx, deps, func(_ context.Context, v nodeset.Version) error {
			if f.fail.Add(-1) >= 0 {
				return errors.New("disk full")
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			f.versions = append(f.versions, v)
			return nil
		})
	}()
	synctest.Wait()
	return f
}

func (f *followed) write(op ...kvdb.Op) {
	_, err := f.store.Txn(context.Background(), nil, op)
	f.g.Expect(err).NotTo(HaveOccurred())
	synctest.Wait()
}

func (f *followed) set(cidr string) kvdb.Op {
	value, err := proto.Marshal(&kv.NetResourceSet{Name: "n1", PodCidrs: []string{cidr}})
	f.g.Expect(err).NotTo(HaveOccurred())
	return kvdb.Put(kv.NetResourceSetKey("n1"), value)
}

// last returns the newest version: its CIDR, "" for none.
func (f *followed) last() string {
	all := f.seen()
	v := all[len(all)-1]
	if v.Set == nil {
		return ""
	}
	return v.Set.PodCidrs[0]
}

func TestEachVersionIsApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := follow(t)
		f.g.Expect(f.last()).To(BeEmpty())
		f.write(f.set("10.1.0.0/24"))
		f.g.Expect(f.last()).To(Equal("10.1.0.0/24"))
		f.write(kvdb.Put(kv.NetResourceSetKey("n1")+"/else", nil), kvdb.Put(kv.NetResourceSetKey("n2"), nil))
		f.g.Expect(f.seen()).To(HaveLen(2), "other keys are not the set")
		f.write(kvdb.Put(kv.NetResourceSetKey("n1"), []byte("\xff")))
		f.g.Expect(f.seen()).To(HaveLen(2), "what cannot be read changes nothing")
		f.write(kvdb.Delete(kv.NetResourceSetKey("n1")))
		f.g.Expect(f.last()).To(BeEmpty())
		f.g.Expect(f.seen()[2].Revision).To(BeNumerically(">", f.seen()[1].Revision))
	})
}

func TestAVersionThatCannotBeAppliedIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := follow(t)
		f.fail.Store(5)
		f.write(f.set("10.1.0.0/24"))
		f.g.Expect(f.last()).To(BeEmpty())
		time.Sleep(time.Minute)
		synctest.Wait()
		f.g.Expect(f.last()).To(Equal("10.1.0.0/24"))
		f.g.Expect(strings.Count(f.log.String(), "level=WARN")).To(BeNumerically("<=", 2), f.log.String())
	})
}

func TestAStoreThatIsAwayGetsFewRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := follow(t)
		f.store.down.Store(true)
		f.fail.Store(1)
		f.write(f.set("10.1.0.0/24")) // ends the watch
		f.store.lists.Store(0)
		time.Sleep(10 * time.Minute)
		f.g.Expect(f.store.lists.Load()).To(BeNumerically("<", 40))
		f.store.down.Store(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		f.g.Expect(f.last()).To(Equal("10.1.0.0/24"))
	})
}
