// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/cadastre/cadastre/operator/nodeipam"
)

// parsed returns the options of a command line.
func parsed(t *testing.T, args ...string) *commandLine {
	t.Helper()
	o := &commandLine{}
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.register(fs)
	g := NewWithT(t)
	g.Expect(o.registerProviders(fs)).To(Succeed())
	g.Expect(fs.Parse(args)).To(Succeed(), "%q", args)
	return o
}

// upstreamLines reads a file of what kube-controller-manager v1.36.4 --help lists.
func upstreamLines(t *testing.T, of string) (all [][]string) {
	t.Helper()
	text, err := os.ReadFile("testdata/kube-controller-manager-v1.36.4." + of)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for line := range strings.Lines(string(text)) {
		all = append(all, strings.Fields(line))
	}
	return all
}

// TestEveryFlagOfUpstreamIsAccepted: all that "kube-controller-manager --help" lists, with
// a value, and without one if upstream takes none. What has no effect is noted once.
func TestEveryFlagOfUpstreamIsAccepted(t *testing.T) {
	g := NewWithT(t)
	value := map[string]string{"bool": "false", "duration": "7s", "int32": "7", "float32": "7", "Level": "2", "version": "false", "ip": "127.0.0.1"}
	flags, effects := upstreamLines(t, "flags"), []string{}
	g.Expect(len(flags)).To(BeNumerically(">", 140))
	for _, flag := range flags {
		name, kind := flag[0], flag[1]
		if name == "help" {
			continue
		}
		given := value[kind]
		if given == "" {
			given = "x"
		}
		o := parsed(t, "--"+name+"="+given)
		parsed(t, "--"+strings.ReplaceAll(name, "-", "_")+"="+given) // as upstream does
		if kind == "bool" {
			parsed(t, "--"+name)
		} else if kind != "version" {
			g.Expect(o.flags.Lookup(name).NoOptDefVal).To(BeEmpty(), "--%s VALUE is two arguments", name)
		}
		switch ignored := o.ignoredNotes(); len(ignored) {
		case 0:
			effects = append(effects, name)
		default:
			g.Expect(ignored).To(HaveLen(1))
			g.Expect(ignored[0].flag).To(Equal(name))
			g.Expect(ignored[0].value).To(Equal(given))
			g.Expect(ignored[0].reason).NotTo(BeEmpty())
			g.Expect(o.flags.Lookup(name).Hidden).To(BeTrue(), name)
		}
	}
	g.Expect(effects).To(ConsistOf("allocate-node-cidrs", "bind-address", "cidr-allocator-type", "client-ca-file", "cloud-provider", "cluster-cidr",
		"controllers", "kube-api-burst", "kube-api-qps", "kubeconfig", "leader-elect", "leader-elect-lease-duration", "leader-elect-renew-deadline",
		"leader-elect-resource-name", "leader-elect-resource-namespace", "leader-elect-retry-period", "node-cidr-mask-size", "node-cidr-mask-size-ipv4",
		"node-cidr-mask-size-ipv6", "service-cluster-ip-range", "tls-cert-file", "tls-private-key-file", "v", "version"))
}

// TestNoFlagIsListedTwice, and the former names are not those of flags with an effect.
func TestNoFlagIsListedTwice(t *testing.T) {
	g := NewWithT(t)
	seen, o := map[string]bool{}, parsed(t)
	for _, group := range upstreamFlags() {
		for name := range group.all() {
			g.Expect(seen).NotTo(HaveKey(name))
			seen[name] = true
			_, without := o.flags.Lookup(name).Value.(*ignored)
			g.Expect(without).To(BeTrue(), name)
		}
	}
}

// TestControllersOfUpstream: its names and their former ones are accepted; those of
// controllers that this program has select them.
func TestControllersOfUpstream(t *testing.T) {
	g := NewWithT(t)
	for _, line := range upstreamLines(t, "controllers") {
		var p problems
		o := parsed(t, "--controllers=*,"+line[0]+",-"+line[0])
		o.wanted(&p)
		g.Expect(p).To(BeEmpty(), line[0])
	}
	for _, c := range []struct {
		args  string
		run   string
		notes int
	}{
		{"--controllers=node-ipam-controller", "nodeipam", 0},
		{"--controllers=nodeipam", "nodeipam", 0},
		{"--controllers=*", "nodeipam ksr nodeids audit", 0},
		{"--controllers=*,-node-ipam-controller", "ksr nodeids audit", 0},
		{"--controllers=*,-nodeipam", "ksr nodeids audit", 0},
		{"--controllers=*,bootstrapsigner,tokencleaner", "nodeipam ksr nodeids audit", 2},
		{"--controllers=node-ipam-controller,-ttl-controller,ksr", "nodeipam ksr nodeids", 1},
		{"--controllers=deployment", "", 1},
	} {
		o := parsed(t, c.args, "--allocate-node-cidrs", "--kvdb-endpoints=e:1")
		g.Expect(strings.Join(o.plan().run, " ")).To(Equal(c.run), c.args)
		g.Expect(o.notes()).To(HaveLen(c.notes), c.args)
	}
	for _, name := range []string{"node-ipam", "nodeipam-controller", "Deployment", ""} {
		var p problems
		parsed(t, "--controllers="+name+",-").wanted(&p)
		g.Expect(p).NotTo(BeEmpty(), name)
	}
}

