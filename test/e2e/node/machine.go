// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// groups are control groups of one name, one in each hierarchy of the machine:
// what pods are below.
type groups struct{ dirs []string }

// newGroups makes them. What an error leaves is for remove.
func newGroups(name string) (g groups, err error) {
	const root = "/sys/fs/cgroup"
	parents := []string{root} // of version 2
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); errors.Is(err, fs.ErrNotExist) {
		procs, err := filepath.Glob(filepath.Join(root, "*", "cgroup.procs"))
		if err != nil {
			return g, err
		}
		if len(procs) == 0 {
			return g, fmt.Errorf("there are no control groups in %s", root)
		}
		parents = nil
		for _, path := range procs {
			parents = append(parents, filepath.Dir(path))
		}
	}
	for _, parent := range parents {
		dir := filepath.Join(parent, name)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) { // two hierarchies may be one
			return g, fmt.Errorf("make a control group: %w", err)
		}
		g.dirs = append(g.dirs, dir)
	}
	return g, nil
}

// divide makes groups of these names in each of them.
func (g groups) divide(names ...string) error {
	for _, dir := range g.dirs {
		for _, name := range names {
			if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("divide a control group: %w", err)
			}
		}
	}
	return nil
}

// remove removes them with all that is below; nothing runs in them any more.
func (g groups) remove() error {
	var errs []error
	for _, dir := range g.dirs {
		errs = append(errs, removeGroup(dir))
	}
	return errors.Join(errs...)
}

func removeGroup(dir string) error {
	below, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove a control group: %w", err)
	}
	for _, d := range below {
		if d.IsDir() {
			if err := removeGroup(filepath.Join(dir, d.Name())); err != nil {
				return err
			}
		}
	}
	for range 50 { // the kernel lets go of ended processes a little later
		if err = os.Remove(dir); err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("remove a control group: %w", err)
}

// settings are those of the kernel, as files, that kubelet changes for the whole
// machine, with what it wants them to be.
func settings() map[string]string {
	return map[string]string{
		"/proc/sys/vm/overcommit_memory":      "1",
		"/proc/sys/vm/panic_on_oom":           "0",
		"/proc/sys/kernel/panic":              "10",
		"/proc/sys/kernel/panic_on_oops":      "1",
		"/proc/sys/kernel/keys/root_maxkeys":  "1000000",
		"/proc/sys/kernel/keys/root_maxbytes": "25000000",
	}
}

// saved are the settings as they were.
func saved() (map[string][]byte, error) {
	was := map[string][]byte{}
	for path := range settings() {
		value, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read a setting of the kernel: %w", err)
		}
		was[path] = value
	}
	return was, nil
}

// restore makes them what they were. That something had changed is an error:
// the room should have kept it in.
func restore(was map[string][]byte) error {
	now, err := saved()
	if err != nil {
		return err
	}
	var errs []error
	for path, value := range was {
		errs = append(errs, put(path, value, now[path]))
	}
	return errors.Join(errs...)
}

// put writes what a setting was, where it is something else now.
func put(path string, was, now []byte) error {
	if bytes.Equal(was, now) {
		return nil
	}
	return errors.Join(
		fmt.Errorf("%s was %s and has become %s; it is put back", path, bytes.TrimSpace(was), bytes.TrimSpace(now)),
		os.WriteFile(path, was, 0o644),
	)
}
