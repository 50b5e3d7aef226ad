// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"
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
func Load(path string) (*Config, []string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("read configuration: %w", err)
	}
	cfg, unused, err := Parse(data)
	if err != nil {
		return nil, nil, fmt.Errorf("configuration %s:\n%w", path, err)
	}
	return cfg, unused, nil
}

// Parse reads a contiv.conf and validates it. Beside the configuration it
// returns the sorted paths of the keys that are in the file and change
// nothing: dataplane keys, which are not used yet, and networks that another
// key overrides. Its error is made of FieldErrors, one for each problem.
func Parse(data []byte) (*Config, []string, error) {
	r := newReading()
	if content := r.document(data); content != nil {
		r.object(place{}, content, reflect.ValueOf(&r.raw).Elem())
	}
	r.problems.settle()
	cfg := r.config()
	r.problems.settle()
	cfg.validate(&r.problems)
	r.blameDefaults()
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
			KVDB: raw.KVDB, NodeIDs: raw.NodeIDs, Routes: raw.Routes, REST: raw.REST, Log: raw.Log, Docker: raw.Docker, Controller: raw.Controller,
		},
		NodeConfigs: r.raw.NodeConfig,
	}
	if ipam.UseExternalIPAM && !r.given["cadastre.podBlocks"] {
		cfg.Cadastre.PodBlocks = PodBlocksPodCIDR
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
	converted, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		// Strict refuses duplicate keys. Reading on finds the other problems.
		lax, laxErr := yaml.YAMLToJSON(data)
		if laxErr != nil {
			r.problems.add(RuleSyntax, wholeFile, "", "is not valid YAML: %s", strings.TrimPrefix(laxErr.Error(), "yaml: "))
			return nil
		}
		r.duplicates(err)
		converted = lax
	}
	if hasSecondDocument(data) {
		r.problems.add(RuleDocument, wholeFile, "", "has more than one YAML document: remove the \"---\" between them, or all but one")
	} else if err := behind(data); err != nil {
		r.problems.add(RuleSyntax, wholeFile, "", "is not valid YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	var content any
	decoder := json.NewDecoder(bytes.NewReader(converted))
	decoder.UseNumber()
	if err := decoder.Decode(&content); err != nil {
		r.problems.add(RuleSyntax, wholeFile, "", "is not valid YAML: %s", err)
		return nil
	}
	if _, mapping := content.(map[string]any); content != nil && !mapping {
		r.problems.add(RuleDocument, wholeFile, "", "must be made of keys and values, such as \"ipamConfig: {podSubnetCIDR: 10.1.0.0/16}\"")
		return nil
	}
	return content
}

// behind is what is wrong with what follows the first document, which other
// decoders do not look at: "{}" and a key in the next line, for one.
func behind(data []byte) error {
	decoder := yamlv3.NewDecoder(bytes.NewReader(data))
	for {
		var document yamlv3.Node
		if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// duplicates reports the keys that the strict decoder found twice.
func (r *reading) duplicates(err error) {
	found := false
	for line := range strings.Lines(err.Error()) {
		var number int
		var key string
		if _, err := fmt.Sscanf(strings.TrimSpace(line), "line %d: key %q already set in map", &number, &key); err == nil {
			r.problems.add(RuleDuplicateKey, key, "", "given twice, the second time in line %d: keep one", number)
			found = true
		}
	}
	if !found {
		r.problems.add(RuleDuplicateKey, wholeFile, "", "%s", err)
	}
}

// hasSecondDocument finds what the YAML decoder would pass over in silence.
func hasSecondDocument(data []byte) bool {
	content, ended := false, false
	for line := range bytes.Lines(bytes.TrimPrefix(data, []byte("\ufeff"))) {
		start, rest := line, []byte(nil)
		if len(line) >= 3 {
			start, rest = line[:3], bytes.TrimSpace(line[3:])
		}
		marker := len(line) == 3 || len(line) > 3 && strings.ContainsRune(" \t\r\n", rune(line[3]))
		trimmed := bytes.TrimSpace(line)
		switch {
		case len(trimmed) == 0 || trimmed[0] == '#' || !content && line[0] == '%':
		case marker && string(start) == "---":
			if content || ended {
				return true
			}
			content = len(rest) > 0 && rest[0] != '#'
		case marker && string(start) == "...":
			ended = true
		case ended:
			return true
		default:
			content = true
		}
	}
	return false
}
