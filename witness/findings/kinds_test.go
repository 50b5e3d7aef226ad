// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package findings_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/witness/findings"
)

// row returns the row of a kind in docs/findings.md.
func row(k findings.Kind) string {
	repair := "by hand"
	if k.Repair != "" {
		repair = "`" + k.Repair + "`"
	}
	return fmt.Sprintf("| %s | `%s` | %s | %s | %s | %s |", k.Number, k.Name, k.Meaning, k.Witness, repair, k.Fix)
}

func TestTheTableInTheDocumentationIsThatOfTheCode(t *testing.T) {
	g := NewWithT(t)
	page, err := os.ReadFile("../../docs/findings.md")
	g.Expect(err).NotTo(HaveOccurred())
	var want, have []string
	for _, k := range findings.Kinds() {
		want = append(want, row(k))
	}
	for line := range strings.Lines(string(page)) {
		if strings.HasPrefix(line, "| C") {
			have = append(have, strings.TrimSpace(line))
		}
	}
	g.Expect(have).To(Equal(want), "write:\n%s", strings.Join(want, "\n"))
}

func TestNumbersAndNamesAreUnique(t *testing.T) {
	g := NewWithT(t)
	var numbers, names []string
	for _, k := range findings.Kinds() {
		g.Expect(k.Number).To(MatchRegexp(`^C[1-4]\d\d$`))
		g.Expect(k.Name).To(MatchRegexp(`^[a-z]+(-[a-z]+)*$`))
		numbers, names = append(numbers, k.Number), append(names, k.Name)
	}
	g.Expect(slices.IsSorted(numbers)).To(BeTrue())
	g.Expect(slices.Compact(slices.Clone(numbers))).To(Equal(numbers))
	slices.Sort(names)
	g.Expect(slices.Compact(slices.Clone(names))).To(Equal(names))
}

// Each kind has a healthy node that resembles it, and a change that shows it.
func TestEachKindIsShownByADifference(t *testing.T) {
	g := NewWithT(t)
	shown := map[string]bool{}
	for _, d := range slices.Concat(differences(), networkDifferences()) {
		for _, text := range d.want {
			shown[regexp.MustCompile(`^C\d+`).FindString(text)] = true
		}
	}
	for _, k := range findings.Kinds() {
		g.Expect(shown).To(HaveKey(k.Number))
	}
}
