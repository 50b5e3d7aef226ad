// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"bytes"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/spf13/pflag"

	"github.com/cadastre/cadastre/internal/version"
	"github.com/cadastre/cadastre/operator/nodeipam"
)

// TestFlagsThatAreWrong: each is named with its value and what would be right,
// several at once, before anything is done.
func TestFlagsThatAreWrong(t *testing.T) {
	kvdb, nodes := "--kvdb-endpoints=e:1", []string{"--allocate-node-cidrs", "--cluster-cidr=10.0.0.0/16"}
	for _, c := range []struct {
		args string
		said []string
	}{
		{"", []string{"no controller has the flags that it needs: give --allocate-node-cidrs for node CIDRs, --kvdb-endpoints"}},
		{"--controllers=nodeipam " + kvdb, []string{"no controller has the flags"}},
		{"--controllers=ksr --allocate-node-cidrs", []string{"no controller has the flags"}},
		{"--allocate-node-cidrs", []string{`--cluster-cidr="": it must be given with --allocate-node-cidrs`}},
		{"--controllers=nodeipam,x,-y " + kvdb, []string{"--controllers=x: want one of nodeipam, ksr, nodeids, netresource, audit", "--controllers=-y: "}},
		{"--controllers=ksr --kvdb-type=kubernetes", []string{"--controllers=ksr: with --kvdb-type=kubernetes agents read the API server themselves"}},
		{"--allocate-node-cidrs --cluster-cidr=10.0.0.0/16 --node-cidr-mask-size=8", []string{"--node-cidr-mask-size=8: "}},
		{"--allocate-node-cidrs --cluster-cidr=10.0.0.0/16 --cidr-allocator-type=CloudAllocator", []string{"--cidr-allocator-type=CloudAllocator: this program has no cloud: want RangeAllocator"}},
		{"--allocate-node-cidrs --cluster-cidr=10.0.0.0/16 --cidr-allocator-type=Bogus", []string{"--cidr-allocator-type=Bogus: there is no such type: want one of"}},
		{kvdb + " --leader-elect-lease-duration=500ms", []string{"--leader-elect-lease-duration=500ms: it must be at least 1s", "--leader-elect-renew-deadline=10s: it must be less than --leader-elect-lease-duration"}},
		{kvdb + " --leader-elect-retry-period=9s", []string{"--leader-elect-renew-deadline=10s: it must be more than 1.2 times --leader-elect-retry-period"}},
		{kvdb + " --leader-elect-retry-period=0", []string{"--leader-elect-retry-period=0s: it must be more than 0"}},
		{kvdb + " --leader-elect-resource-name= --leader-elect-resource-namespace=", []string{`--leader-elect-resource-name=""`, `--leader-elect-resource-namespace=""`}},
		{kvdb + " --bind-address=localhost", []string{"--bind-address=localhost: it has no port: want host:port, such as 127.0.0.1:10261"}},
		{kvdb + " --bind-address=:123456", []string{`--bind-address=:123456: "123456" is not a port`}},
		{kvdb + " --bind-address=:10261", []string{"--bind-address=:10261: it is not a loopback address, and has no TLS: give --tls-cert-file and --tls-private-key-file, or write 127.0.0.1:10261"}},
		{kvdb + " --tls-cert-file=c", []string{"--tls-cert-file=c: it needs --tls-private-key-file as well"}},
		{kvdb + " --bind-address=:10261 --tls-private-key-file=k", []string{"--tls-private-key-file=k: it needs --tls-cert-file as well"}},
		{kvdb + " --client-ca-file=ca", []string{"--client-ca-file=ca: it has no effect without TLS"}},
		{kvdb + " --kube-api-qps=0 --kube-api-burst=0", []string{"--kube-api-qps=0: ", "--kube-api-burst=0: it must be at least 1"}},
		{kvdb + " --node-id-expire=-1h", []string{"--node-id-expire=-1h0m0s: it must not be negative: write 0 for never"}},
		{kvdb + " -v=-1", []string{"--v=-1: it must be 0 to 10"}},
		{"--kvdb-endpoints=e", []string{"--kvdb-endpoints=e: it is not an endpoint: write host:port"}},
		{"--kvdb-endpoints=https://u:p@e:1", []string{"it has a user or a password: give those with --kvdb-username"}},
		{"--kvdb-endpoints=ftp://e:1,https://e:1/x,https://e", []string{`scheme "ftp": want http or https`, "it has a path", "https://e: it is not an endpoint"}},
		{kvdb + " --kvdb-prefix=x", []string{"--kvdb-prefix=x: it must begin and end with a slash"}},
		{kvdb + " --kvdb-cert=c --kvdb-username=u", []string{"--kvdb-cert=c: it needs --kvdb-key as well", "--kvdb-username=u: it needs --kvdb-password-file as well"}},
		{kvdb + " --kvdb-key=k --kvdb-password-file=p", []string{"--kvdb-key=k: it needs --kvdb-cert", "--kvdb-password-file=p: it needs --kvdb-username"}},
		{"--kvdb-ca=c " + strings.Join(nodes, " "), []string{"--kvdb-ca=c: it has no effect: give --kvdb-endpoints"}},
		{kvdb + " --kvdb-type=bolt", []string{"--kvdb-type=bolt: it must be etcd or kubernetes"}},
		{kvdb + " --kvdb-type=kubernetes", []string{"--kvdb-endpoints=e:1: it has no effect with --kvdb-type=kubernetes"}},
		{"--netresource-provider=aws", []string{"--netresource-provider=aws: want clusterpool"}},
		{"--netresource-provider=clusterpool --netresource-workers=0 --netresource-resync-interval=1ms --provider-qps=0 --provider-burst=0", []string{"--netresource-workers=0: it must be 1 to 1000",
			"--netresource-resync-interval=1ms: it must be at least 1s", "--provider-qps=0: it must be a number and not 0", "--provider-burst=0: it must be at least 1"}},
		{"--netresource-provider=clusterpool --excess-ip-release-delay=-1s --pool-cool-down=-1s --pre-allocate=0", []string{"--excess-ip-release-delay=-1s: it must not be negative: write 0 for at once",
			"--pool-cool-down=-1s: it must not be negative", "--pre-allocate=0: it must be at least 1"}},
		{"--kvdb-endpoints=e:1 --audit-interval=10ms", []string{"--audit-interval=10ms: it must be at least 1s"}},
		{"--netresource-provider=clusterpool --netresource-orphan-interval=10ms", []string{"--netresource-orphan-interval=10ms: it must be at least 1s"}},
		{"--controllers=ksr --netresource-provider=clusterpool", []string{"no controller has the flags"}},
		{kvdb + " --bogus", []string{"unknown flag: --bogus"}},
		{kvdb + " --node-id-expire=day", []string{`invalid argument "day"`}},
		{kvdb + " extra", []string{`unexpected argument "extra": want flags only`}},
	} {
		t.Run(c.args, func(t *testing.T) {
			g := NewWithT(t)
			var out, errs bytes.Buffer
			code := run(t.Context(), strings.Fields(c.args), &out, &errs, host{})
			g.Expect(code).To(Equal(exitUsage), "%s", &errs)
			for _, said := range append(c.said, "see: cadastre-operator --help") {
				g.Expect(errs.String()).To(ContainSubstring(said))
			}
			g.Expect(out.String()).To(BeEmpty())
		})
	}
}

