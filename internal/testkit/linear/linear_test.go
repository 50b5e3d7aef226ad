// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linear_test

import (
	"testing"

	"github.com/anishathalye/porcupine"
	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/linear"
)

// counter is a model of a counter: each request adds one, and is answered the sum.
func counter(calls *int) porcupine.NondeterministicModel {
	return porcupine.NondeterministicModel{
		Init: func() []any { return []any{0} },
		Step: func(state, input, _ any) []any {
			*calls++
			if state.(int)+1 != input.(int) {
				return nil
			}
			return []any{state.(int) + 1}
		},
	}
}

// atOnce returns requests at the same time, with these answers.
func atOnce(answers ...int) (all []porcupine.Operation) {
	for i, n := range answers {
		all = append(all, porcupine.Operation{ClientId: i, Input: n, Output: n, Call: 0, Return: 1})
	}
	return all
}

func TestASearchIsBoundedByItsSteps(t *testing.T) {
	for name, c := range map[string]struct {
		answers []int
		steps   int64
		want    porcupine.CheckResult
	}{
		"an order":                     {[]int{4, 3, 2, 1}, 100, porcupine.Ok},
		"no order":                     {[]int{4, 3, 2, 2}, 100, porcupine.Illegal},
		"too few steps":                {[]int{4, 3, 2, 1}, 9, porcupine.Unknown},
		"exactly enough":               {[]int{4, 3, 2, 1}, 10, porcupine.Ok},
		"too few to say there is none": {[]int{4, 3, 2, 2}, 2, porcupine.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			g, calls := NewWithT(t), 0
			g.Expect(linear.Check(counter(&calls), atOnce(c.answers...), c.steps)).To(Equal(c.want))
			g.Expect(calls).To(BeNumerically("<=", c.steps))
		})
	}
}
