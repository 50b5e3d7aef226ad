// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/internal/testkit/clouds/memcloud"
)

// added is a provider for tests, and what the program has asked it for.
type added struct {
	Provider
	cloud  *memcloud.Cloud
	flag   string
	opened []Environment
}

// newAdded returns a provider of a cloud in memory.
func newAdded(name string) *added {
	a := &added{cloud: memcloud.New(memcloud.Config{Subnets: map[string]netip.Prefix{"s1": netip.MustParsePrefix("10.9.0.0/16")}})}
	a.Provider = Provider{
		Name:  name,
		Help:  "addresses of memory",
		Flags: func(fs *pflag.FlagSet) { fs.StringVar(&a.flag, name+"-region", "", "the region") },
		Open: func(_ context.Context, e Environment) (Opened, error) {
			a.opened = append(a.opened, e)
			requests := prometheus.NewCounter(prometheus.CounterOpts{Name: "test_requests_total", Help: "Requests to " + name + "."})
			return Opened{Cloud: a.cloud, Aliases: a.cloud, Collectors: []prometheus.Collector{requests}}, nil
		},
	}
	return a
}

// with adds providers to an operator.
func with(all ...Provider) func(*host) {
	return func(h *host) { h.providers = append(h.providers, all...) }
}

// TestNodeCIDRsOfACloud: the three types that need a cloud, in the program, with the leader
// killed in between.
func TestNodeCIDRsOfACloud(t *testing.T) {
	prefix := netip.MustParsePrefix
	for _, c := range []struct {
		kind    string
		aliases map[string]netip.Prefix // before the operator starts
		want    map[string]string       // podCIDRs, and the aliases afterwards
	}{
		{"CloudAllocator", map[string]netip.Prefix{"a": prefix("10.4.7.0/24"), "b": prefix("10.4.9.0/26")}, map[string]string{"a": "10.4.7.0/24", "b": "10.4.9.0/26"}},
		{"IPAMFromCloud", map[string]netip.Prefix{"a": prefix("10.1.7.0/24"), "b": prefix("10.1.9.0/24")}, map[string]string{"a": "10.1.7.0/24", "b": "10.1.9.0/24"}},
		{"IPAMFromCluster", nil, map[string]string{"a": "10.1.0.0/24", "b": "10.1.1.0/24"}},
	} {
		t.Run(c.kind, func(t *testing.T) {
			bubble(t, func(s *stand) {
				mem := newAdded("mem")
				args := []string{"--allocate-node-cidrs", "--cluster-cidr=10.1.0.0/16", "--cidr-allocator-type=" + c.kind, "--cloud-provider=external", "--bind-address="}
				machine := func(name string) {
					var aliases []netip.Prefix
					if p, ok := c.aliases[name]; ok {
						aliases = append(aliases, p)
					}
					mem.cloud.AddMachine(name, "", aliases...)
					s.addNode(name)
				}
				machine("a")
				one := s.start("one", with(mem.Provider), args...)
				advance(5 * time.Second)
				s.Expect(s.cidrs("a")).To(Equal([]string{c.want["a"]}), "%s", &one.log)
				two := s.start("two", with(mem.Provider), args...)
				one.cut.Store(true)
				s.Expect(<-one.code).To(Equal(exitFailed))
				machine("b")
				advance(time.Minute)
				s.Expect(s.cidrs("a")).To(Equal([]string{c.want["a"]}), "%s", &two.log)
				s.Expect(s.cidrs("b")).To(Equal([]string{c.want["b"]}), "%s", &two.log)
				s.Expect(mem.cloud.Routes()).To(Equal(map[string][]netip.Prefix{"a": {prefix(c.want["a"])}, "b": {prefix(c.want["b"])}}))
				s.Expect(s.available("a")).To(BeTrue(), "the cloud routes its CIDR")
				s.Expect(two.stop()).To(BeZero(), "%s", &two.log)
				s.Expect(mem.opened).To(HaveLen(2), "each process opens it once")
			})
		})
	}
}

