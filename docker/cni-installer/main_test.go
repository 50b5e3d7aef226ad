// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
)

func TestInstall(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string, mode os.FileMode) {
		g.Expect(os.WriteFile(path(name), []byte(text), mode)).To(Succeed())
		g.Expect(os.Chmod(path(name), mode)).To(Succeed())
	}
	write("plugin", "one", 0o755)
	write("conf", "{}", 0o644)
	var stdout bytes.Buffer
	args := []string{path("plugin") + "=" + path("opt/cni/bin/plugin"), path("conf") + "=" + path("etc/cni/10-a.conf")}
	g.Expect(run(args, &stdout, io.Discard)).To(BeZero())
	g.Expect(stdout.String()).To(Equal(path("opt/cni/bin/plugin") + " installed\n" + path("etc/cni/10-a.conf") + " installed\n"))
	info, err := os.Stat(path("opt/cni/bin/plugin"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(info.Mode().Perm()).To(Equal(os.FileMode(0o755)), "whatever the umask")

	running, err := os.Open(path("opt/cni/bin/plugin")) // a process has the old one open
	g.Expect(err).NotTo(HaveOccurred())
	defer running.Close()
	stdout.Reset()
	write("plugin", "two", 0o755)
	g.Expect(run(args, &stdout, io.Discard)).To(BeZero())
	g.Expect(stdout.String()).To(Equal(path("opt/cni/bin/plugin") + " installed\n" + path("etc/cni/10-a.conf") + " is the same already\n"))
	old, err := io.ReadAll(running)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(old)).To(Equal("one"), "a program that runs is not changed")
	now, err := os.ReadFile(path("opt/cni/bin/plugin"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(now)).To(Equal("two"))

	g.Expect(os.Chmod(path("opt/cni/bin/plugin"), 0o644)).To(Succeed())
	g.Expect(run(args[:1], io.Discard, io.Discard)).To(BeZero())
	info, err = os.Stat(path("opt/cni/bin/plugin"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(info.Mode().Perm()).To(Equal(os.FileMode(0o755)), "a mode is part of it")
	left, err := filepath.Glob(path("opt/cni/bin/.*"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(left).To(BeEmpty())
}

func TestWhatCannotBeInstalled(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	source := filepath.Join(dir, "source")
	g.Expect(os.WriteFile(source, nil, 0o600)).To(Succeed())
	g.Expect(os.MkdirAll(filepath.Join(dir, "full", "x"), 0o700)).To(Succeed())
	for arg, code := range map[string]int{
		"": 2, "x": 2, "=x": 2, "x=": 2, filepath.Join(dir, "none") + "=" + filepath.Join(dir, "a"): 1,
		source + "=" + filepath.Join(dir, "full"): 1, source + "=" + filepath.Join(source, "below"): 1,
	} {
		var stderr bytes.Buffer
		g.Expect(run([]string{arg}, io.Discard, &stderr)).To(Equal(code), arg)
		g.Expect(stderr.String()).To(HavePrefix("cni-installer: "), arg)
	}
	g.Expect(run(nil, io.Discard, io.Discard)).To(Equal(2))
	left, err := filepath.Glob(filepath.Join(dir, ".*"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(left).To(BeEmpty())
}
