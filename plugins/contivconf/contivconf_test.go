// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/contivconf/yamldoc"
	"github.com/cadastre/cadastre/plugins/ipam/addrplan"
)

func mustParse(t *testing.T, text string) *contivconf.Config {
	t.Helper()
	cfg, _, err := contivconf.Parse([]byte(text))
	if err != nil {
		t.Fatalf("%v\nin\n%s", err, text)
	}
	return cfg
}

func good(t *testing.T, name string) *contivconf.Config {
	t.Helper()
	cfg, _, err := contivconf.Load("testdata/good/" + name + ".conf")
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestDefaults(t *testing.T) {
	g := NewWithT(t)
	g.Expect(contivconf.Default().Validate()).To(Succeed())
	g.Expect(mustParse(t, "{}")).To(Equal(contivconf.Default()))

	nodes, err := contivconf.Default().IPAM.Cluster.Node(5)
	g.Expect(err).NotTo(HaveOccurred())
	n := nodes[0]
	g.Expect(fmt.Sprint(n.PodSubnet, n.PodGateway, n.NatLoopback, n.FirstPod, n.LastPod, n.HostVPP, n.HostLinux, n.NodeIP, n.VxlanIP)).To(Equal(
		"10.1.5.0/24 10.1.5.1 10.1.5.254 10.1.5.2 10.1.5.253 172.30.5.1 172.30.5.2 192.168.16.5/24 192.168.30.5/24"))
	g.Expect(contivconf.Default().IPAM.Cluster.Families[0].Service.String()).To(Equal("10.96.0.0/12"))

	c := contivconf.Default().Cadastre
	g.Expect(c.PodBlocks).To(Equal(contivconf.PodBlocksNodeID))
	g.Expect(c.WaitForPodCIDR).To(BeTrue())
	g.Expect(c.CoolDown).To(Equal(60 * time.Second))
	g.Expect(c.Controller.EventTimeout).To(Equal(60 * time.Second))
	g.Expect(c.Controller.EventHistoryAgeLimit).To(Equal(60 * time.Minute))
}

// shape is the networks of a family, "" where undefined.
func shape(f addrplan.Family) string {
	nodes := ""
	if f.Nodes.IsValid() {
		nodes = f.Nodes.String()
	}
	return strings.Join([]string{f.Pods.String(), f.Hosts.String(), nodes, f.Vxlan.String()}, " ")
}

func TestContivCIDR(t *testing.T) {
	for _, c := range []struct{ name, conf, want string }{
		{"everything is cut from it", "contivCIDR: 10.128.0.0/14", "10.128.0.0/16 10.129.0.0/16 10.130.0.0/23 10.130.2.0/23"},
		{"another one", "contivCIDR: 192.240.0.0/12", "192.240.0.0/16 192.241.0.0/16 192.242.0.0/23 192.242.2.0/23"},
		{"nodes from the file win", "{contivCIDR: 10.128.0.0/14, nodeInterconnectCIDR: 192.168.16.0/24}", "10.128.0.0/16 10.129.0.0/16 192.168.16.0/24 10.130.2.0/23"},
		{"nodes that are empty do not", "{contivCIDR: 10.128.0.0/14, nodeInterconnectCIDR: ''}", "10.128.0.0/16 10.129.0.0/16 10.130.0.0/23 10.130.2.0/23"},
		{"DHCP", "{contivCIDR: 10.128.0.0/14, nodeInterconnectDHCP: true}", "10.128.0.0/16 10.129.0.0/16  10.130.2.0/23"},
		{"DHCP wins over the file", "{contivCIDR: 10.128.0.0/14, nodeInterconnectDHCP: true, nodeInterconnectCIDR: 192.168.16.0/24}", "10.128.0.0/16 10.129.0.0/16  10.130.2.0/23"},
		{"IPv6", "{contivCIDR: 'fe10::/64', serviceCIDR: 'fd00:5::/108'}", "fe10::/112 fe10::1:0/112 fe10::2:0/119 fe10::2:200/119"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			conf := c.conf
			if !strings.HasPrefix(conf, "{") {
				conf = "{" + conf + "}"
			}
			cfg := mustParse(t, "ipamConfig: "+conf)
			g.Expect(cfg.IPAM.Cluster.Families).To(HaveLen(1))
			f := cfg.IPAM.Cluster.Families[0]
			g.Expect(shape(f)).To(Equal(c.want))
			g.Expect(f.PodsOneNode).To(Equal(f.Pods.Addr().BitLen() - 7))
			g.Expect(cfg.IPAM.ContivCIDR).To(HaveLen(1))
		})
	}
	g := NewWithT(t)
	for _, small := range []string{"10.130.0.0/18", "fe10::/120"} {
		_, _, err := contivconf.Parse([]byte("ipamConfig: {contivCIDR: '" + small + "'}"))
		g.Expect(err).To(MatchError(ContainSubstring("at least 18 host bits")))
	}
}