// available reports whether the node says that its network is there.
func (s *stand) available(name string) bool {
	obj, err := s.tracker.Get(nodes(), "", name)
	s.Expect(err).NotTo(HaveOccurred())
	for _, c := range obj.(*corev1.Node).Status.Conditions {
		if c.Type == corev1.NodeNetworkUnavailable {
			return c.Status == corev1.ConditionFalse
		}
	}
	return false
}

// TestPoolsOfACloud: a node gets addresses of its machine's interfaces, in the budget and
// with the settings of the flags; both halves of a provider are opened together.
func TestPoolsOfACloud(t *testing.T) {
	bubble(t, func(s *stand) {
		mem, other := newAdded("mem"), newAdded("other")
		mem.cloud.AddInstance("i-a", "s1")
		mem.cloud.AddMachine("a", "")
		s.addNode("a")
		set := &v1alpha1.NetResourceSet{}
		set.Name, set.Spec.InstanceID, set.Spec.IPAM.PreAllocate = "a", "i-a", 5
		s.put(sets(), "NetResourceSet", set)
		p := s.start("one", with(other.Provider, mem.Provider), "--netresource-provider=mem", "--mem-region=x", "--provider-qps=7", "--provider-burst=9", "--bind-address=",
			"--allocate-node-cidrs", "--cluster-cidr=10.1.0.0/16", "--cidr-allocator-type=IPAMFromCluster", "--cloud-provider=mem")
		advance(time.Minute)
		s.Expect(len(s.blocks("a"))).To(BeNumerically(">=", 5), "%s", &p.log)
		for _, address := range s.blocks("a") {
			s.Expect(mem.cloud.Units("i-a")).To(ContainElement(netip.PrefixFrom(netip.MustParseAddr(address), 32)))
			s.Expect(s.set("a").Status.Interfaces).To(HaveKey(s.set("a").Spec.IPAM.Pool[address].Resource))
		}
		s.Expect(s.cidrs("a")).To(Equal([]string{"10.1.0.0/24"}))
		s.Expect(mem.flag).To(Equal("x"))
		s.Expect(mem.opened).To(HaveLen(1))
		s.Expect(mem.opened[0].QPS).To(Equal(7.0))
		s.Expect(mem.opened[0].Burst).To(Equal(9))
		s.Expect(mem.opened[0].Log).NotTo(BeNil())
		s.Expect(other.opened).To(BeEmpty(), "no flag selects it")
		s.Expect(p.stop()).To(BeZero(), "%s", &p.log)
	})
}

