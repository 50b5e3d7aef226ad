// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package migration tests the steps of k8s/README.md that take a node from the plugin
// bridge to the agent's own links while its pods run.
package migration

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/southbound"
	"github.com/cadastre/cadastre/southbound/linux"
)

// plugins is the folder of the distribution's CNI plugins.
const plugins = "/usr/lib/cni"

// node is a network namespace that plays a node, with pods of both kinds.
type node struct {
	Gomega
	t     *testing.T
	host  *netlab.Namespace
	wires *southbound.Descriptor
}

func newNode(t *testing.T) *node {
	t.Helper()
	if err := netlab.Try(); err != nil {
		t.Skipf("NOT RUN: this process cannot make network namespaces: %v", err)
	}
	for _, name := range []string{"bridge", "static"} {
		if _, err := os.Stat(filepath.Join(plugins, name)); err != nil {
			t.Skipf("NOT RUN: this machine has no plugin %s (apt-get install containernetworking-plugins)", name)
		}
	}
	n := &node{Gomega: NewWithT(t), t: t}
	n.host = n.namespace()
	wires, err := linux.Wires(linux.Options{Namespace: n.host.Path()})
	n.Expect(err).NotTo(HaveOccurred())
	n.wires = wires
	t.Cleanup(func() { n.Expect(wires.Close()).To(Succeed()) })
	n.set("net/ipv4/ip_forward", "1")
	return n
}

func (n *node) namespace() *netlab.Namespace {
	n.t.Helper()
	ns, err := netlab.New()
	n.Expect(err).NotTo(HaveOccurred())
	n.t.Cleanup(func() { _ = ns.Close() })
	return ns
}

// set writes a setting of the node.
func (n *node) set(name, value string) {
	n.t.Helper()
	n.Expect(n.host.Do(func() error {
		return os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0)
	})).To(Succeed())
}

// pod is a pod that answers on a port with its own name.
type pod struct {
	*netlab.Namespace
	name, ip string
}

// bridge calls the plugin bridge with the list that k8s/ installed before, and with the
// address that cadastre-cni gave.
func (n *node) bridge(command string, p *pod) {
	n.t.Helper()
	text, err := os.ReadFile("../../../k8s/components/bridge/10-cadastre.conflist")
	n.Expect(err).NotTo(HaveOccurred())
	var list struct {
		CNIVersion, Name string
		Plugins          []map[string]any
	}
	n.Expect(json.Unmarshal(text, &list)).To(Succeed())
	conf := list.Plugins[0]
	n.Expect(conf["type"]).To(Equal("bridge"))
	conf["cniVersion"], conf["name"] = list.CNIVersion, list.Name
	conf["ipMasq"] = false // it needs iptables, and pods of one node are not masqueraded
	conf["ipam"] = map[string]any{
		"type":      "static",
		"addresses": []map[string]string{{"address": p.ip + "/24", "gateway": "10.1.5.1"}},
		"routes":    []map[string]string{{"dst": "0.0.0.0/0"}},
	}
	stdin, err := json.Marshal(conf)
	n.Expect(err).NotTo(HaveOccurred())
	n.Expect(n.host.Do(func() error {
		plugin := exec.CommandContext(n.t.Context(), filepath.Join(plugins, "bridge"))
		plugin.Stdin = strings.NewReader(string(stdin))
		plugin.Env = []string{
			"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + p.name, "CNI_NETNS=" + p.Path(),
			"CNI_IFNAME=eth0", "CNI_PATH=" + plugins, "PATH=" + os.Getenv("PATH"),
		}
		if out, err := plugin.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})).To(Succeed())
}

// bridged makes a pod with an interface of the plugin bridge.
func (n *node) bridged(name, ip string) *pod {
	n.t.Helper()
	p := &pod{n.namespace(), name, ip}
	n.bridge("ADD", p)
	n.serve(p)
	return p
}

