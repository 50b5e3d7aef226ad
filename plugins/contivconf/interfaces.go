// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import (
	"path/filepath"
	"strconv"
	"time"

	"github.com/cadastre/cadastre/plugins/contivconf/yamldoc"
)

// Interfaces configures podBlocks interfaces: how many addresses of its cloud's
// interfaces an agent keeps free. If WarmIPs or MinimumIPs is set, WarmInterfaces and
// WarmPrefixes do not count.
type Interfaces struct {
	WarmIPs        int           `json:"warmIPs"`        // free addresses
	MinimumIPs     int           `json:"minimumIPs"`     // addresses in total
	WarmPrefixes   int           `json:"warmPrefixes"`   // with Prefixes: prefixes without a used address
	WarmInterfaces int           `json:"warmInterfaces"` // interfaces without a used address
	MaxInterfaces  int           `json:"maxInterfaces"`  // the most interfaces; 0: as many as the machine can have
	MaxPods        int           `json:"maxPods"`        // the most addresses of a family; 0: no limit
	Prefixes       bool          `json:"prefixes"`       // ask the cloud for prefixes instead of addresses
	CoolDown       time.Duration `json:"coolDown"`       // instead of cadastre.coolDown
	Reconcile      time.Duration `json:"reconcile"`      // period of the comparison with the cloud
	Checkpoint     string        `json:"checkpoint"`     // file "vpc-cni-ipam/1" that is imported at the first start
	Export         string        `json:"export"`         // file "vpc-cni-ipam/1" that is written
}

func defaultInterfaces() Interfaces {
	return Interfaces{
		WarmPrefixes:   1,
		WarmInterfaces: 1,
		CoolDown:       30 * time.Second,
		Reconcile:      time.Minute,
	}
}

// validateInterfaces checks the keys that only podBlocks interfaces uses.
func (c *Cadastre) validateInterfaces(p *yamldoc.Collector) {
	const section = "cadastre.interfaces."
	n := c.Interfaces
	if c.PodBlocks != PodBlocksInterfaces {
		if n != defaultInterfaces() {
			p.Add(RuleInterfaces, "cadastre.interfaces", "",
				"would not be used, as podBlocks is %s: write \"podBlocks: interfaces\", or remove it", c.PodBlocks)
		}
		return
	}
	if c.Docker.Enabled && c.Docker.FromPods {
		p.Add(RuleInterfaces, "cadastre.docker.fromPods", "true",
			"would keep addresses that go back to the cloud: write docker.pools instead, as podBlocks is interfaces")
	}
	const most, interfaces = 65536, 255
	for _, x := range []struct {
		key         string
		value, high int
	}{
		{"warmIPs", n.WarmIPs, most},
		{"minimumIPs", n.MinimumIPs, most},
		{"warmPrefixes", n.WarmPrefixes, most},
		{"warmInterfaces", n.WarmInterfaces, interfaces},
		{"maxInterfaces", n.MaxInterfaces, interfaces},
		{"maxPods", n.MaxPods, most},
	} {
		checkNumber(p, section+x.key, x.value, 0, x.high)
	}
	if n.MaxPods > 0 && n.MinimumIPs > n.MaxPods {
		p.Add(RuleRange, section+"minimumIPs", strconv.Itoa(n.MinimumIPs),
			"is more than maxPods (%d): write a smaller number", n.MaxPods)
	}
	checkDuration(p, section+"coolDown", n.CoolDown, 7*24*time.Hour, true)
	checkDuration(p, section+"reconcile", n.Reconcile, time.Hour, false)
	for _, x := range []struct{ key, value string }{{"checkpoint", n.Checkpoint}, {"export", n.Export}} {
		if x.value != "" && !filepath.IsAbs(x.value) {
			p.Add(RuleInterfaces, section+x.key, x.value,
				"is not an absolute path: write one such as /var/run/aws-node/ipam.json")
		}
	}
	if n.Checkpoint != "" && n.Checkpoint == n.Export {
		p.Add(RuleInterfaces, section+"export", n.Export,
			"is checkpoint as well, which is read only once: write another path, or remove checkpoint")
	}
}
