// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/explain"
	"github.com/cadastre/cadastre/internal/testkit/cniclient"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
	"github.com/cadastre/cadastre/plugins/podmanager/conflist"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// awayStore is a store that answers once it is back.
type awayStore struct {
	*mem.Store
	back atomic.Bool
}

func (s *awayStore) List(ctx context.Context, prefixes ...string) ([]kvdb.KeyValue, int64, error) {
	if !s.back.Load() {
		return nil, 0, errors.New("the store is away")
	}
	return s.Store.List(ctx, prefixes...)
}

// lister is a node whose agent writes a CNI list.
type lister struct {
	g     *WithT
	t     *testing.T
	node  Node
	conf  *contivconf.Config
	store *awayStore
	stop  context.CancelFunc
	ended chan error
}

func newLister(t *testing.T) *lister {
	l := &lister{g: NewWithT(t), t: t, node: nodeIn(t), store: &awayStore{Store: mem.New()}}
	dir := t.TempDir()
	conf, _, err := contivconf.Parse([]byte(`cadastre: {dataplane: linux, cni: {confDir: ` + dir + `/net.d, binDir: ` + dir + `, network: pods}}`))
	l.g.Expect(err).NotTo(HaveOccurred())
	l.conf = conf
	return l
}

func (l *lister) dir() string { return l.conf.Cadastre.CNI.ConfDir }

func (l *lister) path() string { return filepath.Join(l.dir(), conflist.FileName) }

func (l *lister) start() {
	a, err := New(l.conf, WithNode(l.node), WithSouthbound(&controller.MemorySink{}), WithStore(l.store))
	l.g.Expect(err).NotTo(HaveOccurred())
	ctx, stop := context.WithCancel(l.t.Context())
	l.stop, l.ended = stop, make(chan error, 1)
	go func() { l.ended <- a.Run(ctx) }()
}

func (l *lister) end() {
	l.stop()
	l.g.Expect(<-l.ended).To(Succeed())
}

func (l *lister) client() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(l.node.RunDir, socketName))
	}}}
}

// explained returns the explanation of a pod whose wire the agent has made.
func (l *lister) explained() string {
	reply, err := cniclient.Ask(l.t.Context(), l.client().Do, cni.Request{
		Command: "ADD", Network: "pods", ContainerID: "c", IfName: "eth0", Netns: "/run/netns/c", Main: true, Pod: cni.Pod{Namespace: "default", Name: "web"},
	})
	l.g.Expect(err).NotTo(HaveOccurred())
	l.g.Expect(reply.IPs).NotTo(BeEmpty())
	r, err := l.client().Get("http://agent" + localapi.PathExplain + "?pod=default/web")
	l.g.Expect(err).NotTo(HaveOccurred())
	defer r.Body.Close()
	var tree explain.Tree
	l.g.Expect(json.NewDecoder(r.Body).Decode(&tree)).To(Succeed())
	return tree.Text()
}

// notes returns those of the status, nil while the agent does not answer.
func (l *lister) notes() []string { return l.status().Notes }

// status returns the status, the zero one while the agent does not answer.
func (l *lister) status() (s localapi.Status) {
	r, err := l.client().Get("http://agent" + localapi.PathStatus)
	if err != nil {
		return s
	}
	defer r.Body.Close()
	l.g.Expect(json.NewDecoder(r.Body).Decode(&s)).To(Succeed())
	return s
}

// A runtime finds the plugin when the agent can serve, and from then on for ever.
func TestTheCNIListComesWhenTheAgentServes(t *testing.T) {
	l := newLister(t)
	l.start()
	l.g.Eventually(l.notes, soon, 10*time.Millisecond).ShouldNot(BeNil(), "the agent answers")
	l.g.Consistently(l.path, 300*time.Millisecond, 10*time.Millisecond).ShouldNot(BeAnExistingFile(), "its store is away")
	l.store.back.Store(true)
	l.g.Eventually(l.path, soon, 10*time.Millisecond).Should(BeAnExistingFile())
	list, err := libcni.ConfListFromFile(l.path())
	l.g.Expect(err).NotTo(HaveOccurred())
	l.g.Expect(list.Name).To(Equal("pods"))
	l.g.Expect(list.Plugins).To(HaveLen(1), "there is no portmap")
	l.g.Expect(string(list.Plugins[0].Bytes)).To(ContainSubstring(filepath.Join(l.node.RunDir, socketName)))
	first, err := os.Stat(l.path())
	l.g.Expect(err).NotTo(HaveOccurred())
	l.end()
	l.g.Expect(l.path()).To(BeAnExistingFile(), "without it the runtime could delete no pod")

	l.store = &awayStore{Store: mem.New()} // the agent has closed the first one
	l.store.back.Store(true)
	l.start()
	defer l.end()
	l.g.Eventually(l.notes, soon, 10*time.Millisecond).ShouldNot(BeNil())
	l.g.Consistently(func() bool {
		now, err := os.Stat(l.path())
		return err == nil && os.SameFile(first, now)
	}, 300*time.Millisecond, 10*time.Millisecond).Should(BeTrue(), "an equal list is not written again")
}

