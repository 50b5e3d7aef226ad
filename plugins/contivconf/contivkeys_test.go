// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/onsi/gomega"
)

// valueFor returns a value of a key that is not its default.
func valueFor(path string) string {
	switch {
	case strings.HasSuffix(path, "vppHostSubnetCIDR"):
		return "172.20.0.0/16"
	case strings.HasSuffix(path, "nodeInterconnectCIDR"):
		return "192.168.17.0/24"
	case strings.HasSuffix(path, "CIDR"):
		return "10.2.2.0/24"
	}
	for _, k := range knownKeys() {
		if k.Path != path {
			continue
		}
		switch {
		case k.Section:
			return "[{interfaceName: eth9, ip: 10.9.9.9/24}]"
		case k.Type.Kind() == reflect.Bool:
			return "true"
		case k.Type.Kind() == reflect.Uint8:
			return "26"
		}
		return "eth9"
	}
	return "?"
}

// inSection returns a file with one key.
func inSection(section, key, value string) string {
	switch {
	case section == "nodeConfig[]":
		return fmt.Sprintf("nodeConfig: [{nodeName: a, %s: %s}]", key, value)
	case section != "":
		return fmt.Sprintf("%s: {%s: %s}", section, key, value)
	}
	return fmt.Sprintf("%s: %s", key, value)
}

// A file gives the same configuration by the former name of a key as by its name now, in
// any case of letters. It cannot have both.
func TestFormerNamesMeanTheSame(t *testing.T) {
	for _, f := range formerKeys() {
		t.Run(f.section+"."+f.name, func(t *testing.T) {
			g := gomega.NewWithT(t)
			path := strings.TrimPrefix(f.section+"."+f.now, ".")
			value := valueFor(path)
			now := value
			names := strings.Split(f.now, ".")
			for _, name := range slices.Backward(names[1:]) {
				now = fmt.Sprintf("{%s: %s}", name, now)
			}
			want, wantUnused, err := Parse([]byte(inSection(f.section, names[0], now)))
			g.Expect(err).NotTo(gomega.HaveOccurred())
			g.Expect(want).NotTo(gomega.Equal(Default()), "the value says nothing")
			for _, name := range []string{f.name, strings.ToUpper(f.name), strings.ToLower(f.name)} {
				got, unused, err := Parse([]byte(inSection(f.section, name, value)))
				g.Expect(err).NotTo(gomega.HaveOccurred())
				g.Expect(unused).To(gomega.Equal(wantUnused))
				shown := strings.ReplaceAll(f.section, "[]", "[0]") + "."
				g.Expect(got.Notes).To(gomega.ContainElement(Note{
					Keys: []string{strings.TrimPrefix(shown+name, ".")},
					Text: "is read as " + strings.TrimPrefix(shown+f.now, "."),
				}))
				got.Notes, want.Notes = nil, nil
				g.Expect(got).To(gomega.Equal(want))
			}
			twice := value + ", " + names[0] + ": " + now
			if f.section == "" {
				twice = value + "\n" + names[0] + ": " + now
			}
			_, _, err = Parse([]byte(inSection(f.section, f.name, twice)))
			g.Expect(err).To(gomega.MatchError(gomega.ContainSubstring("is given twice, as ")))
		})
	}
}

// Each accepted key that changes nothing has a note, and each note names a key.
func TestUnusedKeysHaveANote(t *testing.T) {
	g := gomega.NewWithT(t)
	paths := map[string]bool{}
	for _, k := range knownKeys() {
		paths[k.Path] = true
		if k.Unused {
			g.Expect(unusedNote(k.Path)).NotTo(gomega.BeEmpty(), k.Path)
		} else {
			g.Expect(unusedNote(k.Path)).To(gomega.BeEmpty(), k.Path)
		}
	}
	for _, n := range unusedNotes() {
		for _, key := range n.Keys {
			g.Expect(paths).To(gomega.HaveKey(key))
		}
	}
	// Each key that dataplane vpp uses, or explains in its own way, is one that linux does not use.
	for _, n := range vppNotes() {
		for _, key := range n.Keys {
			g.Expect(paths).To(gomega.HaveKey(key))
			g.Expect(unusedNote(key)).NotTo(gomega.BeEmpty(), key)
			g.Expect(noteOf(vppKeys(), key)).To(gomega.BeEmpty(), key)
		}
	}
	for _, n := range vppKeys() {
		for _, key := range n.Keys {
			g.Expect(paths).To(gomega.HaveKey(key))
			g.Expect(unusedNote(key)).NotTo(gomega.BeEmpty(), key)
		}
	}
	for _, k := range planeKeys() {
		g.Expect(paths).To(gomega.HaveKey(k.key))
		for _, own := range k.owns {
			g.Expect(paths).To(gomega.HaveKey(own))
		}
	}
	for _, f := range formerKeys() {
		g.Expect(paths).To(gomega.HaveKey(strings.TrimPrefix(f.section+"."+f.now, ".")))
		g.Expect(paths).NotTo(gomega.HaveKey(strings.TrimPrefix(f.section+"."+f.name, ".")))
	}
}

