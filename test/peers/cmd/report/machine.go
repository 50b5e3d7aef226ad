// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// machineFile keeps, beside the raw results, what they depend on.
func machineFile(out string) string { return filepath.Join(out, "machine.txt") }

// describeMachine is one sentence on the machine, before anything is run.
func describeMachine(o options) string {
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease") // not there: not said
	load, _ := os.ReadFile("/proc/loadavg")
	lastMinute, _, _ := strings.Cut(string(load), " ")
	dir := os.Getenv("DIR")
	if dir == "" {
		dir = os.TempDir()
	}
	return fmt.Sprintf(
		"%s, %d processors; Linux %s; %s; durable rows on %s. Medians of %d runs of %s each; load average before the first: %s.",
		cpuModel(),
		runtime.NumCPU(),
		bytes.TrimSpace(kernel),
		runtime.Version(),
		fileSystem(dir),
		o.count,
		o.benchtime,
		lastMinute,
	)
}

func cpuModel() string {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown processor"
	}
	for line := range strings.Lines(string(info)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
			return strings.TrimSpace(v)
		}
	}
	return runtime.GOARCH
}

// fileSystem names what a folder is on, by statfs(2)'s magic numbers.
func fileSystem(dir string) string {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return "an unknown file system"
	}
	switch uint32(s.Type) {
	case 0xEF53:
		return "ext4"
	case 0x58465342:
		return "XFS"
	case 0x9123683E:
		return "Btrfs"
	case 0x01021994:
		return "tmpfs, where nothing is durable"
	case 0x794C7630:
		return "overlayfs"
	}
	return fmt.Sprintf("file system %#x", s.Type)
}
