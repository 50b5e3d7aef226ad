// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// topFlags holds the flags of top.
type topFlags struct {
	interval time.Duration
	once     bool
	count    uint // screens; 0: no limit
	bars     *bars
}

// minInterval keeps top from being the load that it shows.
const minInterval = 100 * time.Millisecond

func (a *app) topCmd() *cobra.Command {
	var f topFlags
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show pools, nodes, rates and findings, live",
		Long: `top shows the agent's pools and how full they are, the rates of CNI requests and of
commits, the queue of the event loop, the findings of the last comparison, and the nodes
of the cluster, those with the most leases first. It shows them anew after each interval
until it is interrupted. The agent compares at most twice a minute for it.

In a terminal each screen replaces the last one, and lines that do not fit are left out.
Otherwise the screens follow each other, whole. With --once it measures one interval,
prints one screen and ends.`,
		Example: `  cadastre top
  cadastre top --once -o json
  cadastre top --interval 10s >> top.log`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().DurationVar(&f.interval, "interval", 2*time.Second, "the `TIME` from one screen to the next")
	cmd.Flags().BoolVar(&f.once, "once", false, "print one screen and end")
	cmd.Flags().UintVar(&f.count, "count", 0, "end after this `NUMBER` of screens (default: when interrupted)")
	cmd.MarkFlagsMutuallyExclusive("once", "count")
	completeValues(cmd, "interval", "1s", "2s", "10s")
	f.bars = a.barsFor(cmd)
	cmd.RunE = a.verb(func(ctx context.Context, _ []string) error {
		if f.interval < minInterval {
			return usagef("--interval: %s is too short: write %s or more", f.interval, minInterval)
		}
		if err := a.top(ctx, f); err != nil {
			return fmt.Errorf("top: %w", err)
		}
		return nil
	})
	return cmd
}

// top shows a screen for each interval. An agent that goes away is waited for; one that was
// never there is an error.
func (a *app) top(ctx context.Context, f topFlags) error {
	s := &topScreen{a: a, terminal: a.terminal(a.stdout), once: f.once, most: f.count}
	f.bars.utf8 = a.utf8Locale()
	before, err := a.sample(ctx)
	if err != nil {
		return endOfTop(ctx, f.once, err)
	}
	if !f.once { // rates are known after the first interval
		if err := s.show(topOf(before, before), f.bars); err != nil {
			return err
		}
	}
	for s.most == 0 || s.shown < s.most {
		if err := a.pause(ctx, f.interval); err != nil {
			return endOfTop(ctx, f.once, errors.New("interrupted"))
		}
		now, err := a.sample(ctx)
		switch {
		case err != nil && (f.once || ctx.Err() != nil):
			return endOfTop(ctx, f.once, err)
		case err != nil:
			err = s.away(err)
			before = nil
		case before == nil: // a new agent counts anew
			err = s.show(topOf(now, now), f.bars)
			before = now
		default:
			err = s.show(topOf(before, now), f.bars)
			before = now
		}
		if err != nil || f.once {
			return err
		}
	}
	return nil
}

// endOfTop returns the error that ends top. An interrupt is the ordinary end, but with --once.
func endOfTop(ctx context.Context, once bool, err error) error {
	if ctx.Err() != nil && !once {
		return nil
	}
	return err
}

// topScreen prints one screen after the other.
type topScreen struct {
	a        *app
	terminal terminal
	once     bool
	shown    uint // screens
	most     uint // 0: no limit
}

// Codes of a terminal: the cursor goes to the upper left, the rest of a line or of the
// screen is cleared.
const (
	cursorHome = "\x1b[H"
	clearAll   = "\x1b[2J"
	clearLine  = "\x1b[K"
	clearRest  = "\x1b[J"
)

// show prints a view in the format of the output.
func (s *topScreen) show(v *topView, b *bars) error {
	if !s.a.forPeople() {
		s.shown++
		if s.a.output == formatYAML && !s.once {
			if err := s.a.write([]byte("---\n")); err != nil {
				return err
			}
		}
		return s.a.print(v, nil)
	}
	drawn := *b
	drawn.off = b.off || !s.terminal.is && !s.once
	return s.write(v.text(s.a.now(), s.a.output == formatWide, &drawn))
}

// away tells that the agent does not answer. It is not a part of the output for programs.
func (s *topScreen) away(err error) error {
	text := s.a.now().Format(time.TimeOnly) + " " + cleanLines(oneLine(err.Error()))
	if !s.a.forPeople() {
		s.a.note("cadastre: %s", text)
		return nil
	}
	return s.write(text + "\n")
}

// write prints text as the screen.
func (s *topScreen) write(text string) error {
	if s.terminal.is && !s.once {
		text = s.redraw(text)
	} else if s.shown > 0 {
		text = "\n" + text
	}
	s.shown++
	return s.a.write([]byte(text))
}

// redraw returns the codes that replace the screen by text. Lines are cut at the width, and
// a last line tells how many are left out.
func (s *topScreen) redraw(text string) string {
	var b strings.Builder
	if s.shown > 0 {
		b.WriteString(cursorHome)
	} else {
		b.WriteString(clearAll + cursorHome)
	}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if most := max(s.terminal.height-1, 1); len(lines) > most {
		left := len(lines) - most + 1
		lines = append(lines[:most-1:most-1], fmt.Sprintf("%d more lines", left))
	}
	for _, line := range lines {
		if runes := []rune(line); len(runes) > s.terminal.width {
			line = string(runes[:s.terminal.width])
		}
		b.WriteString(line + clearLine + "\r\n")
	}
	return b.String() + clearRest
}
