// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package effort

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestTimesScalesTheNumberOfRepetitions(t *testing.T) {
	for _, c := range []struct {
		level, n, want int
	}{
		{1, 250, 25},
		{1, 5, 1},
		{10, 250, 250},
		{100, 250, 2500},
		{1, 0, 1},
	} {
		NewWithT(t).Expect(scale(c.n, c.level)).To(Equal(c.want), "%+v", c)
	}
}

func TestParseRefusesAnEffortBelowOne(t *testing.T) {
	g := NewWithT(t)
	for _, text := range []string{"0", "-1", "long", "1.5"} {
		_, err := parse(text)
		g.Expect(err).To(MatchError(And(ContainSubstring(Env), ContainSubstring(text))))
	}
	g.Expect(parse("")).To(Equal(1))
	g.Expect(parse("300")).To(Equal(300))
}

func TestSeedsFollowsTheEnvironment(t *testing.T) {
	g := NewWithT(t)
	t.Setenv(Env, "10")
	t.Setenv(SeedEnv, "")
	first, count := Seeds(t, 24)
	g.Expect(first).To(BeZero())
	if testing.Short() {
		g.Expect(count).To(BeEquivalentTo(2))
	} else {
		g.Expect(count).To(BeEquivalentTo(24))
	}
	t.Setenv(SeedEnv, "7")
	first, count = Seeds(t, 24)
	g.Expect(first).To(BeEquivalentTo(7))
	g.Expect(count).To(BeEquivalentTo(1))
}
