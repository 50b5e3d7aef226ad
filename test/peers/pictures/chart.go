// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// chart is a chart of horizontal bars: one group for each name of groups, and in it one
// bar for each series.
type chart struct {
	title  string
	unit   string
	source string // the table, for a reader
	log    bool   // each step of the axis is ten times the last one
	groups []string
	series []series
}

// series holds one number for each group.
type series struct {
	name  string
	cells []cell
}

// Measures of a chart in pixels.
const (
	chartWidth = 760
	left       = 190 // where bars begin
	plotWidth  = 480
	barHeight  = 16
	groupGap   = 14
	head       = 76
)

// draw reads the numbers of the chart and makes the drawing.
func (c chart) draw(r *results) (drawing, error) {
	values := make([][]float64, len(c.series))
	low, high := math.Inf(1), 0.0
	for i, s := range c.series {
		if len(s.cells) != len(c.groups) {
			return drawing{}, fmt.Errorf(
				"draw %q: series %q has %d cells, want %d",
				c.title,
				s.name,
				len(s.cells),
				len(c.groups),
			)
		}
		for _, at := range s.cells {
			v, err := r.number(at)
			if err != nil {
				return drawing{}, fmt.Errorf("draw %q: %w", c.title, err)
			}
			if v <= 0 {
				return drawing{}, fmt.Errorf("draw %q: %v is %v, want more than 0", c.title, at, v)
			}
			values[i] = append(values[i], v)
			low, high = min(low, v), max(high, v)
		}
	}
	x := c.axis(low, high)
	group := len(c.series)*barHeight + groupGap
	bottom := head + len(c.groups)*group
	d := drawing{
		title:       c.title,
		description: c.describe(values),
		width:       chartWidth,
		height:      bottom + 52,
	}
	d.shapes = append(d.shapes, text{16, 26, "start", "h", c.title})
	d.shapes = append(d.shapes, c.legend()...)
	d.shapes = append(d.shapes, x.lines(bottom)...)
	for g, name := range c.groups {
		y := head + g*group
		d.shapes = append(d.shapes, text{left - 10, y + (group-groupGap)/2 + 5, "end", "", name})
		for i := range c.series {
			d.shapes = append(d.shapes, bar{y + i*barHeight, x.at(values[i][g]) - left, i + 1, number(values[i][g])})
		}
	}
	under := c.unit
	if c.log {
		under += "; the axis is logarithmic"
	}
	d.shapes = append(d.shapes,
		text{left, bottom + 34, "start", "s m", under},
		text{chartWidth - 16, bottom + 34, "end", "s m", c.source})
	return d, nil
}

// describe returns all numbers in words.
func (c chart) describe(values [][]float64) string {
	var parts []string
	for g, name := range c.groups {
		for i, s := range c.series {
			parts = append(parts, fmt.Sprintf("%s, %s: %s", name, s.name, number(values[i][g])))
		}
	}
	return c.unit + ". " + strings.Join(parts, "; ") + "."
}

func (c chart) legend() []shape {
	var shapes []shape
	x := 16
	for i, s := range c.series {
		shapes = append(shapes, swatch{x, 44, i + 1}, text{x + 18, 55, "start", "", s.name})
		x += 34 + 7*len(s.name)
	}
	return shapes
}

// axis maps numbers to places on the paper.
type axis struct {
	low, high float64
	log       bool
	ticks     []float64
}

func (c chart) axis(low, high float64) axis {
	if c.log {
		a := axis{
			low:  math.Pow(10, math.Floor(math.Log10(low))),
			high: math.Pow(10, math.Ceil(math.Log10(high))),
			log:  true,
		}
		if a.low > low/1.5 { // the smallest bar is still seen
			a.low /= 10
		}
		for t := a.low; t <= a.high*1.01; t *= 10 {
			a.ticks = append(a.ticks, t)
		}
		return a
	}
	step := math.Pow(10, math.Floor(math.Log10(high)))
	for high/step < 3 {
		step /= 2
	}
	a := axis{}
	for t := 0.0; a.high < high; t += step {
		a.ticks, a.high = append(a.ticks, t), t
	}
	return a
}

// at returns the place of a number.
func (a axis) at(v float64) int {
	part := (v - a.low) / (a.high - a.low)
	if a.log {
		part = math.Log(v/a.low) / math.Log(a.high/a.low)
	}
	return left + int(math.Round(part*plotWidth))
}

// lines draws the ticks, from the head of the paper to the bottom.
func (a axis) lines(bottom int) []shape {
	var shapes []shape
	for _, t := range a.ticks {
		x := a.at(t)
		shapes = append(shapes, tick{x, bottom}, text{x, bottom + 16, "middle", "s m", number(t)})
	}
	return shapes
}

type tick struct{ x, bottom int }

func (t tick) svg() string {
	return fmt.Sprintf(`<line class="grid" x1="%d" y1="%d" x2="%d" y2="%d"/>`+"\n", t.x, head-6, t.x, t.bottom)
}

type swatch struct{ x, y, series int }

func (s swatch) svg() string {
	return fmt.Sprintf(`<rect x="%d" y="%d" width="12" height="12" style="fill:var(--s%d)"/>`+"\n", s.x, s.y, s.series)
}

// bar is one bar with its number behind it.
type bar struct {
	y, width, series int
	label            string
}

func (b bar) svg() string {
	return fmt.Sprintf(
		`<rect x="%d" y="%d" width="%d" height="%d" style="fill:var(--s%d)"/>`+"\n",
		left,
		b.y+1,
		b.width,
		barHeight-2,
		b.series,
	) +
		text{
			left + b.width + 5,
			b.y + barHeight - 4,
			"start",
			"s",
			b.label,
		}.svg()
}

// number returns a number as people write it: with three digits, and groups of thousands.
func number(v float64) string {
	if v < 1000 {
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
	digits := strconv.FormatFloat(v, 'f', 0, 64)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + " " + digits[i:]
	}
	return digits
}