// TestPlan: the controllers that run with some flags, and the reasons for the rest.
func TestPlan(t *testing.T) {
	for _, c := range []struct {
		args string
		run  string
		not  map[string]string
	}{
		{"--kvdb-endpoints=e:1", "ksr nodeids audit", map[string]string{"nodeipam": "--allocate-node-cidrs is not given"}},
		{"--allocate-node-cidrs", "nodeipam", map[string]string{"ksr": "--kvdb-endpoints is not given", "nodeids": "--kvdb-endpoints is not given", "audit": "neither --kvdb-endpoints nor --kvdb-type=kubernetes is given"}},
		{"--allocate-node-cidrs --kvdb-endpoints=e:1", "nodeipam ksr nodeids audit", nil},
		{"--allocate-node-cidrs --kvdb-endpoints=e:1 --controllers=nodeipam,ksr", "nodeipam ksr nodeids", nil},
		{"--allocate-node-cidrs --kvdb-endpoints=e:1 --controllers=ksr", "ksr nodeids", map[string]string{"nodeipam": "--controllers does not name it"}},
		{"--allocate-node-cidrs --kvdb-endpoints=e:1 --controllers=*,-ksr", "nodeipam nodeids audit", nil},
		{"--allocate-node-cidrs --kvdb-endpoints=e:1 --controllers=*,-nodeids", "nodeipam ksr audit", nil},
		{"--kvdb-endpoints=e:1 --node-id-expire=0", "ksr audit", map[string]string{"nodeids": "--node-id-expire is 0"}},
		{"--netresource-provider=clusterpool", "netresource", map[string]string{"nodeipam": "--allocate-node-cidrs is not given", "nodeids": "--kvdb-endpoints is not given"}},
		{"--netresource-provider=clusterpool --kvdb-type=kubernetes --controllers=*,-netresource", "nodeids audit", map[string]string{"netresource": "--controllers does not name it"}},
		{"--kvdb-type=kubernetes --netresource-provider=clusterpool", "nodeids netresource audit", nil},
		{"--kvdb-type=kubernetes", "nodeids audit", map[string]string{"ksr": "the agents read the API server themselves"}},
		{"--kvdb-type=kubernetes --controllers=nodeipam,nodeids --allocate-node-cidrs", "nodeipam nodeids", nil},
	} {
		t.Run(c.args, func(t *testing.T) {
			g := NewWithT(t)
			var o commandLine
			fs := pflag.NewFlagSet("", pflag.ContinueOnError)
			o.register(fs)
			g.Expect(fs.Parse(strings.Fields(c.args))).To(Succeed())
			plan := o.plan()
			g.Expect(strings.Join(plan.run, " ")).To(Equal(c.run))
			for name, why := range c.not {
				g.Expect(plan.not[name]).To(Equal(why))
			}
			g.Expect(len(plan.run) + len(plan.not)).To(Equal(len(allControllers())))
		})
	}
}