// TestCloudsThatAreWrong: the flag, its value, and the program that has the cloud.
func TestCloudsThatAreWrong(t *testing.T) {
	const nodes = "--allocate-node-cidrs --cluster-cidr=10.1.0.0/16 "
	mem, other := newAdded("mem").Provider, newAdded("other").Provider
	for _, c := range []struct {
		args  string
		added []Provider
		said  string
	}{
		{nodes + "--cidr-allocator-type=CloudAllocator", nil, "--cidr-allocator-type=CloudAllocator: this program has no cloud: want RangeAllocator, or run cadastre-operator-openstack"},
		{nodes + "--cidr-allocator-type=IPAMFromCloud --cloud-provider=openstack", nil, "--cidr-allocator-type=IPAMFromCloud: this program has no cloud"},
		{nodes + "--cidr-allocator-type=IPAMFromCluster --cloud-provider=openstack", []Provider{mem}, "--cloud-provider=openstack: this program does not have this cloud: want mem, or run cadastre-operator-openstack"},
		{nodes + "--cidr-allocator-type=IPAMFromCluster --cloud-provider=gce", []Provider{mem}, "--cloud-provider=gce: this program does not have this cloud: want mem\n"},
		{nodes + "--cidr-allocator-type=IPAMFromCluster", []Provider{mem, other}, "--cidr-allocator-type=IPAMFromCluster: the program has several clouds: give --cloud-provider, one of mem, other"},
		{"--netresource-provider=ec2", nil, "--netresource-provider=ec2: want clusterpool, or run cadastre-operator-ec2"},
		{"--netresource-provider=aws", []Provider{mem}, "--netresource-provider=aws: want clusterpool, mem, or run cadastre-operator-ec2"},
		{"--netresource-provider=mem --pool-cool-down=1m", []Provider{mem}, "--pool-cool-down=1m0s: it has no effect with --netresource-provider=mem"},
		{"--netresource-provider=clusterpool --enable-ipv6", []Provider{mem}, "--enable-ipv6=true: it has no effect with --netresource-provider=clusterpool"},
		{nodes + "--cidr-allocator-type=CloudAllocator --provider-qps=0", []Provider{mem}, "--provider-qps=0: it must be a number and not 0"},
		{nodes + "--cidr-allocator-type=CloudAllocator --provider-burst=0", []Provider{mem}, "--provider-burst=0: it must be at least 1"},
		{"--netresource-provider=mem --enable-ipv4=false", []Provider{mem}, "--enable-ipv4=false: nodes need a family: give --enable-ipv4 or --enable-ipv6"},
		{"--netresource-provider=mem --provider-consistency=-1s --provider-orphan-age=-1s", []Provider{mem}, "--provider-orphan-age=-1s: it must not be negative"},
	} {
		t.Run(c.args, func(t *testing.T) {
			g := NewWithT(t)
			var out, errs bytes.Buffer
			g.Expect(run(t.Context(), strings.Fields(c.args), &out, &errs, host{providers: c.added})).To(Equal(exitUsage), "%s", &errs)
			g.Expect(errs.String()).To(ContainSubstring(c.said))
		})
	}
}

// TestFlagsOfACloudThatIsNotUsed: they are noted, because the cloud is not opened.
func TestFlagsOfACloudThatIsNotUsed(t *testing.T) {
	for args, notes := range map[string]int{
		"--netresource-provider=mem --mem-region=x":                                                                           0,
		"--netresource-provider=clusterpool --mem-region=x":                                                                   1,
		"--allocate-node-cidrs --cluster-cidr=10.1.0.0/16 --mem-region=x":                                                     1,
		"--allocate-node-cidrs --cluster-cidr=10.1.0.0/16 --cidr-allocator-type=CloudAllocator --mem-region=x":                0,
		"--allocate-node-cidrs --cluster-cidr=10.1.0.0/16 --controllers=nodeipam --netresource-provider=mem --mem-region=x":   1,
		"--allocate-node-cidrs --cluster-cidr=10.1.0.0/16 --controllers=nodeipam --netresource-provider=mem --kube-api-qps=7": 0,
	} {
		g := NewWithT(t)
		o := &commandLine{providers: []Provider{newAdded("mem").Provider}}
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		o.register(fs)
		g.Expect(o.registerProviders(fs)).To(Succeed())
		g.Expect(fs.Parse(strings.Fields(args))).To(Succeed())
		g.Expect(o.validate()).To(BeEmpty(), args)
		g.Expect(o.unusedFlags()).To(HaveLen(notes), args)
	}
}

