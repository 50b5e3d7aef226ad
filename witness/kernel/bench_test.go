// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kernel_test

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/witness/kernel"
)

// BenchmarkRound reads a node with 250 pods. cpu-ms/op is the processor time of the
// process, in user and kernel mode. "processes" also asks all processes of the machine.
func BenchmarkRound(b *testing.B) {
	const pods = 250
	n := newNode(b)
	for i := range pods {
		ns, _ := n.pod(fmt.Sprintf("pod%d", i), fmt.Sprintf("10.1.5.%d/24", i+1), fmt.Sprintf("fd00:10:1:5::%x/64", i+1))
		_ = ns.Close() // the file holds it
	}
	for name, o := range map[string]kernel.Options{
		"files":     {Host: n.ns.Path(), Dirs: []string{n.dir}, NoProcesses: true},
		"processes": {Host: n.ns.Path(), Dirs: []string{n.dir}},
	} {
		b.Run(name, func(b *testing.B) {
			r := kernel.New(o)
			b.ReportAllocs()
			before := processorTime(b)
			for b.Loop() {
				view, err := r.Read(b.Context(), nil)
				if err != nil || len(view.Namespaces) < pods+1 || view.Hidden != "" {
					b.Fatalf("%d namespaces, hidden %q, %v", len(view.Namespaces), view.Hidden, err)
				}
			}
			b.ReportMetric(float64((processorTime(b)-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
		})
	}
}

func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	must(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
