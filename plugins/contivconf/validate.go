// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import (
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cadastre/cadastre/plugins/contivconf/yamldoc"
)

// Validate returns everything that could not work, as yamldoc.Problems. Parse calls
// it. It is exported for configurations that a program makes or changes.
func (c *Config) Validate() error {
	var p yamldoc.Collector
	c.validate(&p)
	return p.Err()
}

func (c *Config) validate(p *yamldoc.Collector) {
	// If there are no families and the reason is reported, there are no networks to
	// check.
	if len(c.IPAM.Cluster.Families) > 0 || len(p.Problems) == 0 {
		c.validateNetworks(p)
	}
	c.Cadastre.validate(p)
	for i, n := range c.NodeConfigs {
		if _, err := netip.ParsePrefix(n.MainVPPInterface.IP); err != nil && n.MainVPPInterface.IP != "" {
			p.Add(yamldoc.RuleCIDR, "nodeConfig["+strconv.Itoa(i)+"].mainVPPInterface.ip", n.MainVPPInterface.IP,
				"is not an address with the length of its network: write one such as 192.168.17.10/24")
		}
	}
	if c.IPAM.UseExternalIPAM != (c.Cadastre.PodBlocks == PodBlocksPodCIDR) {
		p.Add(RuleExternalIPAM, "cadastre.podBlocks", string(c.Cadastre.PodBlocks),
			"contradicts ipamConfig.useExternalIPAM, which means \"podcidr\": remove one of the two")
	}
	c.validateStatic(p)
	c.validateAddresses(p)
	c.Cadastre.validateNetResource(p)
	c.Cadastre.validateInterfaces(p)
	c.validateDataplane(p)
}

// validateNetResource checks the keys that only podBlocks netresource uses, and those
// that it needs.
func (c *Cadastre) validateNetResource(p *yamldoc.Collector) {
	const section, limit = "cadastre.netResource.", 65536
	n := c.NetResource
	if c.PodBlocks != PodBlocksNetResource {
		if n != (NetResource{}) {
			p.Add(RuleNetResource, "cadastre.netResource", "",
				"would not be used, as podBlocks is %s: write \"podBlocks: netresource\", or remove it", c.PodBlocks)
		}
		return
	}
	if c.KVDB.Type != KVDBKubernetes {
		p.Add(RuleNetResource, "cadastre.kvdb.type", string(c.KVDB.Type),
			"has no NetResourceSets, but podBlocks is netresource: write \"type: kubernetes\"")
	}
	if c.Docker.Enabled && c.Docker.FromPods {
		p.Add(RuleNetResource, "cadastre.docker.fromPods", "true",
			"would keep blocks that the operator wants back: write docker.pools instead, as podBlocks is netresource")
	}
	for _, x := range []struct {
		key        string
		value, low int
	}{
		{"minAllocate", n.MinAllocate, 0},
		{"maxAllocate", n.MaxAllocate, 0},
		{"preAllocate", n.PreAllocate, -1},
		{"maxAboveWatermark", n.MaxAboveWatermark, 0},
	} {
		checkNumber(p, section+x.key, x.value, x.low, limit)
	}
	if n.MaxAllocate > 0 && n.MinAllocate > n.MaxAllocate {
		p.Add(
			RuleRange,
			section+"minAllocate",
			strconv.Itoa(n.MinAllocate),
			"is more than maxAllocate (%d)",
			n.MaxAllocate,
		)
	}
}

// maxInstanceID limits instanceID, as the NetResourceSet does.
const maxInstanceID = 253

