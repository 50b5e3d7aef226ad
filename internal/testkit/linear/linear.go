// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package linear looks for an order of concurrent requests that explains their
// answers. A search is bounded by its steps, so that its result does not depend on
// the speed of the machine.
package linear

import (
	"sync/atomic"

	"github.com/anishathalye/porcupine"
)

// Check looks for an order, and takes at most that many steps of the model. It
// returns Unknown if that is not enough.
func Check(m porcupine.NondeterministicModel, history []porcupine.Operation, steps int64) porcupine.CheckResult {
	var taken atomic.Int64
	step := m.Step
	m.Step = func(state, input, output any) []any {
		if taken.Add(1) > steps {
			return nil // nothing more is explained: the search comes to its end
		}
		return step(state, input, output)
	}
	found := porcupine.CheckOperationsTimeout(m.ToModel(), history, 0)
	if found == porcupine.Illegal && taken.Load() > steps {
		return porcupine.Unknown
	}
	return found
}
