// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kernel_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/witness"
	"github.com/cadastre/cadastre/witness/kernel"
)

// childEnv holds a request of a test for a process of its own.
const childEnv = "CADASTRE_TEST_KERNEL_CHILD"

// request says what a child reads, and how. Without the capabilities of Drop it starts
// itself once more.
type request struct {
	Dirs        []string
	Proc        string
	NoProcesses bool
	Paths       []string
	Drop        []uintptr
	MountProc   string // a folder for a procfs of the child's own PID namespace
}

// read reads the namespaces in a process of its own, in the host's namespace.
func (n *node) read(q request, cloneflags uintptr) *witness.KernelView {
	n.t.Helper()
	text, err := json.Marshal(q)
	must(n.t, err)
	self, err := os.Executable()
	must(n.t, err)
	cmd := exec.CommandContext(n.t.Context(), self)
	cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: cloneflags &^ unix.CLONE_NEWNS, Unshareflags: cloneflags & unix.CLONE_NEWNS}
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	n.do(cmd.Start)
	if err := cmd.Wait(); err != nil {
		n.t.Fatalf("child: %v\n%s", err, stderr.String())
	}
	var v witness.KernelView
	must(n.t, json.Unmarshal(out.Bytes(), &v))
	return &v
}

// child answers a request of read.
func child() error {
	var q request
	if err := json.Unmarshal([]byte(os.Getenv(childEnv)), &q); err != nil {
		return err
	}
	if len(q.Drop) > 0 {
		return startWithout(q)
	}
	if q.MountProc != "" {
		if err := unix.Mount("proc", q.MountProc, "proc", 0, ""); err != nil {
			return fmt.Errorf("mount proc: %w", err)
		}
	}
	r := kernel.New(kernel.Options{Dirs: q.Dirs, Proc: q.Proc, NoProcesses: q.NoProcesses})
	v, err := r.Read(context.Background(), q.Paths)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(v)
}

// startWithout replaces the process by one without some capabilities: a new program of
// root gets those of its bounding set.
func startWithout(q request) error {
	runtime.LockOSThread()
	for _, c := range q.Drop {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	q.Drop = nil
	text, err := json.Marshal(q)
	if err != nil {
		return err
	}
	env := slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, childEnv+"=") })
	return syscall.Exec("/proc/self/exe", os.Args, append(env, childEnv+"="+string(text)))
}

func TestMissingCapabilities(t *testing.T) {
	n := newNode(t)
	_, path := n.pod("pod1", "10.1.5.2/24")
	n.process(newNamespace(t), "10.1.5.9/32", 65534)

	for name, c := range map[string]struct {
		drop         []uintptr
		noProcesses  bool
		found        bool // the address of the pod
		routesHidden bool
		hidden       string
	}{
		"all":                  {found: true},
		"NET_ADMIN is missing": {drop: []uintptr{unix.CAP_NET_ADMIN}, noProcesses: true, hidden: path + ": .*CAP_NET_ADMIN"},
		"SYS_ADMIN is missing": {drop: []uintptr{unix.CAP_SYS_ADMIN}, noProcesses: true, found: true, routesHidden: true},
		"SYS_PTRACE is missing": {
			drop: []uintptr{unix.CAP_SYS_PTRACE}, found: true,
			hidden: "process [0-9]+: .*CAP_SYS_PTRACE",
		},
	} {
		t.Run(name, func(t *testing.T) {
			n.t = t
			g := NewWithT(t)
			v := n.read(request{Dirs: []string{n.dir}, NoProcesses: c.noProcesses, Drop: c.drop}, 0)
			if c.hidden == "" {
				g.Expect(v.Hidden).To(BeEmpty())
			} else {
				g.Expect(v.Hidden).To(MatchRegexp(c.hidden))
			}
			if !c.found {
				g.Expect(found(v, "10.1.5.2")).To(BeEmpty())
				return
			}
			g.Expect(found(v, "10.1.5.2")).To(Equal([]string{path + " eth0"}))
			g.Expect(v.At(path).RoutesHidden).To(Equal(c.routesHidden))
			g.Expect(len(v.At(path).Routes) == 0).To(Equal(c.routesHidden))
		})
	}
}

// In a container that mounts the folder without propagation, the files of new pods are
// plain files.
func TestAFolderWithoutPropagation(t *testing.T) {
	g := NewWithT(t)
	n := newNode(t)
	source, folder := t.TempDir(), n.dir
	must(t, unix.Mount(source, folder, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(folder, unix.MNT_DETACH) })
	must(t, os.WriteFile(filepath.Join(source, "pod1"), nil, 0o600))

	g.Expect(n.read(request{Dirs: []string{folder}, NoProcesses: true}, unix.CLONE_NEWNS).Hidden).To(ContainSubstring("HostToContainer"))
	must(t, unix.Mount("", folder, "", unix.MS_SHARED, ""))
	g.Expect(n.read(request{Dirs: []string{folder}, NoProcesses: true}, 0).Hidden).To(BeEmpty())
	must(t, unix.Mount("", folder, "", unix.MS_PRIVATE, ""))
	must(t, os.Remove(filepath.Join(source, "pod1")))
	g.Expect(n.read(request{Dirs: []string{folder}, NoProcesses: true}, unix.CLONE_NEWNS).Hidden).To(BeEmpty(), "an empty folder proves nothing")
}

func TestWithoutTheProcessesOfTheHost(t *testing.T) {
	g := NewWithT(t)
	n := newNode(t)
	n.process(newNamespace(t), "10.1.5.9/32", 0)
	proc := t.TempDir()
	v := n.read(request{Dirs: []string{n.dir}, Proc: proc, MountProc: proc}, unix.CLONE_NEWNS|unix.CLONE_NEWPID)
	g.Expect(v.Hidden).To(BeEmpty())
	g.Expect(found(v, "10.1.5.9")).To(BeEmpty())
	g.Expect(v.Limits).To(ContainSubstring("hostPID"))

	v = n.read(request{Dirs: []string{n.dir}}, unix.CLONE_NEWPID) // the procfs is the host's
	g.Expect(found(v, "10.1.5.9")).To(HaveLen(1))
	g.Expect(v.Limits).To(BeEmpty())
}
