// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource_test

import (
	"fmt"
	"strings"
)

// line is one of a panel.
type line struct {
	name, colour string
	dashed       bool
	values       []int
}

// plot draws two panels, one above the other: calls, and addresses.
func plot(title string, now, old figures) string {
	of := func(f figures, value func(sample) int) (all []int) {
		for _, s := range f.samples {
			all = append(all, value(s))
		}
		return all
	}
	calls := func(s sample) int { return s.calls }
	attached := func(s sample) int { return s.attached }
	var b strings.Builder
	b.WriteString("<!-- SPDX-FileCopyrightText: The Cadastre Authors; SPDX-License-Identifier: Apache-2.0 -->\n")
	b.WriteString(`<svg xmlns="http://www.w3.org/2000/svg" width="760" height="560" font-family="sans-serif" font-size="12">` + "\n")
	b.WriteString(`<rect width="760" height="560" fill="white"/>` + "\n")
	fmt.Fprintf(&b, `<text x="60" y="24" font-size="14">%s</text>`+"\n", title)
	panel(&b, 50, "calls to the provider that change something, a minute", []line{
		{"the old formula", "#c0392b", true, of(old, calls)}, {"this one", "#2471a3", false, of(now, calls)},
	})
	panel(&b, 310, "addresses of all nodes", []line{
		{"the old formula", "#c0392b", true, of(old, attached)}, {"this one", "#2471a3", false, of(now, attached)},
		{"pods", "#566573", false, of(now, func(s sample) int { return s.used })},
	})
	b.WriteString("</svg>\n")
	return b.String()
}

// panel draws lines over minutes.
func panel(b *strings.Builder, top int, title string, lines []line) {
	const left, width, height = 60, 560, 190
	most := 1
	for _, l := range lines {
		for _, v := range l.values {
			most = max(most, v)
		}
	}
	fmt.Fprintf(b, `<text x="%d" y="%d">%s</text>`+"\n", left, top, title)
	for i := range 5 {
		y := top + 10 + height - i*height/4
		fmt.Fprintf(b, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="#e5e8e8"/>`, left, y, left+width, y)
		fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="end">%d</text>`+"\n", left-6, y+4, most*i/4)
	}
	for i, l := range lines {
		var points []string
		for m, v := range l.values {
			points = append(points, fmt.Sprintf("%d,%d", left+m*width/max(len(l.values)-1, 1), top+10+height-v*height/most))
		}
		dash := ""
		if l.dashed {
			dash = ` stroke-dasharray="5 3"`
		}
		fmt.Fprintf(b, `<polyline fill="none" stroke="%s" stroke-width="2"%s points="%s"/>`+"\n", l.colour, dash, strings.Join(points, " "))
		fmt.Fprintf(b, `<text x="%d" y="%d" fill="%s">%s</text>`+"\n", left+width+10, top+30+i*18, l.colour, l.name)
	}
	for m := 0; m <= simulatedMinutes; m += 10 {
		fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="middle">%d min</text>`+"\n", left+m*width/simulatedMinutes, top+height+26, m)
	}
}
