// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package stage runs scenarios with real processes: it starts and ends agents and
// other programs, gives pods addresses through CNI, sends packets between them, and
// prints all of it in numbered steps.
//
// A Harness is a whole program. It builds the programs, finds a way to make network
// namespaces (as root, as root of a user namespace by starting itself again, or not at
// all), and removes its directory in the end. The caller
// that starts a Process or makes a Pod ends it; a Process dies with the program at
// the latest, and a namespace with the last file that holds it. An error
// says what was attempted, and leaves the Process or the Pod to be ended. No function changes the network namespace that the program was started
// in.
//
// Everything may be called from any goroutine, but a Scenario and a Pod belong to
// one at a time.
//
// Example, a program that shows an agent starting:
//
//	harness := stage.Harness{Name: "start", Socket: stage.SocketName, Title: title, Scenario: func(
//		ctx context.Context, p stage.Place, w stage.Way, s *stage.Scenario) error {
//		a := stage.Agent{Place: p, Config: "conf/contiv.conf", Node: "node-1"}
//		s.Step("Start the agent.")
//		process, err := a.Launch(func(f func() error) error { return f() })
//		if err == nil {
//			err = errors.Join(a.Await(ctx, process), process.Stop(10*time.Second))
//		}
//		return s.End(ctx, err, nil, stage.Log{Of: "The agent", Path: a.Log()})
//	}}
//	os.Exit(harness.Run(ctx, os.Args[1:], os.Stdout, os.Stderr))
package stage
