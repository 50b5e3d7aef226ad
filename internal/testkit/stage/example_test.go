// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package stage_test

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// A program shows the start of an agent.
func ExampleHarness() {
	harness := stage.Harness{
		Name:   "start",
		Socket: stage.SocketName,
		Title:  func(_ stage.Way, why string) string { return "An agent starts. " + why },
		Scenario: func(ctx context.Context, p stage.Place, _ stage.Way, s *stage.Scenario) error {
			a := stage.Agent{Place: p, Config: "conf/contiv.conf", Node: "node-1"}
			s.Step("Start the agent.")
			process, err := a.Launch(func(f func() error) error { return f() })
			if err == nil {
				err = errors.Join(a.Await(ctx, process), process.Stop(10*time.Second))
			}
			return s.End(ctx, err, nil, stage.Log{Of: "The agent", Path: a.Log()})
		},
	}
	main := func() { os.Exit(harness.Run(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) }
	_ = main
}