// wired makes a pod with a wire of the agent.
func (n *node) wired(name, ip string) *pod {
	n.t.Helper()
	p := &pod{n.namespace(), name, ip}
	key := kv.SinkPodPrefix + "cadastre/" + name + "/eth0"
	n.Expect(n.wires.Create(context.Background(), key, &kv.PodNetwork{
		Namespace: "default", Name: name, Network: "cadastre", ContainerId: name, IfName: "eth0",
		Addresses: []string{ip + "/24"},
		Gateways:  []string{"10.1.5.1"},
		Routes:    []*kv.Route{{Dst: "0.0.0.0/0", Gateway: "10.1.5.1"}},
		Wire: &kv.Wire{
			Netns: p.Path(), HostIfName: fmt.Sprintf("cad%x", sha256.Sum256([]byte(key)))[:15], Mtu: 1450,
			HostMac: macOf("host " + key), PodMac: macOf("pod " + key), Pool: "default",
		},
	})).To(Succeed())
	n.serve(p)
	return p
}

func macOf(what string) string {
	sum := sha256.Sum256([]byte(what))
	sum[0] = 0x0a
	return net.HardwareAddr(sum[:6]).String()
}

const port = "7000"

// serve answers each connection to the pod with its name.
func (n *node) serve(p *pod) {
	n.t.Helper()
	var listener net.Listener
	n.Expect(p.Do(func() (err error) {
		listener, err = net.Listen("tcp4", net.JoinHostPort(p.ip, port))
		return err
	})).To(Succeed())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte(p.name + " to " + c.RemoteAddr().(*net.TCPAddr).IP.String()))
			_ = c.Close()
		}
	}()
	n.t.Cleanup(func() { _ = listener.Close(); <-ended })
}

// ask returns the answer of a pod in a namespace, or the error.
func ask(from *netlab.Namespace, to *pod) (answer string) {
	err := from.Do(func() error {
		c, err := net.DialTimeout("tcp4", net.JoinHostPort(to.ip, port), 10*time.Second)
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		text := make([]byte, 100)
		got, err := c.Read(text)
		answer = string(text[:got])
		return err
	})
	if err != nil {
		return err.Error()
	}
	return answer
}

// settings returns the commands with sysctl that k8s/README.md has for the migration.
func settings(g Gomega) [][]string {
	page, err := os.ReadFile("../../../k8s/README.md")
	g.Expect(err).NotTo(HaveOccurred())
	_, section, ok := strings.Cut(string(page), "## From bridge to the agent's links")
	g.Expect(ok).To(BeTrue())
	section, _, _ = strings.Cut(section, "\n## ")
	found := regexp.MustCompile(`sysctl -w net\.ipv4\.conf\.([\w.]+)\.(\w+)=(\d)`).FindAllStringSubmatch(section, -1)
	g.Expect(found).NotTo(BeEmpty())
	return found
}

// TestOldAndNewPodsReachEachOther: pods with an interface of bridge stay, pods that come
// after the change have wires, and all of them reach each other with their own addresses.
// When the last old pod has gone, the bridge can be removed.
func TestOldAndNewPodsReachEachOther(t *testing.T) {
	n := newNode(t)
	old, older := n.bridged("old", "10.1.5.2"), n.bridged("older", "10.1.5.3")
	n.Expect(ask(old.Namespace, older)).To(Equal("older to 10.1.5.2"))

	for _, s := range settings(n) {
		n.set("net/ipv4/conf/"+s[1]+"/"+s[2], s[3])
	}
	young, younger := n.wired("young", "10.1.5.4"), n.wired("younger", "10.1.5.5")
	pods := []*pod{old, older, young, younger}
	for _, from := range pods {
		for _, to := range pods {
			n.Expect(ask(from.Namespace, to)).To(Equal(to.name+" to "+from.ip), "%s to %s", from.name, to.name)
		}
	}
	for _, to := range pods {
		n.Expect(ask(n.host, to)).To(Equal(to.name+" to 10.1.5.1"), "a probe of the kubelet")
	}

	n.bridge("DEL", old)
	n.bridge("DEL", older)
	n.Expect(ask(young.Namespace, younger)).To(Equal("younger to 10.1.5.4"))
	n.Expect(n.host.Do(func() error {
		link, err := netlink.LinkByName("cadastre0")
		if err != nil {
			return err
		}
		return netlink.LinkDel(link)
	})).To(Succeed())
	last := n.wired("last", "10.1.5.2")
	n.Expect(ask(last.Namespace, young)).To(Equal("young to 10.1.5.2"), "the address of an old pod on a wire")
	n.Expect(ask(young.Namespace, last)).To(Equal("last to 10.1.5.4"))
	n.Expect(ask(n.host, last)).To(Equal("last to 10.1.5.1"))
}
