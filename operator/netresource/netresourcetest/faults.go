// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresourcetest

import "context"

// deadline returns a context for one call.
func (s *stage) deadline() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), s.p.Deadline)
}
