// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package poolplan_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/ipam/poolplan"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name, file string
		want       []poolplan.Wanted
	}{
		{"everything", `
# more room
pools:
- name: pods-2
  network: default
  ranges:
  - {cidr: 10.2.0.0/16, oneNodePrefixLen: 24}
  - {cidr: "fd00:2::/48", oneNodePrefixLen: 64}
  state: active
- name: default
  state: draining
- {name: blue.old, network: blue, state: removed}
`, []poolplan.Wanted{
			{Name: "pods-2", Network: "default", Ranges: []poolplan.Range{rng("10.2.0.0/16 24"), rng("fd00:2::/48 64")}},
			{Name: "default", State: poolplan.Draining},
			{Name: "blue.old", Network: "blue", State: poolplan.Removed},
		}},
		{"what is left out", "pools: [{name: a, network: , ranges: , state: }]", []poolplan.Wanted{{Name: "a"}}},
		{"nothing is wanted", "pools: []", []poolplan.Wanted{}},
		{"markers of the one document", "%YAML 1.1\n--- # here\npools: []\n...\n# there\n", []poolplan.Wanted{}},
		{"JSON", `{"pools":[{"name":"1","ranges":[{"cidr":"10.2.0.0/16","oneNodePrefixLen":24}]}]}`,
			[]poolplan.Wanted{{Name: "1", Ranges: []poolplan.Range{rng("10.2.0.0/16 24")}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			wanted, err := poolplan.Parse([]byte(c.file))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(wanted).To(Equal(c.want))
		})
	}
}

type badFile struct {
	name, file string
	want       []string
}

func expectRefused(t *testing.T, files ...badFile) {
	for _, c := range files {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			wanted, err := poolplan.Parse([]byte(c.file))
			g.Expect(lines(g, err)).To(Equal(c.want))
			g.Expect(wanted).To(BeNil())
		})
	}
}

func TestBadFiles(t *testing.T) {
	expectRefused(t,
		badFile{"empty", "# nothing\n", []string{`pools: is missing: write a list of pools, such as "pools: [{name: pods-2, ranges: [{cidr: 10.2.0.0/16, oneNodePrefixLen: 24}]}]"`}},
		badFile{"no YAML", "pools: [", []string{`(file): is not valid YAML: line 1: did not find expected node content`}},
		badFile{"no section", "- name: a", []string{
			`(file): must be made of keys and values, such as "pools: [{name: pods-2, ranges: [{cidr: 10.2.0.0/16, oneNodePrefixLen: 24}]}]"`}},
		badFile{"two documents", "pools: []\n---\npools: [{name: a}]\n", []string{`(file): has more than one YAML document: remove the "---" between them, or all but one`}},
		badFile{"more behind the end", "pools: []\n...\npools: [{name: a}]\n", []string{`(file): has more than one YAML document: remove the "---" between them, or all but one`}},
		badFile{"unknown keys, all of them", "pool: x\npools:\n- {name: a, Name: b, cidr: 10.2.0.0/16, ranges: [{cidr: 10.2.0.0/16, oneNodePrefixLen: 24, \"a b\": 1}]}", []string{
			`pool: is unknown: the keys here are pools`,
			`pools[0].Name: is unknown: the keys here are name, network, ranges, state`,
			`pools[0].cidr: is unknown: the keys here are name, network, ranges, state`,
			`pools[0].ranges[0]."a b": is unknown: the keys here are cidr, oneNodePrefixLen`}},
		badFile{"a key behind the end", "{pools: []}\npools: [{name: a}]\n", []string{`(file): is not valid YAML: line 1: did not find expected <document start>`}},
		badFile{"a key twice", "pools:\n- name: a\n  name: b\n", []string{`name: is given twice, the second time in line 3: keep one`}},
		badFile{"types", `
pools:
- 7
- {name: 7, network: [x], ranges: {cidr: x}, state: on}
- {name: a, ranges: [x, {cidr: 7, oneNodePrefixLen: "24"}, {cidr: {}, oneNodePrefixLen: 24.5}]}
- {name: {}, state: "   "}
`, []string{
			`pools[0]: "7" must be a section with keys of its own`,
			`pools[1].name: "7" must be a text: write it in quotes`,
			`pools[1].network: must be a text, not a list`,
			`pools[1].ranges: must be a list, not a section`,
			`pools[1].state: "true" must be a text: write it in quotes`,
			`pools[2].ranges[0]: "x" must be a section with keys of its own, not text`,
			`pools[2].ranges[1].cidr: "7" must be a text: write it in quotes`,
			`pools[2].ranges[1].oneNodePrefixLen: "24" must be a whole number, not text`,
			`pools[2].ranges[2].cidr: must be a text, not a section`,
			`pools[2].ranges[2].oneNodePrefixLen: "24.5" must be a whole number`,
			`pools[3].name: must be a text, not a section`,
			`pools[3].state: is empty: write a text, or remove the key`}},
		badFile{"pools is not a list", "pools: {a: b}", []string{`pools: must be a list, not a section`}},
	)
}

