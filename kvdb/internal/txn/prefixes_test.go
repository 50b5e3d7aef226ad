// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package txn_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/internal/txn"
)

func TestPrefixes(t *testing.T) {
	for name, c := range map[string]struct{ given, want []string }{
		"none":              {nil, nil},
		"all keys":          {[]string{"a", "", "b"}, []string{""}},
		"in order":          {[]string{"b/", "a/"}, []string{"a/", "b/"}},
		"one covers others": {[]string{"a/b", "a", "a/b", "ab"}, []string{"a"}},
		"neighbours":        {[]string{"a/", "a0", "a/0"}, []string{"a/", "a0"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			got, err := txn.Prefixes(c.given)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(got).To(Equal(c.want))
		})
	}
	_, err := txn.Prefixes(make([]string, kvdb.MaxOps+1))
	NewWithT(t).Expect(err).To(MatchError(kvdb.ErrTooManyOps))
}
