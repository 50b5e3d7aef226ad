// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodescript

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestExamplesOfAPage(t *testing.T) {
	g := NewWithT(t)
	page := "# A\n\n    $ cadastre a b    # why\n    one\n\n      two\n    $ cadastre c\n    three\n    $ make d\n    ok\n\ntext\n\n    four\n"
	g.Expect(examples(page)).To(Equal([]example{
		{[]string{"a", "b"}, "one\n\n  two\n"},
		{[]string{"c"}, "three\n"},
	}))
}

func TestOutputsThatAPageShows(t *testing.T) {
	g := NewWithT(t)
	have := "since 14:05:06, event #7\ntwo (x)\nthree\nfour\n"
	for _, shown := range []string{
		"since 09:00:00, event #1\n", "since 09:00:00, event #1\ntwo (x)\nthree\nfour\n", "...\nthree\n",
		"since ...\n...\nfour\n", "since 09:00:00, event #1\n...\n",
	} {
		g.Expect(matches(shown, have)).To(BeTrue(), shown)
	}
	for _, shown := range []string{"since 09:00:00, event 1\n", "two (x)\n", "...\nthre\n", "since 09:00:00, event #1\nthree\n", "...\nfive\n"} {
		g.Expect(matches(shown, have)).To(BeFalse(), shown)
	}
}
