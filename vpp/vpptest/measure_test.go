// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpptest

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
)

const pageEnv = "VPP_TEST_PAGE" // the file that gets the table of measurements

// The data planes of Linux and VPP run side by side and are measured in turns, so that both
// meet the same noise of the machine.
func TestBesideLinux(t *testing.T) {
	const rounds, slice = 9, 300 * time.Millisecond
	planes := []*bench{
		newBench(t, layout{plane: "linux", nodes: 2}),
		newBench(t, layout{plane: "vpp", nodes: 2}),
	}
	near, far := [2][]float64{}, [2][]float64{}
	add, del := [2][]time.Duration{}, [2][]time.Duration{}
	for round := range rounds {
		for i, m := range planes {
			near[i] = append(near[i], netlab.Throughput(t, m.a.Place, m.b.Place, true, slice))
			far[i] = append(far[i], netlab.Throughput(t, m.a.Place, m.c.Place, true, slice))
			p := m.nodes[0].newPod(fmt.Sprint("round-", round))
			began := time.Now()
			m.must(p.add())
			add[i] = append(add[i], time.Since(began))
			m.reached(m.c.Place, p.Place)
			began = time.Now()
			m.must(p.del())
			del[i] = append(del[i], time.Since(began))
		}
	}
	text := "| | Linux | VPP | ratio |\n|---|--:|--:|--:|\n"
	row := func(name, format string, linux, vpp float64) {
		text += fmt.Sprintf("| %s | "+format+" | "+format+" | %.2f |\n", name, linux, vpp, vpp/linux)
	}
	row("throughput on one node, Gbit/s", "%.2f", median(near[0])/1e9, median(near[1])/1e9)
	row("throughput across nodes, Gbit/s", "%.2f", median(far[0])/1e9, median(far[1])/1e9)
	row("ADD, ms", "%.1f", millis(add[0]), millis(add[1]))
	row("DEL, ms", "%.1f", millis(del[0]), millis(del[1]))
	t.Logf("medians of %d rounds:\n%s", rounds, text)
	if path := os.Getenv(pageEnv); path != "" {
		planes[0].must(os.WriteFile(path, []byte(text), 0o600))
	}
}

func median[T float64 | time.Duration](all []T) T {
	slices.Sort(all)
	return all[len(all)/2]
}

func millis(all []time.Duration) float64 { return float64(median(all).Microseconds()) / 1000 }
