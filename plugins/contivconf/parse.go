// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/cadastre/cadastre/plugins/contivconf/yamldoc"
)

// reading holds one file while it is read.
type reading struct {
	*yamldoc.Decoder
	raw   rawConfig
	notes map[string]string // what happens with a key, by its path
}

func newReading(raw rawConfig) *reading {
	return &reading{
		Decoder: yamldoc.NewDecoder(yamldoc.Options{
			Example: "ipamConfig: {podSubnetCIDR: 10.1.0.0/16}",
			Unknown: func(section, key string, _ []string) string {
				return fmt.Sprintf("unknown key; the nearest known one is %q", nearest(section, key))
			},
			Renamed: renamed,
			Whole: func(path string) bool {
				section, _, _ := strings.Cut(path, ".")
				return section == "cadastre" || path == "ipamConfig"
			},
		}),
		raw:   raw,
		notes: map[string]string{},
	}
}

// Load reads and parses the file at path.
func Load(path string) (*Config, []string, error) { return load(path, false) }

// LoadInUse reads the file as Load does, for an agent that may have leases already.
// It returns an address that is reserved or collides in Config.Tolerated instead of
// as an error; the caller decides by the agent's state whether to start with it.
func LoadInUse(path string) (*Config, []string, error) { return load(path, true) }

func load(path string, inUse bool) (*Config, []string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("read configuration: %w", err)
	}
	cfg, unused, err := parse(data, inUse)
	if err != nil {
		return nil, nil, fmt.Errorf("configuration %s:\n%w", path, err)
	}
	return cfg, unused, nil
}

// Parse reads and validates a contiv.conf. Beside the configuration it returns the
// sorted paths of the keys that are in the file and change nothing: keys of another data
// plane, and keys that another key overrides. Config.Notes says what happens instead.
// Its error is yamldoc.Problems.
func Parse(data []byte) (*Config, []string, error) { return parse(data, false) }

func parse(data []byte, inUse bool) (*Config, []string, error) {
	r := newReading(defaultRaw())
	r.Decode(data, &r.raw)
	cfg := r.config()
	r.Mute()
	cfg.validate(&r.Collector)
	r.explainDefaults()
	r.explainNames()
	cfg.Notes = r.allNotes()
	if inUse {
		cfg.Tolerated = slices.Clone(r.Problems)
		cfg.Tolerated = slices.DeleteFunc(cfg.Tolerated, func(p yamldoc.Problem) bool { return !tolerable(p) })
		r.Problems = slices.DeleteFunc(r.Problems, tolerable)
	}
	if err := r.Err(); err != nil {
		return nil, nil, err
	}
	return cfg, r.unusedKeys(), nil
}

// config returns the typed configuration. It reports each value that it cannot
// convert and leaves that one out.
func (r *reading) config() *Config {
	ipam, raw := r.ipam(), &r.raw.Cadastre
	cfg := &Config{
		IPAM: ipam,
		Cadastre: Cadastre{
			NodeID:         raw.NodeID,
			InstanceID:     raw.InstanceID,
			PodBlocks:      raw.PodBlocks,
			WaitForPodCIDR: raw.WaitForPodCIDR,
			CoolDown:       raw.CoolDown,
			KVDB:           raw.KVDB,
			NetResource:    raw.NetResource,
			Interfaces:     raw.Interfaces,
			NodeIDs:        raw.NodeIDs,
			Dataplane:      raw.Dataplane,
			Transport:      raw.Transport,
			Underlay:       r.underlay(),
			MTU:            raw.MTU,
			Masquerade:     raw.Masquerade,
			AllowForward:   raw.AllowForward,
			VNI:            raw.VNI,
			CNI:            raw.CNI,
			VPP:            r.vpp(),
			REST:           raw.REST,
			Metrics:        raw.Metrics,
			Log:            raw.Log,
			Traces:         raw.Traces,
			Docker:         raw.Docker,
			Witnesses:      raw.Witnesses,
			Reclaim:        raw.Reclaim,
			Controller:     raw.Controller,
			History:        raw.History,
		},
		NodeConfigs: r.raw.NodeConfig,
	}
	c := &cfg.Cadastre
	r.contivPlane(c)
	c.MasqueradeUplinks = c.Masquerade && r.Given["cadastre.masquerade"]
	if ipam.UseExternalIPAM && !r.Given["cadastre.podBlocks"] {
		c.PodBlocks = PodBlocksPodCIDR
	}
	assigned := c.PodBlocks == PodBlocksPodCIDR || c.PodBlocks == PodBlocksStatic
	if assigned && !r.Given["cadastre.nodeIDs.expire"] {
		c.NodeIDs.Expire = expireAssigned
	}
	// Contiv's manifest says false in any case, so false contradicts nothing.
	ipam.UseExternalIPAM = ipam.UseExternalIPAM || c.PodBlocks == PodBlocksPodCIDR
	for i, s := range raw.StaticPodCIDRs {
		p, _ := r.prefix("cadastre.staticPodCIDRs["+strconv.Itoa(i)+"]", s)
		c.StaticPodCIDRs = append(c.StaticPodCIDRs, p)
	}
	for i, s := range raw.AllowOverlap {
		if pair, ok := r.pair("cadastre.allowOverlap["+strconv.Itoa(i)+"]", s); ok {
			c.AllowOverlap = append(c.AllowOverlap, pair)
		}
	}
	return cfg
}
