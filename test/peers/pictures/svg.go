// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"html"
	"strings"
)

// style holds the colours: those of a light page, and of a dark one for a reader who
// prefers it. Fills are pale, so that text is readable on all of them.
const style = `<style>
svg{--bg:#ffffff;--text:#1f2328;--muted:#59636e;--line:#818b98;--grid:#d8dee4;
--plain:#f6f8fa;--blue:#cfe4ff;--green:#c8f0d2;--yellow:#fbe9a6;--red:#ffd3ce;--violet:#e6d9fb;
--s1:#0969da;--s2:#bc4c00;--s3:#1a7f37;--s4:#8250df}
@media (prefers-color-scheme:dark){svg{--bg:#0d1117;--text:#f0f6fc;--muted:#9198a1;--line:#7d8590;--grid:#30363d;
--plain:#212830;--blue:#123d73;--green:#14532d;--yellow:#5b4300;--red:#6e1d18;--violet:#40286b;
--s1:#58a6ff;--s2:#f0883e;--s3:#3fb950;--s4:#bc8cff}}
text{font:13px sans-serif;fill:var(--text)}.b{font-weight:bold}.h{font-size:16px;font-weight:bold}.m{fill:var(--muted)}.s{font-size:12px}
.box{stroke:var(--line)}.wire{fill:none;stroke:var(--line);stroke-width:1.5}.dash{stroke-dasharray:5 4}.grid{stroke:var(--grid)}
</style>
<defs><marker id="tip" markerWidth="9" markerHeight="9" refX="8" refY="4" orient="auto">
<path d="M0,0 L9,4 L0,8 z" style="fill:var(--line)"/></marker></defs>
`

// shape is a part of a drawing.
type shape interface{ svg() string }

// drawing is a picture with a title and a description for readers who do not see it.
type drawing struct {
	title, description string
	width, height      int
	shapes             []shape
}

// svg returns the file of the drawing.
func (d drawing) svg() string {
	var w strings.Builder
	fmt.Fprintf(
		&w,
		"<!-- SPDX-FileCopyrightText: The Cadastre Authors; SPDX-License-Identifier: Apache-2.0 -->\n"+
			"<!-- written by test/peers/pictures (make generate): do not edit -->\n"+
			`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-labelledby="t d">`+"\n"+
			"<title id=\"t\">%s</title>\n<desc id=\"d\">%s</desc>\n%s"+`<rect width="%d" height="%d" rx="6" style="fill:var(--bg)"/>`+"\n",
		d.width,
		d.height,
		d.width,
		d.height,
		html.EscapeString(d.title),
		html.EscapeString(d.description),
		style,
		d.width,
		d.height,
	)
	for _, s := range d.shapes {
		w.WriteString(s.svg())
	}
	return w.String() + "</svg>\n"
}

// box is a rectangle with lines of text in its middle; the first one is bold. The fill is
// the name of a colour of style.
type box struct {
	x, y, w, h int
	fill       string
	lines      []string
}

func (b box) svg() string {
	var w strings.Builder
	fmt.Fprintf(
		&w,
		`<rect class="box" x="%d" y="%d" width="%d" height="%d" rx="5" style="fill:var(--%s)"/>`+"\n",
		b.x,
		b.y,
		b.w,
		b.h,
		b.fill,
	)
	top := b.y + b.h/2 - (len(b.lines)-1)*8 + 4
	for i, line := range b.lines {
		class := "s"
		if i == 0 {
			class = "b"
		}
		w.WriteString(text{b.x + b.w/2, top + i*16, "middle", class, line}.svg())
	}
	return w.String()
}

// frame is a rectangle around other shapes, with a name in its upper left corner.
type frame struct {
	x, y, w, h int
	name       string
}

func (f frame) svg() string {
	return fmt.Sprintf(
		`<rect class="wire dash" x="%d" y="%d" width="%d" height="%d" rx="8"/>`+"\n",
		f.x,
		f.y,
		f.w,
		f.h,
	) +
		text{
			f.x + 10,
			f.y + 18,
			"start",
			"m b",
			f.name,
		}.svg()
}

// text is one line of text; anchor is start, middle or end.
type text struct {
	x, y          int
	anchor, class string
	line          string
}

func (t text) svg() string {
	return fmt.Sprintf(
		`<text x="%d" y="%d" text-anchor="%s" class="%s">%s</text>`+"\n",
		t.x,
		t.y,
		t.anchor,
		t.class,
		html.EscapeString(t.line),
	)
}

// arrow is a line through points, x and y in turns, with a head at its end and a label
// whose middle is at a point. It is dashed if what it shows happens later or not always.
type arrow struct {
	points []int
	dashed bool
	label  string
	at     [2]int
}

func (a arrow) svg() string {
	var points []string
	for i := 0; i+1 < len(a.points); i += 2 {
		points = append(points, fmt.Sprintf("%d,%d", a.points[i], a.points[i+1]))
	}
	class := "wire"
	if a.dashed {
		class += " dash"
	}
	out := fmt.Sprintf(
		`<polyline class="%s" points="%s" marker-end="url(#tip)"/>`+"\n",
		class,
		strings.Join(points, " "),
	)
	if a.label != "" {
		out += text{a.at[0], a.at[1], "middle", "s m", a.label}.svg()
	}
	return out
}

// curve is a line of a series through points, x and y in turns.
type curve struct {
	points []int
	series int
}

func (c curve) svg() string {
	var points []string
	for i := 0; i+1 < len(c.points); i += 2 {
		points = append(points, fmt.Sprintf("%d,%d", c.points[i], c.points[i+1]))
	}
	return fmt.Sprintf(
		`<polyline points="%s" style="fill:none;stroke:var(--s%d);stroke-width:2.5"/>`+"\n",
		strings.Join(points, " "),
		c.series,
	)
}

// lines returns lines of text under each other, from a point down.
func lines(x, y int, anchor, class string, all ...string) []shape {
	var shapes []shape
	for i, line := range all {
		shapes = append(shapes, text{x, y + 17*i, anchor, class, line})
	}
	return shapes
}
