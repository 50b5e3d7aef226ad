// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"errors"
	"testing"

	. "github.com/onsi/gomega"
)

// A person reads what is wrong with the file, and not what the Go runtime says of bbolt.
func TestTheTextOfADamagedDatabase(t *testing.T) {
	page, none := make([]byte, 8), 4096
	for want, f := range map[string]func() error{
		"the database is damaged: a page refers to what is outside of the file":  func() error { page[none] = 1; return nil },
		"the database is damaged: Page expected to be: 5, but self identifies 0": func() error { panic("assertion failed: Page expected to be: 5, but self identifies 0") },
		"the database is damaged: page 4 already freed":                          func() error { panic(errors.New("page 4 already freed")) },
	} {
		g := NewWithT(t)
		err := guard(f)
		g.Expect(err).To(MatchError(ErrDamaged))
		g.Expect(err).To(MatchError(want))
	}
}