// TestTheListenerOfUpstreamsFlags: an address without a port, as kubeadm gives it.
func TestTheListenerOfUpstreamsFlags(t *testing.T) {
	for _, c := range []struct{ args, address, note string }{
		{"", defaultBind, ""},
		{"--bind-address=127.0.0.1:7", "127.0.0.1:7", ""},
		{"--bind-address=127.0.0.1:7 --secure-port=8", "127.0.0.1:7", ""},
		{"--bind-address=127.0.0.1", "127.0.0.1:10261", "without a port, the listener is 127.0.0.1:10261, without TLS: probes need the scheme HTTP"},
		{"--bind-address=127.0.0.1 --secure-port=10257", "127.0.0.1:10257", "the listener is 127.0.0.1:10257, without TLS"},
		{"--bind-address=::1 --secure-port=10257 --tls-cert-file=c --tls-private-key-file=k", "[::1]:10257", "the listener is [::1]:10257"},
		{"--bind-address=127.0.0.1 --secure-port=0", "", "with --secure-port=0 there is no listener"},
		{"--bind-address=", "", ""},
	} {
		g := NewWithT(t)
		o := parsed(t, strings.Fields(c.args)...)
		g.Expect(o.address()).To(Equal(c.address), c.args)
		var reasons []string
		for _, n := range o.notes() {
			if n.flag == flagBind {
				reasons = append(reasons, n.reason)
			}
		}
		if c.note == "" {
			g.Expect(reasons).To(BeEmpty(), c.args)
			continue
		}
		g.Expect(reasons).To(ConsistOf(ContainSubstring(c.note)), c.args)
	}
}

// TestAManifestOfKubeadm is used again: the arguments of the manifest that kubeadm v1.36.4
// has written for a cluster of both families.
func TestAManifestOfKubeadm(t *testing.T) {
	text, err := os.ReadFile("testdata/kubeadm-v1.36.4.yaml")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	pod := corev1.Pod{}
	NewWithT(t).Expect(yaml.UnmarshalStrict(text, &pod)).To(Succeed())
	command := pod.Spec.Containers[0].Command
	NewWithT(t).Expect(command[0]).To(Equal(upstreamProgram))
	bubble(t, func(s *stand) {
		s.addNode("a")
		p := s.start("one", nil, append(command[1:], "--secure-port=0")...) // no listener in simulated time
		advance(5 * time.Second)
		s.Expect(s.cidrs("a")).To(Equal([]string{"10.244.0.0/24", "fd00:10:244::/64"}), "%s", &p.log)
		s.Expect(s.lease()).To(HavePrefix("one_"))
		s.Expect(p.stop()).To(BeZero(), "%s", &p.log)
		for _, flag := range []string{
			"--authentication-kubeconfig=/etc/kubernetes/controller-manager.conf", "--authorization-kubeconfig=/etc/kubernetes/controller-manager.conf",
			"--cluster-name=kubernetes", "--cluster-signing-cert-file=/etc/kubernetes/pki/ca.crt", "--cluster-signing-key-file=/etc/kubernetes/pki/ca.key",
			"--requestheader-client-ca-file=/etc/kubernetes/pki/front-proxy-ca.crt", "--root-ca-file=/etc/kubernetes/pki/ca.crt",
			"--service-account-private-key-file=/etc/kubernetes/pki/sa.key", "--use-service-account-credentials=true", "--secure-port=0",
			"--controllers=bootstrapsigner", "--controllers=tokencleaner", "--bind-address=127.0.0.1", "--client-ca-file=/etc/kubernetes/pki/ca.crt",
		} {
			s.Expect(strings.Count(p.log.String(), fmt.Sprintf("flag=%q ", flag))).To(Equal(1), flag)
		}
		s.Expect(strings.Count(p.log.String(), "a flag is not used as kube-controller-manager uses it")).To(Equal(14), "%s", &p.log)
	})
}

