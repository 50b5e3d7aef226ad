// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource

import "github.com/cadastre/cadastre/api/watermark"

// WithOldFormula makes a manager use the published formula of the excess, which jumps
// at Min+Above, to compare.
func WithOldFormula(c Config) Config {
	c.excess = func(m watermark.Marks, l watermark.Level) int {
		total := l.Total - l.GivingBack
		if l.Used <= m.Min+m.Above && total <= m.Min+m.Above {
			return 0
		}
		return max(0, total-l.Used-max(m.Pre, 0)-m.Above)
	}
	return c
}