func TestDualStack(t *testing.T) {
	g := NewWithT(t)
	families := good(t, "dual-stack").IPAM.Cluster.Families
	g.Expect(families).To(HaveLen(2))
	g.Expect(shape(families[1])).To(Equal("fd00:1::/48 fd00:2::/48 fd00:3::/64 fd00:4::/64"))
	g.Expect([]int{families[0].PodsOneNode, families[1].PodsOneNode}).To(Equal([]int{24, 64}))
	g.Expect([]int{families[0].HostsOneNode, families[1].HostsOneNode}).To(Equal([]int{24, 126}))
	g.Expect(families[0].Gateway.IsValid()).To(BeFalse())
	g.Expect(families[1].Gateway.String()).To(Equal("fd00:3::1"))

	families = good(t, "ipv6-first").IPAM.Cluster.Families
	g.Expect([]int{families[0].PodsOneNode, families[1].PodsOneNode}).To(Equal([]int{64, 24}))
	g.Expect(families[0].Gateway.String() + " " + families[1].Gateway.String()).To(Equal("fd00:3::1 192.168.16.1"))
	g.Expect(families[1].Service.String()).To(Equal("10.96.0.0/12"))

	cfg := mustParse(t, "ipamConfig: {contivCIDR: '10.128.0.0/14,fe10::/64', serviceCIDR: '10.96.0.0/12,fd00:5::/108'}")
	g.Expect(shape(cfg.IPAM.Cluster.Families[1])).To(Equal("fe10::/112 fe10::1:0/112 fe10::2:0/119 fe10::2:200/119"))
}

func TestAllProblemsAtOnce(t *testing.T) {
	g := NewWithT(t)
	_, unused, err := contivconf.Parse([]byte("ipamConfig: {podSubnetCIDR: 10.1.0.1/16, vxlanCIDR: nonsense, serviceCIDR: 172.30.0.0/24}\nlog: {}\ncadastre: {coolDown: -1s, log: {level: loud}}\n"))
	g.Expect(unused).To(BeNil())
	var fields []string
	for _, e := range problemsOf(fmt.Errorf("file: %w", err)) {
		fields = append(fields, e.Field)
	}
	g.Expect(fields).To(Equal([]string{"log", "ipamConfig.podSubnetCIDR", "ipamConfig.vxlanCIDR", "cadastre.log.level", "cadastre.coolDown"}))

	// What can be compared is compared although something else is wrong.
	_, _, err = contivconf.Parse([]byte("ipamConfig: {vxlanCIDR: nonsense, podSubnetCIDR: 10.1.0.0/16, podSubnetOneNodePrefixLen: 31}"))
	g.Expect(problemsOf(err)).To(HaveLen(1))
	g.Expect(problemsOf(err)[0]).To(Equal(yamldoc.Problem{
		Rule:  yamldoc.RuleCIDR,
		Field: "ipamConfig.vxlanCIDR",
		Value: "nonsense",
		Text:  "is not a network: write address/length, such as 10.1.0.0/16 or fd00:1::/48",
	}))
}