func TestBadEntries(t *testing.T) {
	const nameRule = `write 1 to 63 lower case letters, digits, '-' and '.', beginning and ending with a letter or a digit, such as "pods-2"`
	expectRefused(t,
		badFile{"missing", "pools: [{}, {name: a, ranges: []}, {name: b, ranges: [{}]}, null]", []string{
			`pools[0].name: is missing: ` + nameRule,
			`pools[1].ranges: is empty: write a range, or remove the key where the pool exists`,
			`pools[2].ranges[0].cidr: is missing: write a network, such as 10.2.0.0/16`,
			`pools[2].ranges[0].oneNodePrefixLen: is missing: write the prefix length of one node's block, such as 24`,
			`pools[3]: must be a section with keys of its own`}},
		badFile{"names", "pools: [{name: -a}, {name: a_b}, {name: A}, {name: a.}, {name: " + strings.Repeat("a", 64) + "}, {name: " + strings.Repeat("b", 63) + "}, {name: a, network: ö}]", []string{
			`pools[0].name: "-a" is not a name: ` + nameRule, `pools[1].name: "a_b" is not a name: ` + nameRule, `pools[2].name: "A" is not a name: ` + nameRule,
			`pools[3].name: "a." is not a name: ` + nameRule, `pools[4].name: "` + strings.Repeat("a", 64) + `" is not a name: ` + nameRule, `pools[6].network: "ö" is not a name: ` + nameRule}},
		badFile{"a pool twice", "pools: [{name: a}, {name: b}, {name: a, state: draining}]", []string{`pools[2].name: "a" is the name of pools[0] too: keep one of them`}},
		badFile{"a state", "pools: [{name: a, state: gone}]", []string{`pools[0].state: "gone" is not a state: write one of active, draining, removed`}},
		badFile{"networks", `
pools:
- name: a
  ranges:
  - {cidr: 10.2.0.7/16, oneNodePrefixLen: 24}
  - {cidr: 10.2.0.0, oneNodePrefixLen: 24}
- name: b
  ranges:
  - {cidr: "::ffff:10.2.0.0/112", oneNodePrefixLen: 120}
  - {cidr: "::ffff:0:0/90", oneNodePrefixLen: 120}
- name: c
  ranges:
  - {cidr: 10.2.0.0/29, oneNodePrefixLen: 30}
- name: d
  ranges:
  - {cidr: 10.3.0.0/16, oneNodePrefixLen: 16}
  - {cidr: "fd00::/64", oneNodePrefixLen: 127}
  - {cidr: 10.4.0.0/16, oneNodePrefixLen: -1}
`, []string{
			`pools[0].ranges[1].cidr: "10.2.0.0" is not a network: write address/length, with the length of its prefix, such as 10.2.0.0/16`,
			`pools[0].ranges[0].cidr: "10.2.0.7/16" has host bits set: write 10.2.0.0/16`,
			`pools[1].ranges[0].cidr: "::ffff:10.2.0.0/112" is an IPv4 network written as IPv6: write 10.2.0.0/16`,
			`pools[1].ranges[1].cidr: "::ffff:0.0.0.0/90" holds IPv4 addresses written as IPv6: write an IPv4 network, such as 10.2.0.0/16`,
			`pools[1].ranges[1].cidr: "::ffff:0.0.0.0/90" is of the same family as ranges[0], ::ffff:10.2.0.0/112: a pool has one range a family, so write another pool for it`,
			`pools[2].ranges[0].cidr: "10.2.0.0/29" is too small to be shared: one node needs /29 for network, gateway, a pod, NAT loopback and the last address, so write /28 or less`,
			`pools[3].ranges[0].oneNodePrefixLen: "16" must be higher than the prefix length of 10.3.0.0/16: write 17 to 29`,
			`pools[3].ranges[1].oneNodePrefixLen: "127" leaves no room for network, gateway, a pod, NAT loopback and the last address: write 65 to 125`,
			`pools[3].ranges[2].oneNodePrefixLen: "-1" must be higher than the prefix length of 10.4.0.0/16: write 17 to 29`,
			`pools[3].ranges[2].cidr: "10.4.0.0/16" is of the same family as ranges[0], 10.3.0.0/16: a pool has one range a family, so write another pool for it`}},
		badFile{"a value that is too long to show", "pools: [{name: a, state: " + strings.Repeat("x", 100) + "}]",
			[]string{`pools[0].state: "` + strings.Repeat("x", 80) + `..." is not a state: write one of active, draining, removed`}},
	)
}

// FuzzParse: Parse returns for any input, and Make plans a file that it accepts.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"", "pools: []", "pools: [{name: a, ranges: [{cidr: 10.2.0.0/16, oneNodePrefixLen: 24}]}]",
		"pools:\n- name: default\n  state: draining\n- {name: b, network: blue, ranges: [{cidr: 'fd00::/48', oneNodePrefixLen: 64}]}\n", "a: &a [*a]", "---\n---\n", "pools: [[[{}]]]"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		wanted, err := poolplan.Parse(file)
		if err != nil {
			if wanted != nil || err.Error() == "" {
				t.Fatalf("an error without a reason: %q", err)
			}
			return
		}
		c := with(pool("default", "10.1.0.0/16 24")).node(5, "default 1 open 3").node(300)
		p := poolplan.Make(c.Situation, wanted)
		if (p.Err() == nil) != (len(p.Problems)+len(p.Blocks) == 0) || p.Err() != nil && len(p.Changes) > 0 {
			t.Fatalf("refused or not? %+v", p)
		}
	})
}