// The status and the explanation of a pod tell whether pods get host ports: a pod without
// them is Ready.
func TestHostPortsAreTold(t *testing.T) {
	for name, c := range map[string]struct {
		portmap  string // "": none
		plugins  int
		versions []string
		saying   string
	}{
		"no portmap":                    {"", 1, []string{}, "does not exist"},
		"a portmap that fails":          {"#!/bin/sh\nexit 1\n", 1, []string{}, "exit status 1"},
		"a portmap of another root":     {"#!/nowhere/loader\n", 2, []string{"0.3.1", "0.4.0", "1.0.0"}, "the runtime runs it on the node"},
		"a portmap that tells versions": {"#!/bin/sh\necho '{\"supportedVersions\": [\"1.0.0\"]}'\n", 2, []string{"1.0.0"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLister(t)
			l.store.back.Store(true)
			if c.portmap != "" {
				path := filepath.Join(l.conf.Cadastre.CNI.BinDir, conflist.PortMap)
				l.g.Expect(os.WriteFile(path, []byte(c.portmap), 0o700)).To(Succeed())
			}
			l.start()
			defer l.end()
			l.g.Eventually(l.path, soon, 10*time.Millisecond).Should(BeAnExistingFile())
			list, err := libcni.ConfListFromFile(l.path())
			l.g.Expect(err).NotTo(HaveOccurred())
			l.g.Expect(list.Plugins).To(HaveLen(c.plugins))
			l.g.Expect(list.CNIVersion).NotTo(BeElementOf("0.3.1", "0.4.0"))
			ports := l.status().HostPorts
			l.g.Expect(ports).NotTo(BeNil())
			l.g.Expect(ports.Versions).To(Equal(c.versions))
			l.g.Expect(ports.Reason).To(ContainSubstring(c.saying))
			l.g.Expect(ports.Reason == "").To(Equal(c.saying == ""))
			missing := ContainSubstring("its host ports are not open, if it asks for some: the CNI list has no portmap: " + ports.Reason)
			if c.plugins == 1 {
				l.g.Expect(l.explained()).To(missing)
			} else {
				l.g.Expect(l.explained()).NotTo(ContainSubstring("host ports"))
			}
		})
	}
}

// The status names the file that a runtime takes instead.
func TestAnotherCNIList(t *testing.T) {
	l := newLister(t)
	l.store.back.Store(true)
	l.g.Expect(os.MkdirAll(l.dir(), 0o700)).To(Succeed())
	other := filepath.Join(l.dir(), "05-other.conflist")
	l.g.Expect(os.WriteFile(other, []byte("{}"), 0o600)).To(Succeed())
	l.start()
	defer l.end()
	l.g.Eventually(l.path, soon, 10*time.Millisecond).Should(BeAnExistingFile())
	l.g.Expect(l.notes()).To(ContainElement(And(ContainSubstring("takes the first file"), ContainSubstring("05-other.conflist"))))
	l.g.Expect(os.ReadFile(other)).To(BeEquivalentTo("{}"), "it is another program's")
	l.g.Expect(os.Remove(other)).To(Succeed())
	l.g.Expect(l.notes()).NotTo(ContainElement(ContainSubstring("takes the first file")))
}

// A folder that cannot be written is reported, and tried again.
func TestACNIListThatCannotBeWritten(t *testing.T) {
	l := newLister(t)
	l.store.back.Store(true)
	l.g.Expect(os.WriteFile(l.dir(), nil, 0o600)).To(Succeed(), "a file in the place of the folder")
	l.start()
	defer l.end()
	l.g.Eventually(l.notes, soon, 10*time.Millisecond).Should(ContainElement(ContainSubstring("write the CNI list " + l.path())))
	l.g.Expect(os.Remove(l.dir())).To(Succeed())
	l.g.Eventually(l.path, soon, 10*time.Millisecond).Should(BeAnExistingFile())
	l.g.Eventually(l.notes, soon, 10*time.Millisecond).ShouldNot(ContainElement(ContainSubstring("write the CNI list")))
}
