// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package watermark_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/watermark"
)

func TestNeeded(t *testing.T) {
	for _, c := range []struct{ total, used, pre, min, max, want int }{
		{0, 0, 0, 16, 0, 16}, {0, 0, 8, 16, 0, 16}, {0, 0, 16, 8, 0, 16}, {0, 0, 16, 0, 0, 16}, {8, 0, 0, 16, 0, 8},
		{8, 4, 8, 0, 0, 4}, {8, 4, 8, 8, 0, 4}, {8, 4, 8, 8, 6, 0}, {8, 4, 8, 0, 8, 0}, {4, 4, 8, 0, 8, 4},
	} {
		m := watermark.Marks{Pre: c.pre, Min: c.min, Max: c.max}
		NewWithT(t).Expect(m.Needed(watermark.Level{Total: c.total, Used: c.used})).To(Equal(c.want), "%+v", c)
	}
}

func TestExcess(t *testing.T) {
	for _, c := range []struct{ total, used, pre, min, above, want int }{
		{0, 0, 0, 16, 0, 0}, {15, 0, 8, 16, 8, 0}, {17, 0, 8, 16, 0, 1}, {20, 0, 8, 16, 4, 0}, {21, 0, 8, 0, 4, 9},
		{20, 0, 8, 20, 8, 0}, {16, 1, 8, 16, 8, 0}, {20, 4, 8, 17, 8, 0}, {20, 4, 8, 0, 0, 8}, {20, 4, 8, 0, 8, 0},
		{61, 29, 20, 60, 0, 1},
	} {
		m := watermark.Marks{Pre: c.pre, Min: c.min, Above: c.above}
		NewWithT(t).Expect(m.Excess(watermark.Level{Total: c.total, Used: c.used})).To(Equal(c.want), "%+v", c)
	}
}

func TestUnits(t *testing.T) {
	NewWithT(t).Expect([]int{watermark.Units(0, 16), watermark.Units(1, 16), watermark.Units(16, 16), watermark.Units(17, 16), watermark.Units(3, 0)}).
		To(Equal([]int{0, 1, 1, 2, 0}))
}

// states yields the whole small state space.
func states(visit func(m watermark.Marks, l watermark.Level)) (n int) {
	for total := range 9 {
		for back := range total + 1 {
			for used := range total - back + 1 {
				for pre := range 6 {
					for low := range 8 {
						for above := range 4 {
							for _, high := range []int{0, 5, 8} {
								n++
								visit(watermark.Marks{Pre: pre - 1, Min: low, Max: high, Above: above}, watermark.Level{Total: total, GivingBack: back, Used: used})
							}
						}
					}
				}
			}
		}
	}
	return n
}

func TestNothingFlaps(t *testing.T) {
	bad := 0
	n := states(func(m watermark.Marks, l watermark.Level) {
		need, request, excess := m.Needed(l), m.Request(l), m.Excess(l)
		taken, asked, given := l, l, l
		taken.Total += need
		asked.Total += request
		given.GivingBack += excess
		gone := given
		gone.Total, gone.GivingBack = gone.Total-excess, gone.GivingBack-excess
		switch {
		case need > 0 && excess > 0, need < 0, excess < 0, request < need:
		case m.Needed(taken) != 0, need > 0 && m.Excess(taken) != 0:
		case m.Needed(asked) != 0, request > 0 && m.Excess(asked) != 0:
		case excess > 0 && m.Needed(given) != 0, m.Excess(given) != 0, excess > 0 && m.Needed(gone) != 0, m.Excess(gone) != 0:
		case m.Max > 0 && l.Total <= m.Max && asked.Total > m.Max:
		default:
			return
		}
		bad++
		t.Logf("%+v %+v: needed %d, request %d, excess %d", m, l, need, request, excess)
	})
	NewWithT(t).Expect(bad).To(BeZero(), "of %d states", n)
}

// oldExcess is the formula of other projects: it jumps at Min+Above.
func oldExcess(m watermark.Marks, l watermark.Level) int {
	if l.Used <= m.Min+m.Above && l.Total <= m.Min+m.Above {
		return 0
	}
	return max(0, l.Total-l.Used-max(m.Pre, 0)-m.Above)
}

func TestTheOldFormulaFlaps(t *testing.T) {
	g := NewWithT(t)
	m := watermark.Marks{Pre: 20, Min: 60}
	l := watermark.Level{Total: 61, Used: 29}
	g.Expect(oldExcess(m, l)).To(Equal(12))
	l.Total -= oldExcess(m, l)
	g.Expect(m.Needed(l)).To(Equal(11), "it takes back most of what was given")
	flaps := 0
	states(func(m watermark.Marks, l watermark.Level) {
		if e := oldExcess(m, l); e > 0 {
			l.Total -= e
			if m.Needed(l) > 0 {
				flaps++
			}
		}
	})
	g.Expect(flaps).To(BeNumerically(">", 0))
}

func TestPendingPodsAreServedAtOnceAndNotTakenBack(t *testing.T) {
	g := NewWithT(t)
	m, l := watermark.Marks{Pre: 8}, watermark.Level{Total: 8}
	g.Expect(m.Needed(l)).To(BeZero())
	m.Pending = 30
	g.Expect(m.Needed(l)).To(Equal(22))
	l.Total = 30
	g.Expect(m.Excess(l)).To(BeZero())
	m.Pending, l.Used = 0, 30
	g.Expect(m.Needed(l)).To(Equal(8))
}

func TestAWSHasTheSameFormula(t *testing.T) {
	bad := 0
	for total := range 20 {
		for used := range total + 1 {
			for warm := range 10 {
				for low := range 10 {
					m, l := watermark.Marks{Pre: warm, Min: low}, watermark.Level{Total: total, Used: used}
					free := total - used
					if m.Needed(l) != max(warm-free, 0, low-total) || m.Excess(l) != max(0, min(free-warm, total-low)) {
						bad++
					}
				}
			}
		}
	}
	g := NewWithT(t)
	g.Expect(bad).To(BeZero())
	for pods, want := range map[int]int{0: 16, 5: 32, 16: 32, 17: 48, 58: 80} {
		m := watermark.Marks{Pre: 16}
		g.Expect(watermark.Units(m.Needed(watermark.Level{Used: pods}), 16)*16).To(Equal(want), "%d pods", pods)
	}
	for pods, want := range map[int]int{0: 10, 7: 12, 15: 20, 45: 50} {
		m := watermark.Marks{Pre: 5, Min: 10}
		g.Expect(m.Needed(watermark.Level{Used: pods})).To(Equal(want), "%d pods", pods)
	}
}
