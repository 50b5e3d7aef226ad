// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import (
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"

	"github.com/cadastre/cadastre/plugins/contivconf/yamldoc"
)

// wholeFile is the field of what is wrong with no key in particular.
const wholeFile = "(file)"

// reading is one file on its way to a Config.
type reading struct {
	raw      rawConfig
	given    map[string]bool // paths of the keys in the file
	unused   map[string]bool // those of them that change nothing
	problems problems
}

func newReading() *reading {
	return &reading{raw: defaultRaw(), given: map[string]bool{}, unused: map[string]bool{}}
}

// Load reads and parses the file at path.
func Load(path string) (*Config, []string, error) { return load(path, false) }

// LoadInUse reads the file as Load does, for an agent that may have leases already. An
// address that is reserved or collides is not an error, but in Config.Tolerated: whether
// the agent starts with it depends on its state.
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

// Parse reads a contiv.conf and validates it. Beside the configuration it
// returns the sorted paths of the keys that are in the file and change
// nothing: dataplane keys, which are not used yet, and networks that another
// key overrides. Its error is made of FieldErrors, one for each problem.
func Parse(data []byte) (*Config, []string, error) { return parse(data, false) }

func parse(data []byte, inUse bool) (*Config, []string, error) {
	r := newReading()
	if content := r.document(data); content != nil {
		r.object(place{}, content, reflect.ValueOf(&r.raw).Elem())
	}
	r.problems.settle()
	cfg := r.config()
	r.problems.settle()
	cfg.validate(&r.problems)
	r.blameDefaults()
	if inUse {
		cfg.Tolerated = r.problems.tolerate()
	}
	if err := r.problems.err(); err != nil {
		return nil, nil, err
	}
	return cfg, slices.Sorted(maps.Keys(r.unused)), nil
}

// config makes the typed configuration of what was read; where that cannot be
// done it reports a problem and leaves a hole.
func (r *reading) config() *Config {
	ipam, raw := r.ipam(), &r.raw.Cadastre
	cfg := &Config{
		IPAM: ipam,
		Cadastre: Cadastre{
			NodeID: raw.NodeID, PodBlocks: raw.PodBlocks, WaitForPodCIDR: raw.WaitForPodCIDR, CoolDown: raw.CoolDown,
			KVDB: raw.KVDB, NetResource: raw.NetResource, NodeIDs: raw.NodeIDs, Routes: raw.Routes, REST: raw.REST, Metrics: raw.Metrics, Log: raw.Log, Docker: raw.Docker, Controller: raw.Controller,
		},
		NodeConfigs: r.raw.NodeConfig,
	}
	if ipam.UseExternalIPAM && !r.given["cadastre.podBlocks"] {
		cfg.Cadastre.PodBlocks = PodBlocksPodCIDR
	}
	if (cfg.Cadastre.PodBlocks == PodBlocksPodCIDR || cfg.Cadastre.PodBlocks == PodBlocksStatic) && !r.given["cadastre.nodeIDs.expire"] {
		cfg.Cadastre.NodeIDs.Expire = expireAssigned
	}
	// false is what Contiv's manifest says in any case, so it denies nothing.
	ipam.UseExternalIPAM = ipam.UseExternalIPAM || cfg.Cadastre.PodBlocks == PodBlocksPodCIDR
	for i, s := range raw.StaticPodCIDRs {
		p, _ := r.prefix("cadastre.staticPodCIDRs["+decimal(i)+"]", s)
		cfg.Cadastre.StaticPodCIDRs = append(cfg.Cadastre.StaticPodCIDRs, p)
	}
	for i, s := range raw.AllowOverlap {
		if pair, ok := r.pair("cadastre.allowOverlap["+decimal(i)+"]", s); ok {
			cfg.Cadastre.AllowOverlap = append(cfg.Cadastre.AllowOverlap, pair)
		}
	}
	return cfg
}

// document is the content of the file's one YAML document, nil if it has none.
func (r *reading) document(data []byte) any {
	content, _, faults := yamldoc.Read(data)
	for _, f := range faults {
		switch {
		case f.Kind == yamldoc.Several:
			r.problems.add(RuleDocument, wholeFile, "", "has more than one YAML document: remove the \"---\" between them, or all but one")
		case f.Kind == yamldoc.Syntax:
			r.problems.add(RuleSyntax, wholeFile, "", "is not valid YAML: %s", f.Text)
		case f.Key != "":
			r.problems.add(RuleDuplicateKey, f.Key, "", "given twice, the second time in line %d: keep one", f.Line)
		default:
			r.problems.add(RuleDuplicateKey, wholeFile, "", "%s", f.Text)
		}
	}
	if _, mapping := content.(map[string]any); content != nil && !mapping {
		r.problems.add(RuleDocument, wholeFile, "", "must be made of keys and values, such as \"ipamConfig: {podSubnetCIDR: 10.1.0.0/16}\"")
		return nil
	}
	return content
}