// TestACloudThatCannotBeOpened ends the program before it is elected; a cloud that no flag
// selects is not opened.
func TestACloudThatCannotBeOpened(t *testing.T) {
	broken := newAdded("mem").Provider
	broken.Open = func(context.Context, Environment) (Opened, error) {
		return Opened{}, errors.New(`--mem-region="": want a region`)
	}
	empty := broken
	empty.Open = func(context.Context, Environment) (Opened, error) { return Opened{}, nil }
	twice := newAdded("mem").Provider
	open := twice.Open
	twice.Open = func(ctx context.Context, e Environment) (Opened, error) {
		o, err := open(ctx, e)
		o.Collectors = append(o.Collectors, o.Collectors...)
		return o, err
	}
	nodes := []string{"--allocate-node-cidrs", "--cluster-cidr=10.1.0.0/16", "--bind-address="}
	for _, c := range []struct {
		what string
		p    Provider
		args []string
		said string // "": it starts
	}{
		{"an error", broken, []string{"--netresource-provider=mem"}, "open provider mem: --mem-region"},
		{"no interfaces", empty, []string{"--netresource-provider=mem"}, "--netresource-provider=mem: the provider has no interfaces of machines"},
		{"no aliases", empty, []string{"--cidr-allocator-type=CloudAllocator"}, "--cidr-allocator-type=CloudAllocator: provider mem does not route prefixes to machines: want RangeAllocator, or run cadastre-operator-openstack"},
		{"metrics that are registered twice", twice, []string{"--netresource-provider=mem"}, "open provider mem: register its metrics"},
		{"not selected", broken, []string{"--cloud-provider=mem"}, ""},
		{"not selected, with a controller that does not run", broken, []string{"--netresource-provider=mem", "--controllers=nodeipam"}, ""},
	} {
		t.Run(c.what, func(t *testing.T) {
			bubble(t, func(s *stand) {
				p := s.start("one", with(c.p), append(nodes, c.args...)...)
				advance(5 * time.Second)
				if c.said == "" {
					s.Expect(s.lease()).NotTo(BeEmpty(), "%s", &p.log)
					s.Expect(p.stop()).To(BeZero())
					return
				}
				s.Expect(<-p.code).To(Equal(exitFailed))
				s.Expect(strings.ReplaceAll(p.log.String(), `\"`, `"`)).To(ContainSubstring(c.said))
				s.Expect(s.lease()).To(BeEmpty())
			})
		})
	}
}

// TestProvidersThatDoNotFit are mistakes of the main that adds them.
func TestProvidersThatDoNotFit(t *testing.T) {
	change := func(f func(*Provider)) Provider {
		p := newAdded("mem").Provider
		f(&p)
		return p
	}
	for said, all := range map[string][]Provider{
		`add provider "": want a name of lower-case letters`:                      {change(func(p *Provider) { p.Name = "" })},
		`add provider "My Cloud": want a name`:                                    {change(func(p *Provider) { p.Name = "My Cloud" })},
		`add provider "clusterpool": the name is taken`:                           {change(func(p *Provider) { p.Name = "clusterpool" })},
		`add provider "external": the name is taken`:                              {change(func(p *Provider) { p.Name = "external" })},
		`add provider "mem": the name is taken`:                                   {newAdded("mem").Provider, newAdded("mem").Provider},
		`add provider "mem": it has no function Open`:                             {change(func(p *Provider) { p.Open = nil })},
		`add provider "mem": its flag --v is a flag of the program: want --mem-v`: {change(func(p *Provider) { p.Flags = func(fs *pflag.FlagSet) { fs.Bool("v", false, "") } })},
	} {
		g := NewWithT(t)
		var out, errs bytes.Buffer
		g.Expect(run(t.Context(), []string{"--version"}, &out, &errs, host{providers: all})).To(Equal(exitFailed), said)
		g.Expect(errs.String()).To(ContainSubstring(said))
	}
}

// TestHelpOfAProvider: its flags are in --help, with the values that select it.
func TestHelpOfAProvider(t *testing.T) {
	g := NewWithT(t)
	var out, errs bytes.Buffer
	code := Run(t.Context(), Options{Args: []string{"--help"}, Stdout: &out, Stderr: &errs}, WithProvider(newAdded("mem").Provider))
	g.Expect(code).To(BeZero(), "%s", &errs)
	g.Expect(out.String()).To(And(ContainSubstring("--mem-region string"), ContainSubstring("clusterpool (blocks of AddressPools), mem (addresses of memory)")))
}

// TestTheProgramLinksNoSDK: cmd/cadastre-operator has no module of a cloud.
func TestTheProgramLinksNoSDK(t *testing.T) {
	g := NewWithT(t)
	text, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "../cmd/cadastre-operator").CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), "%s", text)
	g.Expect(string(text)).To(ContainSubstring("cadastre/operator\n"))
	g.Expect(string(text)).NotTo(Or(ContainSubstring("github.com/aws/"), ContainSubstring("gophercloud")))
}