func TestOverlapsOfEachPair(t *testing.T) {
	names := []string{"podSubnetCIDR", "vppHostSubnetCIDR", "nodeInterconnectCIDR", "vxlanCIDR", "serviceCIDR"}
	for i, a := range names {
		for _, b := range names[i+1:] {
			g := NewWithT(t)
			conf := fmt.Sprintf("ipamConfig: {%s: 10.50.0.0/16, %s: 10.50.0.0/20, podSubnetOneNodePrefixLen: 24}\n", a, b)
			_, _, err := contivconf.Parse([]byte(conf))
			g.Expect(problemsOf(err)).To(HaveLen(1), conf)
			g.Expect(err).To(MatchError(ContainSubstring("ipamConfig."+a+": \"10.50.0.0/16\" overlaps "+b)), conf)
			for _, pair := range []string{a + "/" + b, strings.ToUpper(b) + "/" + a} {
				cfg := mustParse(t, conf+"cadastre: {allowOverlap: ["+pair+"]}")
				g.Expect(cfg.Cadastre.AllowOverlap).To(Equal([]contivconf.NetworkPair{{a, b}}))
			}
		}
	}
}

func TestSectionCadastre(t *testing.T) {
	g := NewWithT(t)
	c := good(t, "everything-ours").Cadastre
	want := contivconf.Default().Cadastre
	want.NodeID, want.PodBlocks, want.WaitForPodCIDR, want.CoolDown = 7, contivconf.PodBlocksStatic, false, 0
	want.StaticPodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.9.0.0/24"), netip.MustParsePrefix("10.1.7.0/24")}
	want.AllowOverlap = []contivconf.NetworkPair{{"podSubnetCIDR", "vxlanCIDR"}}
	want.KVDB = contivconf.KVDB{contivconf.KVDBEtcd, []string{"https://10.0.0.1:2379", "etcd.example:2379", "[fd00::1]:2379"}, "/lab/",
		"/etc/cadastre/ca.pem", "/etc/cadastre/client.pem", "/etc/cadastre/client.key", "1234", "/etc/cadastre/password", ""}
	want.REST = contivconf.REST{":9999", "/etc/cadastre/s.pem", "/etc/cadastre/s.key", "/etc/cadastre/ca.pem"}
	want.Metrics = contivconf.Metrics{true, "10.0.0.1:9998", "/etc/cadastre/s.pem", "/etc/cadastre/s.key", "/etc/cadastre/ca.pem"}
	want.Log = contivconf.Log{contivconf.LogDebug, contivconf.LogJSON}
	want.Docker = contivconf.Docker{Enabled: true, Socket: "/tmp/cadastre.sock"}
	want.NodeIDs.Expire = 5 * time.Minute // blocks are assigned
	want.History = contivconf.History{Entries: 1000, Age: 24 * time.Hour}
	want.Controller.DelayRetry, want.Controller.EventHistoryAgeLimit, want.Controller.EventTimeout = 2*time.Second, 24*time.Hour, 90*time.Second
	g.Expect(c).To(Equal(want))
}

// A file that is empty, or that was cut off so that only the beginning of a section is left, is
// not a file of defaults. With the defaults the agent would leave the pods' network to others.
func TestAFileThatWasCutOff(t *testing.T) {
	const whole = `# the cluster
ipamConfig:
  podSubnetCIDR: 10.4.0.0/16
cadastre:
  dataplane: linux
  transport: vxlan
`
	g := NewWithT(t)
	_, _, err := contivconf.Parse([]byte(whole))
	g.Expect(err).NotTo(HaveOccurred())
	for _, c := range []struct{ left, says string }{
		{"", "(file): has no keys"},
		{"\n \n", "(file): has no keys"},
		{"# the cluster\n", "(file): has no keys"},
		{"---\n", "(file): has no keys"},
		{"ipamConfig:\n", "ipamConfig: has no value, or the file was cut off here"},
		{whole[:strings.Index(whole, "  dataplane")], "cadastre: has no value, or the file was cut off here"},
		{whole[:strings.Index(whole, "linux")], "cadastre.dataplane: has no value, or the file was cut off here"},
	} {
		_, _, err := contivconf.Parse([]byte(c.left))
		g.Expect(err).To(MatchError(ContainSubstring(c.says)), "%q", c.left)
	}
	_, _, err = contivconf.Parse([]byte("{}"))
	g.Expect(err).NotTo(HaveOccurred(), "a file that says that it has no keys")
}