// TestImpossibleValuesOfUpstreamsFlags: the flag, its value, and what would be right.
func TestImpossibleValuesOfUpstreamsFlags(t *testing.T) {
	const v4, both = "--allocate-node-cidrs --cluster-cidr=10.244.0.0/16 ", "--allocate-node-cidrs --cluster-cidr=10.244.0.0/16,fd00::/48 "
	for _, c := range []struct{ args, said string }{
		{"--allocate-node-cidrs --cluster-cidr=10.244.0.0/33", `--cluster-cidr=10.244.0.0/33: "10.244.0.0/33" is not a CIDR: the prefix length must be 0 to 32: want one such as 10.244.0.0/16`},
		{"--allocate-node-cidrs --cluster-cidr=fd00::/129", `want one such as fd00::/48`},
		{"--allocate-node-cidrs --cluster-cidr=10.244.0.0", `--cluster-cidr=10.244.0.0: "10.244.0.0" is not a CIDR: it has no prefix length: want one such as 10.244.0.0/16`},
		{v4 + "--node-cidr-mask-size=0", "--node-cidr-mask-size=0: a node's CIDR cannot be all addresses: want one such as 24, or remove it"},
		{both + "--node-cidr-mask-size-ipv4=0", "--node-cidr-mask-size-ipv4=0: a node's CIDR cannot be all addresses: want one such as 24"},
		{both + "--node-cidr-mask-size-ipv6=0", "--node-cidr-mask-size-ipv6=0: a node's CIDR cannot be all addresses: want one such as 64"},
		{v4 + "--node-cidr-mask-size=8", "--node-cidr-mask-size=8: the mask of the cluster CIDR 10.244.0.0/16 must be less than or equal to that of a node: want 16 to 32"},
		{v4 + "--node-cidr-mask-size=-3", "--node-cidr-mask-size=-3: "},
		{v4 + "--node-cidr-mask-size=33", "--node-cidr-mask-size=33: addresses of 10.244.0.0/16 have 32 bits: want 16 to 32"},
		{both + "--node-cidr-mask-size=24", "--node-cidr-mask-size=24: it cannot be used with two families: use --node-cidr-mask-size-ipv4 and --node-cidr-mask-size-ipv6"},
		{both + "--node-cidr-mask-size-ipv6=24", "--node-cidr-mask-size-ipv6=24: the mask of the cluster CIDR fd00::/48 must be less than or equal to that of a node: want 48 to 128"},
		{v4 + "--more-cluster-cidrs=10.244.128.0/17", "--more-cluster-cidrs=10.244.128.0/17: it overlaps 10.244.0.0/16: want a range outside of it"},
		{v4 + "--more-cluster-cidrs=10.0.0.0/8", "--more-cluster-cidrs=10.0.0.0/8: it overlaps 10.244.0.0/16"},
		{v4 + "--service-cluster-ip-range=10.0.0.0/8", "want a range outside of --service-cluster-ip-range and --exclude-cidrs"},
		{"--allocate-node-cidrs --cluster-cidr=10.1.0.0/16,10.2.0.0/16", "--cluster-cidr=10.1.0.0/16,10.2.0.0/16: the two CIDRs are of the same family"},
		{v4 + "--secure-port=https --bind-address=127.0.0.1", `--bind-address=127.0.0.1:https: "https" is not a port`},
		{v4 + "--bind-address=0.0.0.0", "--bind-address=0.0.0.0: it is not a loopback address, and has no TLS: give --tls-cert-file"},
		{v4 + "--concurrent-cadastre-syncs=1", "unknown flag: --concurrent-cadastre-syncs"},
		{v4 + "--cluster-signing", "unknown flag: --cluster-signing"},
		{v4 + "--controllers=nodeipam,deploymentcontroller", "--controllers=deploymentcontroller: want one of nodeipam"},
	} {
		t.Run(c.args, func(t *testing.T) {
			g := NewWithT(t)
			var out, errs bytes.Buffer
			g.Expect(run(t.Context(), strings.Fields(c.args), &out, &errs, host{})).To(Equal(exitUsage), "%s", &errs)
			g.Expect(errs.String()).To(ContainSubstring(c.said))
		})
	}
	parsed(t, "--node-cidr-mask-size=0") // without effect: nothing is allocated
	var p problems
	parsed(t, "--"+nodeipam.FlagMask+"=0").validateMasks(&p)
	NewWithT(t).Expect(p).To(BeEmpty())
}