// docs/contiv-vpp.md has the tables of the code.
func TestDocumentedKeys(t *testing.T) {
	g := gomega.NewWithT(t)
	data, err := os.ReadFile("../../docs/contiv-vpp.md")
	g.Expect(err).NotTo(gomega.HaveOccurred())
	var rows []string
	for _, f := range formerKeys() {
		prefix := strings.TrimPrefix(f.section+".", ".")
		rows = append(rows, fmt.Sprintf("| `%s%s` | `%s%s` |", prefix, f.name, prefix, f.now))
	}
	for _, n := range unusedNotes() {
		rows = append(rows, fmt.Sprintf("| `%s` | %s |", strings.Join(n.Keys, "`, `"), n.Text))
	}
	for _, n := range append(vppKeys(), vppNotes()...) {
		rows = append(rows, fmt.Sprintf("| `%s` | %s |", strings.Join(n.Keys, "`, `"), n.Text))
	}
	for _, row := range rows {
		g.Expect(string(data)).To(gomega.ContainSubstring(row + "\n"))
	}
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, "| `") && strings.Count(line, "|") == 3 {
			g.Expect(rows).To(gomega.ContainElement(strings.TrimSpace(line)), "no such key any more")
		}
	}
}

// A key with dashes is refused if it is not one of Contiv-VPP's.
func TestDashesAreOnlyForContivKeys(t *testing.T) {
	for conf, want := range map[string]string{
		"cadastre: {cool-down: 5s}":                                 "cadastre.cool-down: unknown key",
		"cadastre: {kvdb: {password-file: a}}":                      "cadastre.kvdb.password-file: unknown key",
		"mtu-sice: 1450":                                            "mtu-sice: unknown key; the nearest known one is \"mtuSize\"",
		"{mtu-size: 1450, mtuSize: 1450}":                           `mtuSize: is given twice, as "mtuSize" and as "mtu-size": keep one`,
		"{mtu-size: 1450, m-tu-size: 1450}":                         `mtuSize: is given twice, as "m-tu-size" and as "mtu-size": keep one`,
		"ipamConfig: {srv6: 1, srv6ServicePolicyBSIDSubnetCIDR: a}": "ipamConfig.srv6: \"1\" must be a section",
	} {
		_, _, err := Parse([]byte(conf))
		gomega.NewWithT(t).Expect(err).To(gomega.MatchError(gomega.ContainSubstring(want)), conf)
	}
}

// A former name without a value counts as absent, as every key does.
func TestFormerNamesWithoutAValue(t *testing.T) {
	g := gomega.NewWithT(t)
	cfg, _, err := Parse([]byte("ipamConfig: {PodNetworkPrefixLen: , podSubnetOneNodePrefixLen: 26}"))
	g.Expect(err).NotTo(gomega.HaveOccurred())
	g.Expect(cfg.IPAM.Cluster.Families[0].PodsOneNode).To(gomega.Equal(26))
	g.Expect(cfg.Notes).To(gomega.BeEmpty())
}

// A problem with a value names the key as the file has it.
func TestProblemsNameTheFormerName(t *testing.T) {
	g := gomega.NewWithT(t)
	for conf, want := range map[string]string{
		"IPAMConfig: {PodNetworkPrefixLen: 32}":                                                   `ipamConfig.podSubnetOneNodePrefixLen: "32" leaves no room`,
		"IPAMConfig: {HostNodeSubnetCidr: 192.168.16.1/24}":                                       "ipamConfig.nodeInterconnectCIDR: \"192.168.16.1/24\" has host bits set",
		"nodeConfig: [{otherInterfaces: [{ip: 1}]}, {mainVppInterface: {}, useDhcpOnMainInt: 7}]": "nodeConfig[1].mainVPPInterface.useDHCP: \"7\" must be true or false",
	} {
		_, _, err := Parse([]byte(conf))
		g.Expect(err).To(gomega.MatchError(gomega.ContainSubstring(want)), conf)
		_, former, _ := strings.Cut(err.Error(), "(the file has it as ")
		former, _, _ = strings.Cut(former, ")")
		_, name := splitPath(former)
		g.Expect(name).NotTo(gomega.BeEmpty(), err.Error())
		g.Expect(conf).To(gomega.ContainSubstring(name + ":"))
	}
}
