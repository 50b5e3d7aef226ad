// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"math"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

func TestTimeout(t *testing.T) {
	g := NewWithT(t)
	b := Timeout{Resync: 10 * time.Second, MaxBackoff: 5 * time.Second, InitialRetry: time.Second}
	g.Expect(b.Next()).To(Equal(10*time.Second), "before any result")
	for i, x := range []struct {
		ok   bool
		want time.Duration
	}{
		{true, 10}, {true, 10}, {false, 1}, {false, 2}, {false, 4}, {false, 5}, {false, 5},
		{true, 10}, {true, 10}, {false, 1}, {false, 2}, {true, 10},
	} {
		b.Update(x.ok)
		g.Expect(b.Next()).To(Equal(x.want*time.Second), "step %d", i)
		g.Expect(b.Next()).To(Equal(x.want*time.Second), "step %d, asked again", i)
	}
}

func TestTimeoutFormula(t *testing.T) {
	g := NewWithT(t)
	for _, x := range []Timeout{
		{Resync: 30 * time.Second, MaxBackoff: 10 * time.Second, InitialRetry: 250 * time.Millisecond}, // the defaults
		// the first retry has no limit
		{Resync: 10 * time.Second, MaxBackoff: time.Second, InitialRetry: 7 * time.Second},
		{Resync: 1, MaxBackoff: 1 << 40, InitialRetry: 3},
		{Resync: 1, MaxBackoff: math.MaxInt64, InitialRetry: 1 << 61},
		{},
	} {
		for k := 1; k < 70; k++ {
			x.Update(false)
			want := x.InitialRetry
			if k > 1 {
				want = x.MaxBackoff
				if exact := math.Ldexp(float64(x.InitialRetry), k-1); exact < float64(x.MaxBackoff) {
					want = time.Duration(exact)
				}
			}
			g.Expect(x.Next()).To(Equal(want), "%+v after %d errors", x, k)
		}
		x.Update(true)
		g.Expect(x.Next()).To(Equal(x.Resync))
	}
}
