// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kubestate_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/bolt"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/plugins/kubestate/kubestatetest"
)

// kvWorld is a cluster with a kvdb. Other nodes do not write through the line of this node.
type kvWorld struct {
	g     Gomega
	inner kvdb.Store
	far   *remote
	uids  map[string]string
	born  int
}

func newKVWorld(t *testing.T, inner kvdb.Store) *kvWorld {
	return &kvWorld{g: NewWithT(t), inner: inner, far: newRemote(inner), uids: map[string]string{}}
}

func (w *kvWorld) Store() kvdb.Store { return w.far }

func (w *kvWorld) txn(ops ...kvdb.Op) {
	_, err := w.inner.Txn(context.Background(), nil, ops)
	w.g.Expect(err).NotTo(HaveOccurred())
}

func (w *kvWorld) put(key string, m proto.Message) { w.txn(kvdb.Put(key, marshal(w.g, m))) }

func (w *kvWorld) PutNode(name, podCIDR string) {
	if w.uids[name] == "" {
		w.born++
		w.uids[name] = fmt.Sprint("uid-", w.born)
	}
	w.put(kv.NodeKey(name), &kv.Node{Name: name, Uid: w.uids[name], PodCidrs: []string{podCIDR}})
}

func (w *kvWorld) DeleteNode(name string) {
	delete(w.uids, name)
	w.txn(kvdb.Delete(kv.NodeKey(name)))
}

func (w *kvWorld) PutPod(node, name, ip string) {
	w.put(kv.PodKey(node, kv.PodID{Namespace: "default", Name: name}), &kv.Pod{Namespace: "default", Name: name, Node: node, IpAddresses: []string{ip}})
}

func (w *kvWorld) DeletePod(node, name string) {
	w.txn(kvdb.Delete(kv.PodKey(node, kv.PodID{Namespace: "default", Name: name})))
}

func (w *kvWorld) PutNetwork(name, cidr string) {
	w.put(kv.CustomNetworkKey(name), &kv.CustomNetwork{Name: name, SubnetCidr: cidr})
}

func (w *kvWorld) DeleteNetwork(name string) { w.txn(kvdb.Delete(kv.CustomNetworkKey(name))) }

func (w *kvWorld) PutNodeConfig(node, gateway string) {
	w.put(kv.NodeConfigKey(node), &kv.NodeConfig{NodeName: node, Gateway: gateway})
}

func (w *kvWorld) DeleteNodeConfig(node string) { w.txn(kvdb.Delete(kv.NodeConfigKey(node))) }

func (w *kvWorld) Cut()          { w.far.goes() }
func (w *kvWorld) Heal()         { w.far.comes(w.inner) }
func (w *kvWorld) BreakWatches() { w.far.breaks() }

// CompactWatches writes more than a store remembers; one that remembers all has
// its watches broken.
func (w *kvWorld) CompactWatches() {
	if _, fast := w.inner.(*mem.Store); fast {
		for range 1500 {
			w.txn(kvdb.Put("other", nil))
		}
	}
	w.far.breaks()
}

func (w *kvWorld) Backup() func() {
	if _, ok := w.inner.(*mem.Store); !ok {
		return nil
	}
	old, err := copyOf(w.inner)
	w.g.Expect(err).NotTo(HaveOccurred())
	return func() {
		was := w.inner
		w.inner = old
		w.Cut()
		w.Heal()
		w.g.Expect(was.Close()).To(Succeed())
	}
}

func (w *kvWorld) Close() { w.g.Expect(w.inner.Close()).To(Succeed()) }

func TestSuiteWithAKVDB(t *testing.T) {
	t.Run("mem", func(t *testing.T) {
		kubestatetest.Run(t, func(t *testing.T) kubestatetest.World { return newKVWorld(t, mem.New()) })
	})
	t.Run("bolt", func(t *testing.T) {
		kubestatetest.Run(t, func(t *testing.T) kubestatetest.World {
			g := NewWithT(t)
			file, err := bolt.OpenFile(filepath.Join(t.TempDir(), "db"), bolt.FileOptions{})
			g.Expect(err).NotTo(HaveOccurred())
			store, err := file.Store()
			g.Expect(err).NotTo(HaveOccurred())
			t.Cleanup(func() { g.Expect(file.Close()).To(Succeed()) })
			return newKVWorld(t, store)
		})
	})
}
