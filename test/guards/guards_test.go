// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package guards

import "testing"

// TestSources applies all rules about Go files.
func TestSources(t *testing.T) {
	all := sources(t)
	for _, x := range []struct {
		name   string
		found  []finding
		except exceptions
	}{
		{"every file has its header", each(all, headers), nil},
		{"packages are named after something", each(all, names), nil},
		{"every package has one comment", docs(all), nil},
		{"files and functions are small", each(all, sizes), large()},
		{"no init and no package variables", each(all, globals), variables()},
		{"tables are declared", idleTables(all), nil},
		{"net.IP only at the borders", each(all, netIP), nil},
		{"the borders are borders", idleBorders(all), nil},
		{"time is injected", each(all, clock), clocks()},
		{"tests do not sleep", each(all, sleeps), nil},
		{"goroutines start in few places", each(all, goroutines), threads()},
		{"HTTP servers have limits", each(all, servers), nil},
		{"every plugin has its place", unplaced(all), nil},
		{"every plugin has its README", readmes(plugins(all), pages(t)), nil},
	} {
		t.Run(x.name, func(t *testing.T) { expectClean(t, x.found, x.except) })
	}
}

// TestPages applies all rules about files of any kind.
func TestPages(t *testing.T) {
	all := pages(t)
	t.Run("no banned texts, no huge files", func(t *testing.T) { expectClean(t, texts(all), allowedTexts()) })
	t.Run("links lead somewhere", func(t *testing.T) { expectClean(t, links(all), nil) })
	t.Run("blocks of YAML and JSON parse", func(t *testing.T) { expectClean(t, blocks(all), nil) })
}
