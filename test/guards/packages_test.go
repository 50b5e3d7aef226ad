// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package guards

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// header begins every Go file.
const header = "// SPDX-FileCopyrightText: The Cadastre Authors\n// SPDX-License-Identifier: Apache-2.0\n\n"

// headers finds files without the header.
func headers(s source) []finding {
	if s.generated() || strings.HasPrefix(string(s.text), header) {
		return nil
	}
	return []finding{{s.path, 1, "header", "the file must begin with the two SPDX lines and an empty one"}}
}

// names finds packages that are named after nothing.
func names(s source) []finding {
	switch name := strings.TrimSuffix(s.file.Name.Name, "_test"); name {
	case "util", "utils", "common", "helper", "helpers", "types", "models", "misc", "shared", "lib":
		return []finding{{s.path, s.line(s.file.Name), name, "a package is named after what it is about"}}
	}
	return nil
}

// docs finds packages that have no package comment, several, or one that says
// something else. A folder of tests only has its comment in one of them.
func docs(all []source) []finding {
	byPackage := map[string][]source{}
	for _, s := range all {
		name := strings.TrimSuffix(s.file.Name.Name, "_test")
		byPackage[s.dir()+" "+name] = append(byPackage[s.dir()+" "+name], s)
	}
	var found []finding
	for _, key := range slices.Sorted(maps.Keys(byPackage)) {
		dir, name, _ := strings.Cut(key, " ")
		begin := "Package " + name + " "
		if name == "main" {
			begin = "Command "
		}
		var in []string
		for _, s := range byPackage[key] {
			if s.file.Doc == nil {
				continue
			}
			in = append(in, s.path)
			if text := s.file.Doc.Text(); !strings.HasPrefix(text, begin) {
				found = append(found, finding{s.path, s.line(s.file.Doc), "package comment", fmt.Sprintf("it must begin with %q and say what the package is for", begin)})
			}
		}
		if len(in) != 1 {
			found = append(found, finding{dir, 0, "package comment", fmt.Sprintf("there must be exactly one, there are %d %v", len(in), in)})
		}
	}
	return found
}

func TestBadPackagesAreFound(t *testing.T) {
	g := NewWithT(t)
	for _, text := range []string{
		"package p", "\n" + header + "package p", "// Package p is p.\n\n" + header + "package p",
		strings.Replace(header, "Apache-2.0", "MIT", 1) + "package p", strings.TrimSuffix(header, "\n") + "package p",
	} {
		g.Expect(subjects(t, headers, "p/p.go", text)).To(Equal([]string{"header"}), text)
	}
	g.Expect(subjects(t, headers, "p/p.go", header+"package p")).To(BeEmpty())
	g.Expect(subjects(t, names, "ledger/util/x.go", "package util")).To(Equal([]string{"util"}))
	g.Expect(subjects(t, names, "ledger/util/x_test.go", "package util_test")).To(Equal([]string{"util"}))
	g.Expect(subjects(t, names, "ledger/x.go", "package ledger")).To(BeEmpty())
}

func TestBadPackageCommentsAreFound(t *testing.T) {
	g := NewWithT(t)
	good := "// Package p is p.\npackage p"
	for what, texts := range map[string][]string{
		"none":        {"package p", "package p"},
		"two":         {good, good},
		"the licence": {strings.TrimSuffix(header, "\n") + "package p"},
		"other name":  {"// Package q is q.\npackage p"},
		"main":        {"// Package main is a program.\npackage main"},
	} {
		var all []source
		for i, text := range texts {
			all = append(all, parse(t, fmt.Sprintf("p/%d.go", i), text))
		}
		g.Expect(docs(all)).To(HaveLen(1), what)
	}
	g.Expect(docs([]source{
		parse(t, "p/a.go", good), parse(t, "p/b.go", "package p"), parse(t, "p/a_test.go", "package p_test"),
		parse(t, "p/cmd/main.go", "// Command p does p.\npackage main"), parse(t, "q/q_test.go", "// Package q tests q.\npackage q"),
	})).To(BeEmpty())
}
