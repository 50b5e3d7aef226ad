// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package podmanager

import (
	"strings"
	"testing"
)

// The same where the loop goes on before an answer has reached its caller.
func TestAllInterleavingsWithLateAnswers(t *testing.T) {
	for name, answers := range map[string]latency{"late": late, "late, or to nobody": lateOrNobody} {
		t.Run(name, func(t *testing.T) {
			shortest := newWorld()
			for seed := range uint64(30000) {
				w := explore(seed, answers)
				if w.wrong() != "" && (shortest.wrong() == "" || len(w.script) < len(shortest.script)) {
					shortest = w
				}
			}
			if shortest.wrong() != "" {
				t.Errorf("%s\n%s", shortest.wrong(), strings.Join(shortest.script, "\n"))
			}
		})
	}
}
