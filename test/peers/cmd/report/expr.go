// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import "math"

// expr is a number that follows from results, or false where one that it needs
// is missing.
type expr func(*results) (float64, bool)

// at is one metric; ns/op where no unit is given.
func at(pkg, bench string, unit ...string) expr {
	p := place{pkg, bench, "ns/op"}
	if len(unit) > 0 {
		p.unit = unit[0]
	}
	return func(r *results) (float64, bool) { return r.at(p) }
}

// both combines two numbers. Their ranges are not of the same runs, so the
// combination has none.
func both(x, y expr, f func(x, y float64) float64) expr {
	return func(r *results) (float64, bool) {
		a, ok := x(r)
		b, ok2 := y(r)
		if !ok || !ok2 {
			return 0, false
		}
		return f(a, b), true
	}
}

func ratio(x, y expr) expr { return both(x, y, func(x, y float64) float64 { return x / y }) }
func minus(x, y expr) expr { return both(x, y, func(x, y float64) float64 { return x - y }) }
func sum(x, y expr) expr   { return both(x, y, func(x, y float64) float64 { return x + y }) }
func mean(x, y expr) expr  { return both(x, y, func(x, y float64) float64 { return (x + y) / 2 }) }

// half is x of one where two were measured.
func half(x expr) expr { return mean(x, constant(0)) }

// most and least are of what is there; all must be.
func most(x expr, others ...expr) expr  { return fold(math.Max, x, others) }
func least(x expr, others ...expr) expr { return fold(math.Min, x, others) }

func fold(f func(x, y float64) float64, x expr, others []expr) expr {
	for _, y := range others {
		x = both(x, y, f)
	}
	return x
}

// constant is a limit that is not measured.
func constant(v float64) expr {
	return func(*results) (float64, bool) { return v, true }
}
