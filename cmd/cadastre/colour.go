// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
)

// paint is a part of a text that is coloured for people, and its colour.
type paint struct {
	what   *regexp.Regexp // its first group is coloured
	colour string         // parameters of the control sequence
}

// Colours of a terminal.
const (
	red    = "31"
	green  = "32"
	yellow = "33"
	bold   = "1;31"
)

// paints returns what is coloured: the lines of status that need a person, the numbers of
// findings, and the states of leases that no pod holds.
func paints() []paint {
	return []paint{
		{regexp.MustCompile(`(?m)^(?:live|ready) +(yes)$`), green},
		{regexp.MustCompile(`(?m)^(?:live|ready) +(no)(?:$|: )`), red},
		{regexp.MustCompile(`(?m)^(suspended|problem|full|database) {2,}`), red},
		{regexp.MustCompile(`(?m)^(findings|waiting) {2,}`), yellow},
		{regexp.MustCompile(`(?m)^cluster +(not connected)`), yellow},
		{regexp.MustCompile(`(?m)^([CK][1-9][0-9]{2} [a-z0-9-]+):`), bold},
		{regexp.MustCompile(`(?m)^(clean): `), green},
		{regexp.MustCompile(`(?m)^[0-9a-f.:]+ +(quarantined) `), red},
		{regexp.MustCompile(`(?m)^[0-9a-f.:]+ +(cooling|pending) `), yellow},
	}
}

// coloured colours a text if it goes to a terminal that shows colours. NO_COLOR, set to
// anything, turns that off (no-color.org).
func (a *app) coloured(text string) string {
	if !terminalOf(a.stdout).is || a.getenv("NO_COLOR") != "" || a.getenv("TERM") == "dumb" {
		return text
	}
	for _, p := range paints() {
		text = p.what.ReplaceAllStringFunc(text, func(found string) string {
			at := p.what.FindStringSubmatchIndex(found)
			return found[:at[2]] + "\x1b[" + p.colour + "m" + found[at[2]:at[3]] + "\x1b[0m" + found[at[3]:]
		})
	}
	return text
}