func (c *Cadastre) validate(p *yamldoc.Collector) {
	oneOf(
		p,
		"cadastre.podBlocks",
		c.PodBlocks,
		PodBlocksNodeID,
		PodBlocksPodCIDR,
		PodBlocksNetResource,
		PodBlocksInterfaces,
		PodBlocksStatic,
	)
	oneOf(p, "cadastre.log.level", c.Log.Level, LogDebug, LogInfo, LogWarn, LogError)
	oneOf(p, "cadastre.log.format", c.Log.Format, LogText, LogJSON)
	checkDuration(p, "cadastre.coolDown", c.CoolDown, 7*24*time.Hour, true)
	if len(c.InstanceID) > maxInstanceID || strings.ContainsAny(c.InstanceID, "/ \t\r\n") {
		p.Add(
			RuleRange,
			"cadastre.instanceID",
			c.InstanceID,
			"is not the ID of a machine: want at most %d characters without spaces and slashes, such as i-0123456789abcdef0",
			maxInstanceID,
		)
	}
	c.KVDB.validate(p)
	c.NodeIDs.validate(p)
	c.REST.validate(p)
	c.Metrics.validate(p, c.REST.Listen)
	c.Traces.validate(p)
	if c.Docker.Enabled && c.Docker.Socket == "" {
		p.Add(
			yamldoc.RuleMissing,
			"cadastre.docker.socket",
			"",
			"is empty: write a path, such as /run/docker/plugins/cadastre.sock",
		)
	}
	checkDuration(p, "cadastre.docker.coolDown", c.Docker.CoolDown, 7*24*time.Hour, true)
	for i, x := range c.Docker.Pools {
		x.validate(p, "cadastre.docker.pools["+strconv.Itoa(i)+"].")
	}
	c.Witnesses.validate(p)
	c.Reclaim.validate(p)
	c.Controller.validate(p)
	const least, most = 100, 1_000_000
	if n := c.History.Entries; n < least || n > most {
		p.Add(RuleRange, "cadastre.history.entries", strconv.Itoa(n),
			"is not a size of the history: write a number from %d to %d", least, most)
	}
	checkDuration(p, "cadastre.history.age", c.History.Age, 10*365*24*time.Hour, false)
}

func (x DockerPool) validate(p *yamldoc.Collector, section string) {
	base, err := netip.ParsePrefix(x.Base)
	switch {
	case err != nil:
		p.Add(yamldoc.RuleCIDR, section+"base", x.Base, "is not a network: write one such as 172.20.0.0/14")
	case base != base.Masked():
		p.Add(yamldoc.RuleHostBits, section+"base", x.Base, "has host bits set: write %s", base.Masked())
	case int(x.Size) < base.Bits() || int(x.Size) > base.Addr().BitLen():
		p.Add(RuleRange, section+"size", strconv.Itoa(int(x.Size)),
			"is not a length of a part of %s: write a number from %d to %d", base, base.Bits(), base.Addr().BitLen())
	}
}

func (n *NodeIDs) validate(p *yamldoc.Collector) {
	const section, year = "cadastre.nodeIDs.", 365 * 24 * time.Hour
	checkDuration(p, section+"refresh", n.Refresh, year, false)
	checkDuration(p, section+"fresh", n.Fresh, year, false)
	checkDuration(p, section+"expire", n.Expire, year, false)
	checkDuration(p, section+"quarantine", n.Quarantine, year, true)
	if n.Fresh < 2*n.Refresh {
		p.Add(RuleRange, section+"fresh", short(n.Fresh),
			"is less than twice refresh (%s): a node would look dead between two signs of life; write %s",
			short(n.Refresh), short(3*n.Refresh))
	}
	if n.Expire <= n.Fresh {
		p.Add(RuleRange, section+"expire", short(n.Expire), "is not longer than fresh (%s): write 24h", short(n.Fresh))
	}
}

// oneOf reports a word that is not one of the allowed ones.
func oneOf[T ~string](p *yamldoc.Collector, field string, value T, allowed ...T) {
	if slices.Contains(allowed, value) {
		return
	}
	words := make([]string, len(allowed))
	for i, a := range allowed {
		words[i] = string(a)
	}
	shown := string(value)
	problem := "is not allowed: write %s or %s"
	if shown == "" {
		problem = "is empty: write %s or %s"
	}
	p.Add(RuleEnum, field, shown, problem, strings.Join(words[:len(words)-1], ", "), words[len(words)-1])
}