// TestHowOftenGoneNodesAreLookedFor: well below the time that they have.
func TestHowOftenGoneNodesAreLookedFor(t *testing.T) {
	for expire, want := range map[time.Duration]time.Duration{
		24 * time.Hour: 10 * time.Minute, 6 * time.Minute: 30 * time.Second, time.Second: time.Second, 0: time.Second,
	} {
		NewWithT(t).Expect((&commandLine{expire: expire}).releaseInterval()).To(Equal(want), expire.String())
	}
}

// TestHelpAndVersion: flags that Kubernetes has too are there under its names, with
// its defaults.
func TestHelpAndVersion(t *testing.T) {
	g := NewWithT(t)
	var out, errs bytes.Buffer
	g.Expect(run(t.Context(), []string{"--version"}, &out, &errs, host{})).To(BeZero())
	g.Expect(out.String()).To(Equal(version.Line("cadastre-operator") + "\n"))
	out.Reset()
	g.Expect(run(t.Context(), []string{"--help"}, &out, &errs, host{})).To(BeZero())
	g.Expect(errs.String()).To(BeEmpty())
	for _, flag := range []string{
		"kubeconfig", "kube-api-qps", "kube-api-burst", "controllers", "bind-address", "tls-cert-file", "tls-private-key-file", "client-ca-file", "v", "version",
		"leader-elect", "leader-elect-lease-duration", "leader-elect-renew-deadline", "leader-elect-retry-period", "leader-elect-resource-name", "leader-elect-resource-namespace",
		"allocate-node-cidrs", "cidr-allocator-type", "cluster-cidr", "service-cluster-ip-range", "node-cidr-mask-size", "node-cidr-mask-size-ipv4", "node-cidr-mask-size-ipv6", "node-cidr-mask-size-limits",
		"netresource-provider", "release-excess-ips", "excess-ip-release-delay", "netresource-workers", "netresource-resync-interval", "provider-qps", "provider-burst", "pool-cool-down", "pre-allocate", "netresource-orphan-interval",
	} {
		g.Expect(out.String()).To(MatchRegexp(`(?m)^ +(-v, )?--%s\b`, flag))
	}
	var o commandLine
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.register(fs)
	for name, value := range map[string]string{
		flagElect: "true", flagLeaseDuration: "15s", flagRenewDeadline: "10s", flagRetryPeriod: "2s", flagLeaseNamespace: "kube-system",
		nodeipam.FlagType: "RangeAllocator", nodeipam.FlagAllocate: "false", flagControllers: "[*]",
		flagProvider: "", flagRelease: "false", flagReleaseDelay: "3m0s", flagWorkers: "50", flagResync: "30s", flagProviderQPS: "20", flagProviderBst: "30",
	} {
		g.Expect(fs.Lookup(name).DefValue).To(Equal(value), name)
	}
}

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

// TestImpossibleValues: the flag, its value, and what would be right.
func TestImpossibleValues(t *testing.T) {
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
		{v4 + "--bind-address=127.0.0.1:https", `--bind-address=127.0.0.1:https: "https" is not a port`},
		{v4 + "--bind-address=127.0.0.1", "--bind-address=127.0.0.1: it has no port: want host:port, such as 127.0.0.1:10261"},
		{v4 + "--bind-address=0.0.0.0:1", "--bind-address=0.0.0.0:1: it is not a loopback address, and has no TLS: give --tls-cert-file"},
		{v4 + "--cluster-signing-key-file=k", "unknown flag: --cluster-signing-key-file"},
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
