// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Command pictures writes the pictures of the documentation as SVG: the plots below
// docs/plots from the tables of committed results, and the drawings below docs/images. A
// picture follows from the sources and the results alone, so a test compares the committed
// files with what the program makes. It writes the table of docs/performance.md, too.
//
//	go run ./test/peers/pictures docs    # as make generate does
package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/cadastre/cadastre/internal/testkit/generated"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: pictures FOLDER")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintf(os.Stderr, "pictures: %v\n", err)
		os.Exit(1)
	}
}

// write writes all pictures below a folder, which has the results too.
func write(folder string) error {
	all, err := pictures(folder)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(all[name]), 0o644); err != nil {
			return fmt.Errorf("write a picture: %w", err)
		}
	}
	table, err := promiseTable(newResults(folder))
	if err != nil {
		return err
	}
	return generated.Replace(filepath.Join(folder, "performance.md"), table)
}

// pictures returns all pictures by the names of their files.
func pictures(folder string) (map[string]string, error) {
	all := map[string]string{}
	for name, d := range drawings() {
		all[name] = d.svg()
	}
	r := newResults(folder)
	for name, c := range charts() {
		d, err := c.draw(r)
		if err != nil {
			return nil, err
		}
		all[name] = d.svg()
	}
	return all, nil
}
