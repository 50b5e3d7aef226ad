// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package backoff_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/backoff"
)

func ExamplePolicy() {
	p := backoff.Policy{First: time.Second, Limit: 5 * time.Second}
	for failures := range 6 {
		fmt.Print(p.After(failures), " ")
	}
	// Output: 0s 1s 2s 4s 5s 5s
}

func TestAfter(t *testing.T) {
	for _, c := range []struct {
		name     string
		policy   backoff.Policy
		failures int
		want     time.Duration
	}{
		{"no failure", backoff.Policy{First: time.Second}, 0, 0},
		{"no limit", backoff.Policy{First: time.Second}, 9, time.Second},
		{"a limit below the first wait", backoff.Policy{First: time.Second, Limit: time.Millisecond}, 2, time.Second},
		{"a limit that is not a power of two", backoff.Policy{First: 3, Limit: 10}, 3, 10},
		{"many failures", backoff.Policy{First: 1, Limit: math.MaxInt64}, 1000, math.MaxInt64},
		{"the least random number", backoff.Policy{First: 8, Random: func() float64 { return 0 }}, 1, 4},
		{"the largest random number", backoff.Policy{First: 1 << 40, Random: func() float64 { return math.Nextafter(1, 0) }}, 1, 1<<40 - 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			NewWithT(t).Expect(c.policy.After(c.failures)).To(Equal(c.want))
		})
	}
}
