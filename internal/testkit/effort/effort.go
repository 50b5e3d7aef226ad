// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package effort scales the tests that repeat themselves: with random seeds, with
// kills of real processes, with damaged files.
//
// One environment variable, CADASTRE_TEST_EFFORT, applies to all of them. "make test" and
// "make ci" run with 1, the default; "make nightly" runs with 10, and the chaos tests with
// 300. A test states the number of its repetitions at effort 10, and package effort scales
// that number.
// A test that makes choices at random has the same seed in each run at effort 1, and a new one
// at a higher effort. CADASTRE_TEST_SEED names one; a failed test prints its own.
// The functions read the environment only and may be called by any goroutine.
package effort

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// The environment variables.
const (
	Env     = "CADASTRE_TEST_EFFORT"
	SeedEnv = "CADASTRE_TEST_SEED"
)

// Nightly is the effort of "make nightly". From Long on, tests do what takes hours.
const (
	Nightly = 10
	Long    = 100
)

// Level returns the effort: 1 if the variable is unset, and with -short.
func Level(t testing.TB) int {
	t.Helper()
	level, err := parse(os.Getenv(Env))
	if err != nil {
		t.Fatal(err)
	}
	if testing.Short() {
		return 1
	}
	return level
}

func parse(text string) (int, error) {
	if text == "" {
		return 1, nil
	}
	level, err := strconv.Atoi(text)
	if err != nil || level < 1 {
		return 0, fmt.Errorf("parse %s %q: want a whole number of at least 1, such as %d", Env, text, Nightly)
	}
	return level, nil
}

// Times returns the number of repetitions of a test that has n of them at effort Nightly.
// It is at least 1.
func Times(t testing.TB, n int) int {
	t.Helper()
	return scale(n, Level(t))
}

func scale(n, level int) int { return max(1, n*level/Nightly) }

// Need skips a test that takes tens of seconds for one repetition if the effort is
// below Nightly.
func Need(t testing.TB, reason string) {
	t.Helper()
	if Level(t) < Nightly {
		t.Skipf("NOT RUN: %s: set %s=%d", reason, Env, Nightly)
	}
}

// Seed returns the seed of a test that makes its choices at random: see Pick. A failed test
// prints it.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed, err := Pick()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("repeat with %s=%d", SeedEnv, seed)
		}
	})
	return seed
}

// Pick returns the seed that the environment names. Without one it returns 0 at effort 1, so
// that two runs of a commit make the same choices, and a new seed at a higher effort.
func Pick() (seed uint64, err error) {
	if seed, set, err := named(); set || err != nil {
		return seed, err
	}
	if level, err := parse(os.Getenv(Env)); level == 1 || err != nil {
		return 0, err
	}
	return rand.Uint64(), nil
}

// named returns the seed that the environment names, and whether it names one.
func named() (seed uint64, set bool, err error) {
	text := os.Getenv(SeedEnv)
	if text == "" {
		return 0, false, nil
	}
	if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
		return 0, false, fmt.Errorf("parse %s %q: want the number that a failed test has printed", SeedEnv, text)
	}
	return seed, true, nil
}

// Seeds returns the first seed and the number of seeds of a test that tries n of
// them at effort Nightly. The seeds begin at 0, or are the one seed that the
// environment names.
func Seeds(t testing.TB, n int) (first, count uint64) {
	t.Helper()
	seed, set, err := named()
	if err != nil {
		t.Fatal(err)
	}
	if set {
		return seed, 1
	}
	return 0, uint64(Times(t, n))
}
