// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// Scenario prints numbered steps.
type Scenario struct {
	W     io.Writer
	steps int // that have begun
}

// Step begins the next step.
func (s *Scenario) Step(format string, args ...any) {
	s.steps++
	fmt.Fprintf(s.W, "\n%2d. %s\n", s.steps, fmt.Sprintf(format, args...))
}

// Say prints what belongs to the step, which may be many lines.
func (s *Scenario) Say(format string, args ...any) {
	text := strings.Trim(fmt.Sprintf(format, args...), "\n")
	for line := range strings.SplitSeq(text, "\n") {
		fmt.Fprintln(s.W, strings.TrimRight("    "+line, " "))
	}
}

// Show runs cadastre and prints its output.
func (s *Scenario) Show(ctx context.Context, a Agent, args ...string) error {
	s.Say("$ cadastre %s", strings.Join(args, " "))
	out, err := a.CLI(ctx, args...)
	if err == nil {
		s.Say("%s", out)
	}
	return err
}

// End prints the failure of a scenario: err, or that it was interrupted. The ends of the
// logs follow.
func (s *Scenario) End(ctx context.Context, err, ending error, logs ...Log) error {
	switch {
	case err == nil && ending == nil:
		return nil
	case ctx.Err() != nil && ending == nil:
		fmt.Fprintf(s.W, "\nInterrupted in step %d.\n", s.steps)
	default:
		err = errors.Join(err, ending)
		fmt.Fprintf(s.W, "\nFAILED in step %d: %v\n", s.steps, err)
		for _, l := range logs {
			s.tail(l)
		}
	}
	return reported{err}
}

// Log names a log file that may show the reason of a failure.
type Log struct{ Of, Path string }

// tail prints the end of a log.
func (s *Scenario) tail(l Log) {
	const most = 20
	data, err := os.ReadFile(l.Path)
	if err != nil || len(data) == 0 {
		return // it has not come so far
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	if len(lines) > most {
		lines = lines[len(lines)-most:]
	}
	fmt.Fprintf(s.W, "%s's log ends with:\n", l.Of)
	s.Say("%s", strings.Join(lines, "\n"))
}
