// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// A file in the run directory frees leases, so only the agent's user may write there.
func TestARunDirectoryThatOthersMayWriteTo(t *testing.T) {
	uid := os.Geteuid()
	for name, c := range map[string]struct {
		spoil func(dir string) error
		uid   int
		say   []string // besides the directory
	}{
		"all users":      {func(dir string) error { return os.Chmod(dir, 0o1777) }, uid, []string{"0777", "0700"}},
		"its group":      {func(dir string) error { return os.Chmod(dir, 0o770) }, uid, []string{"0770", "0700"}},
		"its owner":      {func(string) error { return nil }, uid + 1, []string{fmt.Sprint("owned by user ", uid), fmt.Sprint("must be owned by user ", uid+1)}},
		"all, below it":  {func(dir string) error { return makeMode(filepath.Join(dir, "del"), 0o777) }, uid, []string{"/del", "0777"}},
		"a link to more": {func(dir string) error { return os.Symlink("/etc/passwd", filepath.Join(dir, cni.LockFile)) }, uid, []string{cni.LockFile}},
		"a pipe":         {func(dir string) error { return syscall.Mkfifo(filepath.Join(dir, cni.LockFile), 0o600) }, uid, nil},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			dir := filepath.Join(t.TempDir(), "run")
			g.Expect(os.Mkdir(dir, 0o700)).To(Succeed())
			g.Expect(c.spoil(dir)).To(Succeed())
			lock, err := lockRunDir(dir, c.uid)
			if c.say == nil { // it neither waits nor fails
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(lock.Close()).To(Succeed())
				return
			}
			g.Expect(err).To(MatchError(ContainSubstring("use run directory " + dir)))
			for _, say := range c.say {
				g.Expect(err).To(MatchError(ContainSubstring(say)))
			}
		})
	}
}

func makeMode(dir string, mode os.FileMode) error {
	if err := os.Mkdir(dir, mode); err != nil {
		return err
	}
	return os.Chmod(dir, mode)
}

func TestARunDirectoryIsMade(t *testing.T) {
	g := NewWithT(t)
	dir := filepath.Join(t.TempDir(), "not", "there", "yet")
	lock, err := lockRunDir(dir, os.Geteuid())
	g.Expect(err).NotTo(HaveOccurred())
	_, err = lockRunDir(dir, os.Geteuid())
	g.Expect(err).To(MatchError(ContainSubstring("another agent")))
	g.Expect(lock.Close()).To(Succeed())
	in := cni.Intent{Network: "pods", ContainerID: "c1", IfName: "eth0"}
	g.Expect(in.Write(cni.IntentDir(filepath.Join(dir, socketName)))).To(Succeed(), "a DEL is kept there while no agent runs")
}
