// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cadastre/cadastre/internal/testkit/effort"
	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// binEnv names the folder of the programs: set by TestMain, and inherited by the process
// that it starts again in another namespace.
const binEnv = "CHAOS_BIN"

func TestMain(m *testing.M) {
	if call := os.Getenv(deadEnv); call != "" {
		fmt.Fprintln(os.Stderr, "chaos:", becomeAgent(call))
		os.Exit(1)
	}
	if os.Getenv(binEnv) != "" {
		os.Exit(m.Run())
	}
	dir, err := buildPrograms()
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
	if err := flag.Set("test.parallel", "6"); err != nil { // they wait for other processes most of the time
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(leaks(code))
}

// leaks is the exit code: etcd closes what its members say to each other some
// seconds after its own end.
func leaks(code int) int {
	for end := time.Now().Add(patience); code == 0; time.Sleep(10 * time.Millisecond) {
		err := goleak.Find()
		if err == nil {
			break
		}
		if time.Now().After(end) {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	return code
}

func buildPrograms() (dir string, err error) {
	dir, err = os.MkdirTemp("", "chaos-bin-")
	if err != nil {
		return "", err
	}
	if err := stage.Build(context.Background(), "../..", dir, stage.OurPrograms); err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	return dir, os.Setenv(binEnv, dir)
}

func program(name string) string { return filepath.Join(os.Getenv(binEnv), name) }

// longer returns a duration or a length that only a nightly run can afford, or the
// small value that the other runs take.
func longer(t *testing.T, small, nightly int) int {
	t.Helper()
	if effort.Level(t) >= effort.Long {
		return nightly
	}
	return small
}

// random is the n-th stream of a seed.
func random(seed uint64, n int) *rand.Rand { return rand.New(rand.NewPCG(seed, uint64(n))) }
