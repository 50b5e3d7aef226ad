// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import (
	"os"
	"strings"
	"testing"

	"github.com/onsi/gomega"
)

// uncommented is reference.conf with its "#key" lines made keys.
func uncommented(data []byte) []byte {
	var b strings.Builder
	for line := range strings.Lines(string(data)) {
		if indent, rest, ok := strings.Cut(line, "#"); ok && strings.TrimSpace(indent) == "" && rest != "" && rest[0] != ' ' && rest[0] != '\n' {
			line = indent + rest
		}
		b.WriteString(line)
	}
	return []byte(b.String())
}

func TestReferenceIsTheDefault(t *testing.T) {
	g := gomega.NewWithT(t)
	for _, path := range []string{"../../conf/reference.conf", "../../conf/contiv.conf"} {
		cfg, unused, err := Load(path)
		g.Expect(err).NotTo(gomega.HaveOccurred())
		g.Expect(cfg).To(gomega.Equal(Default()), path)
		g.Expect(unused).To(gomega.BeEmpty(), path)
	}
}

func TestReferenceHasEveryKey(t *testing.T) {
	g := gomega.NewWithT(t)
	data, err := os.ReadFile("../../conf/reference.conf")
	g.Expect(err).NotTo(gomega.HaveOccurred())
	r := read(uncommented(data))
	g.Expect(r.Problems).To(gomega.BeEmpty())
	for _, k := range knownKeys() {
		if !k.Section {
			g.Expect(r.Given).To(gomega.HaveKey(k.Path))
			g.Expect(r.Unused[k.Path]).To(gomega.Equal(k.Unused), k.Path)
		}
	}

	// The values in the file are the defaults of the code.
	r = read(data)
	want := defaultRaw()
	want.IPAM.PodSubnetOneNodePrefixLenIPv6, want.IPAM.VPPHostSubnetOneNodePrefixLenIPv6 = 0, 0 // commented out
	want.Cadastre.Masquerade = false                                                            // likewise
	g.Expect(r.raw).To(gomega.Equal(want))
}

func TestReferenceCommentsEveryKey(t *testing.T) {
	g := gomega.NewWithT(t)
	data, err := os.ReadFile("../../conf/reference.conf")
	g.Expect(err).NotTo(gomega.HaveOccurred())
	above := ""
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		isKey := line != "" && line != "#" && !strings.HasPrefix(line, "# ")
		g.Expect(isKey && !strings.HasPrefix(above, "# ")).To(gomega.BeFalse(), "no comment above %s", line)
		above = line
	}
}

func TestReadme(t *testing.T) {
	g := gomega.NewWithT(t)
	data, err := os.ReadFile("README.md")
	g.Expect(err).NotTo(gomega.HaveOccurred())
	readme := string(data)
	for _, section := range []string{"## Name", "## Description", "## Configuration", "## Events", "## Examples"} {
		g.Expect(readme).To(gomega.ContainSubstring(section + "\n"))
	}
	blocks := strings.Split(readme, "```yaml\n")[1:]
	g.Expect(blocks).NotTo(gomega.BeEmpty())
	for _, block := range blocks {
		example, _, _ := strings.Cut(block, "```")
		_, _, err := Parse([]byte(example))
		g.Expect(err).NotTo(gomega.HaveOccurred(), example)
	}
}
