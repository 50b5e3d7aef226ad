// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package guards

import (
	"fmt"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
)

// sections returns the headings that the README of a plugin must have, in this order.
func sections() []string {
	return []string{"Name", "Description", "Configuration", "Events", "Examples"}
}

// readmes finds plugins without a README, or without one of its sections.
func readmes(plugins []string, all []page) []finding {
	var found []finding
	for _, name := range plugins {
		path := "plugins/" + name + "/README.md"
		i := slices.IndexFunc(all, func(p page) bool { return p.path == path })
		if i < 0 {
			found = append(found, finding{path, 0, "README", "every plugin has one"})
			continue
		}
		var have []string
		for _, h := range markdown(all[i]).headings {
			if h.level == 2 && slices.Contains(sections(), h.text) {
				have = append(have, h.text)
			}
		}
		if !slices.Equal(have, sections()) {
			found = append(found, finding{path, 0, "sections", fmt.Sprintf("it has %q, and must have %q in this order", have, sections())})
		}
	}
	return found
}

func TestBadReadmesAreFound(t *testing.T) {
	g := NewWithT(t)
	all := []page{
		{"plugins/good/README.md", []byte("# good\n\n## Name\n\n## Description\n\n## Configuration\n\n### Keys\n\n## Events\n\n## Examples\n")},
		{"plugins/short/README.md", []byte("# short\n\n## Name\n\n## Description\n\n## Events\n\n## Examples\n\n```sh\n## Configuration\n```\n")},
	}
	found := readmes([]string{"good", "short", "none"}, all)
	g.Expect(found).To(HaveLen(2))
	g.Expect(found[0].String()).To(HavePrefix("plugins/short/README.md: sections"))
	g.Expect(found[1].String()).To(HavePrefix("plugins/none/README.md: README"))
}
