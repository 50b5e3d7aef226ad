// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package guards

import (
	"fmt"
	"go/types"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// pinned is the file with the method sets of published interfaces.
const pinned = "testdata/interfaces.txt"

// TestMethodSetsOfPublishedInterfaces compares the interfaces that an importer may
// implement with the pinned ones. A method more, and the importer does not compile.
func TestMethodSetsOfPublishedInterfaces(t *testing.T) {
	g, u, a := NewWithT(t), newUniverse(t), publishedNames()
	text, err := os.ReadFile(pinned)
	g.Expect(err).NotTo(HaveOccurred())
	var paths []string
	for _, p := range publications() {
		paths = append(paths, p.path)
	}
	have, err := a.methodSets(u, paths)
	g.Expect(err).NotTo(HaveOccurred())
	found := a.beyond(have, publications())
	// Of these packages the interfaces that published ones name are pinned.
	named, err := a.methodSets(u, []string{
		module + "/api/v1alpha1", module + "/controller", module + "/plugins/contivconf", module + "/plugins/nodesync",
	})
	g.Expect(err).NotTo(HaveOccurred())
	maps.DeleteFunc(named, func(name string, _ []string) bool { return !strings.Contains("\n"+string(text), "\n"+name+"\n") })
	maps.Copy(have, named)
	expectClean(t, append(found, grown(have, string(text))...), nil)
}

// A method that is added to an interface, or taken from it, is found.
func TestAnInterfaceThatChangesIsFound(t *testing.T) {
	const text = "p.API\n\tGet(id uint32) (string, error)\n"
	for code, want := range map[string]string{
		"type API interface { Get(id uint32) (string, error) }": "",
		"type API interface { Get(id uint32) (string, error); Set() }": "p.API: Set() is not pinned: an importer that implements " +
			"the interface does not compile any more; make an optional interface of it",
		"type API interface {}": "p.API: Get(id uint32) (string, error) is pinned, and it is gone",
		"type API interface { Get(id uint32) (string, error) }; type More interface { Get() }": "p.More: the interface is not pinned: add it to " + pinned,
		"type api interface {}": "p.API: the interface is pinned, and it is gone",
	} {
		g, u := NewWithT(t), smallUniverse(t, "package p\n"+code)
		have, err := thingNames().methodSets(u, []string{"p"})
		g.Expect(err).NotTo(HaveOccurred())
		var found []string
		for _, f := range grown(have, text) {
			found = append(found, f.subject+": "+f.why)
		}
		g.Expect(strings.Join(found, "\n")).To(Equal(want), code)
	}
	g := NewWithT(t)
	sets := map[string][]string{"p.API": {"Get(id uint32) (string, error)", "Set()"}}
	beyond := thingNames().beyond(sets, []publication{thingPublished()})
	g.Expect(beyond).To(HaveLen(1))
	g.Expect(beyond[0].why).To(Equal("Set() was not published: make an optional interface of it"))
}

// grown compares method sets with the pinned text: the name of each interface on a line of
// its own, then its methods, indented.
func grown(have map[string][]string, text string) (found []finding) {
	report := func(name, format string, args ...any) {
		found = append(found, finding{pinned, 0, name, fmt.Sprintf(format, args...)})
	}
	want, name := map[string][]string{}, ""
	for line := range strings.Lines(text) {
		if line = strings.TrimRight(line, "\n"); strings.HasPrefix(line, "\t") {
			want[name] = append(want[name], line[1:])
		} else {
			name, want[line] = line, []string{}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		if want[name] == nil {
			report(name, "the interface is not pinned: add it to %s", pinned)
			continue
		}
		for _, m := range without(have[name], want[name]) {
			report(name, "%s is not pinned: an importer that implements the interface does not compile any more; make an optional interface of it", m)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if have[name] == nil {
			report(name, "the interface is pinned, and it is gone")
			continue
		}
		for _, m := range without(want[name], have[name]) {
			report(name, "%s is pinned, and it is gone", m)
		}
	}
	return found
}

// beyond finds methods of published interfaces that were not published.
func (a apis) beyond(have map[string][]string, all []publication) (found []finding) {
	for _, p := range all {
		listed := map[string]bool{}
		for _, s := range p.symbols {
			listed[s.name] = true
		}
		for name, methods := range have {
			on, face, _ := strings.Cut(name, ".")
			if a.packages[on] != p.path || !listed[face] {
				continue
			}
			for _, m := range methods {
				called, _, _ := strings.Cut(m, "(")
				if !listed[face+"."+called] && called != "Error" { // of an embedded error
					found = append(found, finding{p.page(), 0, name, m + " was not published: make an optional interface of it"})
				}
			}
		}
	}
	return found
}

func without(xs, ys []string) []string {
	return slices.DeleteFunc(slices.Clone(xs), func(x string) bool { return slices.Contains(ys, x) })
}

// methodSets returns the methods of each interface that packages export. Aliases count, too.
func (a apis) methodSets(u *universe, paths []string) (map[string][]string, error) {
	sets := map[string][]string{}
	for _, path := range paths {
		p, err := u.Import(path)
		if err != nil {
			return nil, err
		}
		for _, name := range p.Scope().Names() {
			obj, ok := p.Scope().Lookup(name).(*types.TypeName)
			if !ok || !obj.Exported() {
				continue
			}
			if face, ok := obj.Type().Underlying().(*types.Interface); ok {
				sets[a.pageName(path, p.Name())+"."+name] = methodsOf(face)
			}
		}
	}
	return sets, nil
}

func methodsOf(face *types.Interface) []string {
	all := []string{}
	for m := range face.Methods() {
		text := types.TypeString(declare(m).typ, (*types.Package).Name)
		all = append(all, m.Name()+strings.TrimPrefix(text, "func"))
	}
	slices.Sort(all)
	return all
}
