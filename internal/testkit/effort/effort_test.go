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

func TestASeedIsTheSameAtEffortOne(t *testing.T) {
	for name, c := range map[string]struct {
		effort, seed string
		want         any // a seed, or a text of the error
	}{
		"effort 1":             {"", "", uint64(0)},
		"named":                {"300", "42", uint64(42)},
		"no number":            {"", "many", `parse CADASTRE_TEST_SEED "many": want the number`},
		"an effort of 0":       {"0", "", `parse CADASTRE_TEST_EFFORT "0": want a whole number`},
		"named, and a zero":    {"", "0", uint64(0)},
		"a negative seed":      {"", "-1", `parse CADASTRE_TEST_SEED "-1"`},
		"effort 1 by its name": {"1", "", uint64(0)},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			t.Setenv(Env, c.effort)
			t.Setenv(SeedEnv, c.seed)
			seed, err := Pick()
			if text, fails := c.want.(string); fails {
				g.Expect(err).To(MatchError(HavePrefix(text)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(seed).To(Equal(c.want))
		})
	}
}

func TestASeedIsAnotherOneAtAHigherEffort(t *testing.T) {
	g := NewWithT(t)
	t.Setenv(Env, "10")
	t.Setenv(SeedEnv, "")
	a, err := Pick()
	g.Expect(err).NotTo(HaveOccurred())
	b, err := Pick()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(a).NotTo(Equal(b))
}