func (k *KVDB) validate(p *yamldoc.Collector) {
	const section = "cadastre.kvdb."
	oneOf(p, section+"type", k.Type, KVDBBolt, KVDBEtcd, KVDBKubernetes)
	switch {
	case k.Type == KVDBEtcd && len(k.Endpoints) == 0:
		p.Add(RuleKVDB, section+"endpoints", "",
			"is empty, but type is etcd: write a list, such as [\"https://10.0.0.1:2379\"]")
	case k.Type != KVDBEtcd && len(k.Endpoints) > 0:
		// Every node on a store of its own would claim node ID 1.
		p.Add(RuleKVDB, section+"endpoints", "",
			"would not be used, as type is %s: write \"type: etcd\", or remove them", k.Type)
	}
	if k.Kubeconfig != "" && k.Type != KVDBKubernetes {
		p.Add(RuleKVDB, section+"kubeconfig", k.Kubeconfig,
			"would not be used, as type is %s: write \"type: kubernetes\", or remove it", k.Type)
	}
	for i, e := range k.Endpoints {
		field := section + "endpoints[" + strconv.Itoa(i) + "]"
		if strings.Contains(e, "@") { // not to be repeated in a log
			p.Add(RuleKVDB, field, "", "holds a user or password: remove them and set username and passwordFile")
		} else if !isEndpoint(e) {
			p.Add(RuleKVDB, field, e, "is not an endpoint: write host:port, or a URL such as https://10.0.0.1:2379")
		}
	}
	if !strings.HasPrefix(k.Prefix, "/") || !strings.HasSuffix(k.Prefix, "/") {
		p.Add(RuleKVDB, section+"prefix", k.Prefix, "must begin and end with a slash, such as /cadastre/")
	}
	bothOrNone(p, RuleKVDB, section, "cert", k.Cert, "key", k.Key)
	bothOrNone(p, RuleKVDB, section, "username", k.Username, "passwordFile", k.PasswordFile)
}

func bothOrNone(p *yamldoc.Collector, rule Rule, section, a, aValue, b, bValue string) {
	switch {
	case aValue == "" && bValue != "":
		p.Add(rule, section+a, "", "is empty, but %s is set: set both or none", b)
	case aValue != "" && bValue == "":
		p.Add(rule, section+b, "", "is empty, but %s is set: set both or none", a)
	}
}

func isEndpoint(s string) bool {
	if strings.Contains(s, "://") {
		u, err := url.Parse(s)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || strings.Trim(u.Path, "/") != "" {
			return false
		}
		s = u.Host
	}
	host, port, err := net.SplitHostPort(s)
	return err == nil && host != "" && isPort(port)
}

func isPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0
}

func (m *Metrics) validate(p *yamldoc.Collector, rest string) {
	const section = "cadastre.metrics."
	if !m.Enabled {
		return
	}
	host, port, err := net.SplitHostPort(m.Listen)
	address, _ := netip.ParseAddr(host)
	switch {
	case err != nil || !isPort(port):
		p.Add(RuleMetrics, section+"listen", m.Listen,
			"is not an address to listen on: write host:port, such as 127.0.0.1:10262")
	case m.Cert == "" && m.Key == "" && !address.IsLoopback():
		p.Add(RuleMetrics, section+"listen", m.Listen,
			"is not a loopback address, and has no TLS: set cert and key, or write 127.0.0.1:%s", port)
	}
	if m.Listen == rest {
		p.Add(RuleMetrics, section+"listen", m.Listen,
			"is cadastre.rest.listen as well: write an address with another port")
	}
	bothOrNone(p, RuleMetrics, section, "cert", m.Cert, "key", m.Key)
	if m.ClientCA != "" && m.Cert == "" && m.Key == "" {
		p.Add(RuleMetrics, section+"clientCA", m.ClientCA,
			"would not be used without TLS: set cert and key, or remove it")
	}
}

func (r *REST) validate(p *yamldoc.Collector) {
	const section = "cadastre.rest."
	if r.Listen == "" {
		return
	}
	if _, port, err := net.SplitHostPort(r.Listen); err != nil || !isPort(port) {
		p.Add(RuleREST, section+"listen", r.Listen,
			"is not an address to listen on: write host:port, such as 127.0.0.1:9999 or :9999")
	}
	for _, f := range []struct{ key, value, what string }{
		{"cert", r.Cert, "certificate"},
		{"key", r.Key, "private key"},
	} {
		if f.value == "" {
			p.Add(RuleREST, section+f.key, "",
				"is empty, but rest.listen is set, which needs TLS: write the path of a %s (PEM)", f.what)
		}
	}
}
