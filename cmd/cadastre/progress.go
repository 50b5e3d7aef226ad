// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

const (
	firstProgress = time.Second // a shorter wait shows nothing
	nextProgress  = 200 * time.Millisecond
)

// bytesUnit is the unit of a step that is counted in bytes.
const bytesUnit = "bytes"

// progress shows on standard error how far a verb is, in one line that redraws: what is done
// of the step, the rate, and the remaining time. It shows nothing in the first second, and
// nothing without a terminal. Any goroutine may call its methods.
type progress struct {
	a    *app
	verb string
	stop context.CancelFunc
	over chan struct{} // closed when nothing is drawn any more

	mu      sync.Mutex
	step    step
	began   time.Time // of the step
	visible bool
}

// step is a part of the work of a verb.
type step struct {
	name  string
	unit  string
	done  uint64
	total uint64                           // 0: not known
	count func(ctx context.Context) uint64 // returns done; nil: set is called
}

// agentStep returns the step of a request of which the agent does not tell how far it is.
func agentStep() step { return step{name: "the agent works"} }

// progress begins to show a verb's progress. The caller calls end before it prints.
func (a *app) progress(ctx context.Context, verb string, first step) *progress {
	ctx, stop := context.WithCancel(ctx)
	p := &progress{a: a, verb: verb, stop: stop, over: make(chan struct{})}
	p.begin(first)
	if !a.terminal(a.stderr).is {
		close(p.over)
		return p
	}
	go p.run(ctx)
	return p
}

// run draws until end is called.
func (p *progress) run(ctx context.Context) {
	defer close(p.over)
	for wait := firstProgress; p.a.pause(ctx, wait) == nil; wait = nextProgress {
		p.draw(ctx)
	}
}

// begin begins the next step.
func (p *progress) begin(s step) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.step, p.began = s, p.a.now()
}

// set sets what is done of the step.
func (p *progress) set(done uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.step.done = done
}

// add counts what is done of the step.
func (p *progress) add(done int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.step.done += uint64(max(done, 0)) //nolint:gosec // not negative
}

// end removes the line. A second call does nothing.
func (p *progress) end() {
	p.stop()
	<-p.over
	p.hide()
}

// hide removes the line until it is drawn again.
func (p *progress) hide() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.visible {
		fmt.Fprint(p.a.stderr, "\r"+clearLine)
		p.visible = false
	}
}

// draw counts, and replaces the line.
func (p *progress) draw(ctx context.Context) {
	p.mu.Lock()
	count := p.step.count
	p.mu.Unlock()
	if count != nil {
		p.set(count(ctx)) // without the lock: it may take a while
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	line := []rune(p.verb + ": " + p.step.text(p.a.now().Sub(p.began)))
	line = line[:min(len(line), p.a.terminal(p.a.stderr).width-1)]
	fmt.Fprint(p.a.stderr, "\r"+string(line)+clearLine)
	p.visible = true
}

// text describes a step: "copy 12.0 MiB of 40.0 MiB, 4.0 MiB/s, 7s left".
func (s *step) text(elapsed time.Duration) string {
	if s.unit == "" {
		return s.name + ", " + wholeSeconds(elapsed)
	}
	text := s.name + " " + s.amount(float64(s.done))
	if s.total > 0 {
		text += " of " + s.amount(float64(s.total))
	}
	if s.unit != bytesUnit {
		text += " " + s.unit
	}
	rate := float64(s.done) / max(elapsed.Seconds(), 0.001)
	if s.done > 0 {
		text += ", " + s.rate(rate)
	}
	if s.done == 0 || s.done >= s.total {
		return text + ", " + wholeSeconds(elapsed)
	}
	left := time.Duration(float64(s.total-s.done) / rate * float64(time.Second))
	return text + ", " + wholeSeconds(left) + " left"
}

func (s *step) amount(n float64) string {
	if s.unit != bytesUnit {
		return fmt.Sprintf("%.0f", n)
	}
	for _, u := range []struct {
		name string
		size float64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= u.size {
			return fmt.Sprintf("%.1f %s", n/u.size, u.name)
		}
	}
	return fmt.Sprintf("%.0f bytes", n)
}

func (s *step) rate(n float64) string {
	if s.unit == bytesUnit {
		return s.amount(n) + "/s"
	}
	return perSecond(n)
}

// wholeSeconds returns a time such as "7s" or "2m5s".
func wholeSeconds(d time.Duration) string { return max(d, 0).Round(time.Second).String() }

// countingWriter counts what is written as done.
type countingWriter struct {
	io.Writer
	p *progress
}

func (w countingWriter) Write(data []byte) (int, error) {
	n, err := w.Writer.Write(data)
	w.p.add(n)
	return n, err
}

// sizeOf returns the size of a file, 0 if it cannot be told.
func sizeOf(path string) uint64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return uint64(info.Size()) //nolint:gosec // not negative
}