func TestExternalIPAM(t *testing.T) {
	for conf, want := range map[string]contivconf.PodBlocks{
		"ipamConfig: {useExternalIPAM: true}":                                    contivconf.PodBlocksPodCIDR,
		"cadastre: {podBlocks: podcidr}":                                         contivconf.PodBlocksPodCIDR,
		"{ipamConfig: {useExternalIPAM: false}, cadastre: {podBlocks: podcidr}}": contivconf.PodBlocksPodCIDR,
		"{ipamConfig: {useExternalIPAM: true}, cadastre: {podBlocks: podcidr}}":  contivconf.PodBlocksPodCIDR,
		"{ipamConfig: {useExternalIPAM: false}, cadastre: {nodeID: 1}}":          contivconf.PodBlocksNodeID,
		"cadastre: {podBlocks: netresource, kvdb: {type: kubernetes}}":           contivconf.PodBlocksNetResource,
	} {
		g := NewWithT(t)
		plugin := contivconf.NewPlugin(mustParse(t, conf))
		g.Expect(plugin.PodBlocks()).To(Equal(want), conf)
		g.Expect(plugin.UseExternalIPAM()).To(Equal(want == contivconf.PodBlocksPodCIDR), conf)
	}
}

func TestNodeConfigs(t *testing.T) {
	g := NewWithT(t)
	cfg := good(t, "contiv-vpp-3.4")
	g.Expect(cfg.NodeConfigs).To(HaveLen(3))
	g.Expect(cfg.NodeConfigs[0]).To(Equal(contivconf.NodeConfig{NodeName: "k8s-master", Gateway: "192.168.16.100", NatExternalTraffic: true,
		MainVPPInterface: contivconf.MainInterfaceConfig{InterfaceName: "GigabitEthernet0/8/0", IP: "192.168.16.1/24"}}))

	// A node's gateway moves no address; the cluster's does.
	nodes, err := mustParse(t, "nodeConfig: [{nodeName: a, gateway: 192.168.16.2}]").IPAM.Cluster.Node(5)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(nodes[0].NodeIP.String()).To(Equal("192.168.16.5/24"))
	cluster := mustParse(t, "ipamConfig: {nodeInterconnectCIDR: 3.4.5.192/26, defaultGateway: 3.4.5.194}").IPAM.Cluster
	for id, want := range map[uint32]string{1: "3.4.5.193/26", 2: "3.4.5.195/26", 3: "3.4.5.196/26"} {
		nodes, err := cluster.Node(id)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(nodes[0].NodeIP.String()).To(Equal(want))
	}
}

