// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// rooms returns the folders of each room. Its tests are those of these folders.
func rooms() map[string][]string {
	return map[string][]string{
		"ledger":     {"ledger", "ledger/addrspace"},
		"nodesync":   {"plugins/nodesync", "plugins/nodesync/claims"},
		"podmanager": {"plugins/podmanager", "controller"},
		"kvdb":       {"kvdb", "kvdb/bolt", "kvdb/etcd", "kvdb/mem"},
		"southbound": {"southbound"},
		"operator": {
			"operator/blocks",
			"operator/nodeipam",
			"operator/netresource",
			"operator/netresource/clusterpool",
		},
		"witness": {"witness", "witness/findings", "witness/rebuild", "plugins/reclaim"},
	}
}

// run is the whole program; it returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("mutations", flag.ContinueOnError)
	flags.SetOutput(stderr)
	seed := flags.Uint64("seed", 1, "chooses the places")
	number := flags.Int("number", 20, "changes of each room")
	names := flags.String("rooms", "", "the rooms, separated by spaces; empty: all")
	out := flags.String("out", filepath.FromSlash(".cache/mutations"), "the folder of the tables")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	for _, name := range chosen(*names) {
		if err := mutate(ctx, name, *seed, *number, *out, stdout); err != nil {
			fmt.Fprintln(stderr, "mutations:", err)
			return 1
		}
	}
	return 0
}

// chosen returns the rooms that a person named, or all, in order.
func chosen(names string) []string {
	if all := strings.Fields(names); len(all) > 0 {
		return all
	}
	var all []string
	for name := range rooms() {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// mutate tries changes of a room, and writes its table.
func mutate(ctx context.Context, room string, seed uint64, number int, out string, stdout io.Writer) error {
	folders, known := rooms()[room]
	if !known {
		return fmt.Errorf("room %q is not known: want one of %s", room, strings.Join(chosen(""), ", "))
	}
	all, err := mutationsIn(folders)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(seed, 0))
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	lab, err := newLab(ctx, folders)
	if err != nil {
		return err
	}
	defer lab.close()
	table := "| change | in | noticed by |\n|---|---|---|\n"
	tried, killed := 0, 0
	for _, m := range all {
		if tried == number {
			break
		}
		v, err := lab.test(ctx, m)
		if err != nil {
			return err
		}
		if !v.compiles {
			continue
		}
		tried++
		by := "**no test of the room**"
		if v.killer != "" {
			killed++
			by = v.killer
		}
		row := fmt.Sprintf("| `%s` | %s `%s` | %s |\n", strings.ReplaceAll(m.String(), "|", `\|`), m.file, m.in, by)
		fmt.Fprint(stdout, room, " ", tried, ": ", row)
		table += row
	}
	head := fmt.Sprintf("## %s: %d of %d changes are noticed (seed %d)\n\n", room, killed, tried, seed)
	return os.WriteFile(filepath.Join(out, room+".md"), []byte(head+table), 0o644)
}

// mutationsIn returns the changes of all sources of folders.
func mutationsIn(folders []string) (all []mutation, err error) {
	for _, folder := range folders {
		files, err := filepath.Glob(filepath.Join(folder, "*.go"))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			source, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			some, err := mutationsOf(file, source)
			if err != nil {
				return nil, err
			}
			all = append(all, some...)
		}
	}
	return all, nil
}
