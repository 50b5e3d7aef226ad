// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	"github.com/cadastre/cadastre/internal/testkit/cniclient"
	"github.com/cadastre/cadastre/internal/testkit/stage"
	"github.com/cadastre/cadastre/internal/testkit/stage/nodescript"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// patience bounds the wait for another process; it decides no result.
const patience = time.Minute

// node is an agent, a process, with a client of its socket.
type node struct {
	*WithT
	stage.Agent
	process *stage.Process
	client  *http.Client
}

// newNode starts the agent of a node and waits until it serves.
func newNode(t *testing.T, name, conf string) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "sc") // a test's own folder is too long for a socket
	n := &node{WithT: NewWithT(t)}
	n.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	n.Agent = stage.Agent{Place: stage.Place{Root: dir, Bin: nodescript.Bin(), Dir: dir}, Config: filepath.Join(dir, "contiv.conf"), Node: name}
	n.configure(conf)
	n.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", n.Socket())
	}}}
	t.Cleanup(n.client.CloseIdleConnections)
	t.Cleanup(func() {
		if n.process != nil {
			_ = n.process.Halt(patience)
		}
	})
	n.start(t)
	return n
}

// configure writes the configuration. The agent reads the witnesses once only: the network
// namespaces of this machine are those of other tests.
func (n *node) configure(conf string) {
	var all map[string]map[string]any
	n.Expect(yaml.Unmarshal([]byte(conf), &all)).To(Succeed())
	if all["cadastre"] == nil {
		all["cadastre"] = map[string]any{}
	}
	all["cadastre"]["witnesses"] = map[string]any{"runtime": "none", "engine": "none", "interval": "1h"}
	text, err := yaml.Marshal(all)
	n.Expect(err).NotTo(HaveOccurred())
	n.Expect(os.WriteFile(n.Config, text, 0o600)).To(Succeed())
}

func (n *node) start(t *testing.T) {
	t.Helper()
	var err error
	n.process, err = n.Launch(func(f func() error) error { return f() })
	n.Expect(err).NotTo(HaveOccurred())
	if err := n.Await(t.Context(), n.process); err != nil {
		log, _ := os.ReadFile(n.Log())
		t.Fatalf("%v\n%s", err, log)
	}
}

func (n *node) kill() {
	n.Expect(n.process.Kill()).To(Succeed())
	n.process = nil
}

// sandbox is an interface of a container of a pod.
type sandbox struct{ pod, container, ifName string }

// cni sends a CNI request; a refusal is a *cni.Error.
func (n *node) cni(command string, s sandbox) (netip.Prefix, error) {
	reply, err := cniclient.Ask(context.Background(), n.client.Do, cni.Request{
		Command: command, Network: "pods", ContainerID: s.container, IfName: s.ifName, Netns: "/run/netns/" + s.container,
		Pod: cni.Pod{Namespace: "default", Name: s.pod},
	})
	if err != nil || len(reply.IPs) == 0 {
		return netip.Prefix{}, err
	}
	return netip.ParsePrefix(reply.IPs[0].Address)
}

func (n *node) add(s sandbox) netip.Addr {
	p, err := n.cni("ADD", s)
	n.Expect(err).NotTo(HaveOccurred())
	return p.Addr()
}

// holders returns the containers of the pods that hold addresses, by address.
func (n *node) holders(t *testing.T) map[string]string {
	t.Helper()
	all, _, err := n.Leases(t.Context())
	n.Expect(err).NotTo(HaveOccurred())
	held := map[string]string{}
	for _, l := range all {
		if l.State == "held" && l.Purpose == "pod" {
			n.Expect(held).NotTo(HaveKey(l.IP))
			held[l.IP] = strings.Join([]string{l.ContainerID, l.IfName}, " ")
		}
	}
	return held
}