// A configuration that a program made is checked like one from a file.
func TestValidate(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*contivconf.Config)
		want   string
	}{
		{"no family", func(c *contivconf.Config) { c.IPAM.Cluster.Families = nil }, "0 families"},
		{"three families", func(c *contivconf.Config) { c.IPAM.Cluster.Families = make([]addrplan.Family, 3) }, "3 families"},
		{"twice the same", func(c *contivconf.Config) {
			c.IPAM.Cluster.Families = append(c.IPAM.Cluster.Families, c.IPAM.Cluster.Families[0])
		}, "of the same family"},
		{"a hole", func(c *contivconf.Config) { c.IPAM.Cluster.Families[0].Vxlan = netip.Prefix{} }, "ipamConfig.vxlanCIDR: is not a network"},
		{"another family", func(c *contivconf.Config) { c.IPAM.Cluster.Families[0].Vxlan = netip.MustParsePrefix("fd00::/64") }, "not of the same family"},
		{"host bits", func(c *contivconf.Config) {
			c.IPAM.Cluster.Families[0].Vxlan = netip.MustParsePrefix("192.168.30.1/24")
		}, "has host bits set: write 192.168.30.0/24"},
		{"node ID", func(c *contivconf.Config) { c.Cadastre.NodeID = 300 }, "IDs 1 to 254"},
		{"static", func(c *contivconf.Config) {
			c.Cadastre.PodBlocks, c.Cadastre.StaticPodCIDRs = contivconf.PodBlocksStatic, []netip.Prefix{netip.MustParsePrefix("10.9.0.1/24")}
		}, "staticPodCIDRs[0]: \"10.9.0.1/24\" has host bits"},
		{"empty enum", func(c *contivconf.Config) { c.Cadastre.Log.Format = "" }, "cadastre.log.format: is empty: write text or json"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			cfg := contivconf.Default()
			c.change(cfg)
			g.Expect(cfg.Validate()).To(MatchError(ContainSubstring(c.want)))
		})
	}
}

func TestPlugin(t *testing.T) {
	g := NewWithT(t)
	cfg := mustParse(t, "ipamConfig: {defaultGateway: 192.168.16.1}\ncadastre: {nodeID: 5, podBlocks: static, staticPodCIDRs: [10.9.0.0/24]}")
	var api contivconf.API = contivconf.NewPlugin(cfg)
	g.Expect(api.GetStaticDefaultGW().String()).To(Equal("192.168.16.1"))
	g.Expect(api.StaticPodCIDRs()).To(Equal(cfg.Cadastre.StaticPodCIDRs))
	g.Expect(api.WaitForPodCIDR()).To(BeTrue())
	g.Expect(api.CoolDown()).To(Equal(time.Minute))
	g.Expect(api.PinnedNodeID()).To(BeNumerically("==", 5))
	g.Expect(api.GetIPAMConfig()).To(Equal(cfg.IPAM))

	api.GetIPAMConfig().Cluster.Families[0].PodsOneNode = 1
	api.Cluster().Families[0].PodsOneNode = 1
	g.Expect(api.Cluster().Families[0].PodsOneNode).To(Equal(24), "an answer is a copy")

	plugin := contivconf.NewPlugin(cfg)
	g.Expect(plugin.String()).To(Equal("contivconf"))
	g.Expect(errors.Join(plugin.Init(), plugin.AfterInit(), plugin.Close())).To(Succeed())
	g.Expect(contivconf.NewPlugin(good(t, "dhcp")).GetStaticDefaultGW().IsValid()).To(BeFalse())
}

func TestLoad(t *testing.T) {
	g := NewWithT(t)
	_, _, err := contivconf.Load(filepath.Join(t.TempDir(), "contiv.conf"))
	g.Expect(err).To(MatchError(os.ErrNotExist))
	g.Expect(err).To(MatchError(ContainSubstring("read configuration: open ")))
	_, _, err = contivconf.Load("testdata/bad/cidr.conf")
	g.Expect(err).To(MatchError(HavePrefix("configuration testdata/bad/cidr.conf:\nipamConfig.podSubnetCIDR: ")))
	g.Expect(problemsOf(err)).To(HaveLen(1))
}

func TestLogLevels(t *testing.T) {
	for level, want := range map[contivconf.LogLevel]slog.Level{
		contivconf.LogDebug: slog.LevelDebug, contivconf.LogInfo: slog.LevelInfo, contivconf.LogWarn: slog.LevelWarn, contivconf.LogError: slog.LevelError,
	} {
		NewWithT(t).Expect(level.Slog()).To(Equal(want))
	}
}
