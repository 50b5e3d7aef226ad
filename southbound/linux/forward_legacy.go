// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// legacyTables reads and writes the tables of iptables-legacy. The kernel has no request
// that changes one rule of them, so that program does it. Without the program only their
// policy is read.
type legacyTables struct {
	within func(f func() error) error
}

// legacyTimeout bounds one call of the program, which waits for others that change the
// tables.
const legacyTimeout = 10 * time.Second

// firewalls returns the chains FORWARD of both families, if the kernel has them: looking
// with the program would make them.
func (l *legacyTables) firewalls() (all []firewall, err error) {
	err = l.within(func() error {
		for _, f := range legacyFamilies() {
			names, err := os.ReadFile(f.tables)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("look for tables of %s: %w", f.program, err)
			}
			if !slices.Contains(strings.Fields(string(names)), filterTable) {
				continue
			}
			w, err := l.firewall(f)
			if err != nil {
				return err
			}
			all = append(all, w)
		}
		return nil
	})
	return all, err
}

// legacyRules returns the arguments that describe our two rules.
func legacyRules() [][]string {
	var rules [][]string
	for _, direction := range []string{"-i", "-o"} {
		rules = append(rules, []string{
			forwardChain, direction, linkPrefix + "+", "-m", "comment", "--comment", forwardComment, "-j", "ACCEPT",
		})
	}
	return rules
}

// firewall reads one chain. It is called within the namespace.
func (l *legacyTables) firewall(f legacyFamily) (firewall, error) {
	drops, err := f.drops()
	if err != nil {
		return firewall{}, err
	}
	w := firewall{program: f.program, drops: drops}
	shown, err := run(f.program, "-S", forwardChain)
	if err != nil {
		w.missing, w.err = true, err
		return w, nil //nolint:nilerr // the policy is known, and the note has the error
	}
	for _, rule := range legacyRules() {
		ours := strings.Contains(shown, "-A "+strings.Join(rule, " ")+"\n")
		plain := strings.Contains(shown, fmt.Sprintf("-A %s %s %s -j ACCEPT\n", forwardChain, rule[1], rule[2]))
		if ours {
			w.ours++
		}
		w.missing = w.missing || !ours && !plain
	}
	w.fix = func() error { return l.change(f.program, "-A", func(ours bool) bool { return !ours }) }
	w.remove = func() error { return l.change(f.program, "-D", func(ours bool) bool { return ours }) }
	return w, nil
}

// change runs the program for each of our rules that should have it run.
func (l *legacyTables) change(program, command string, should func(present bool) bool) error {
	return l.within(func() error {
		for _, rule := range legacyRules() {
			_, err := run(program, append([]string{"-C"}, rule...)...)
			if !should(err == nil) {
				continue
			}
			if _, err := run(program, append([]string{command}, rule...)...); err != nil {
				return err
			}
		}
		return nil
	})
}

// run runs a program in the namespace of the calling thread, and returns its output.
func run(program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), legacyTimeout)
	defer cancel()
	args = append([]string{"-w"}, args...)
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("run %s %s: %w: %s", program, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return string(out), nil
}
