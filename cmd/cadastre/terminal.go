// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// terminal describes the terminal that an output goes to.
type terminal struct {
	is            bool // the output goes to a terminal
	width, height int
}

// Size of a terminal that does not tell its own.
const (
	defaultWidth  = 80
	defaultHeight = 24
)

// terminalOf returns the terminal of an output, which may be none.
func terminalOf(out io.Writer) terminal {
	t := terminal{width: defaultWidth, height: defaultHeight}
	f, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return t
	}
	t.is = true
	if width, height, err := term.GetSize(int(f.Fd())); err == nil && width > 0 && height > 0 {
		t.width, t.height = width, height
	}
	return t
}

// utf8Locale reports whether the locale shows characters outside of ASCII.
func (a *app) utf8Locale() bool {
	locale := strings.ToLower(cmp.Or(a.getenv("LC_ALL"), a.getenv("LC_CTYPE"), a.getenv("LANG")))
	return strings.Contains(locale, "utf-8") || strings.Contains(locale, "utf8")
}
