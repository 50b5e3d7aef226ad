// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"unsafe"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/testkit/attack"
)

// deadEnv has the number of the system call that fails with EIO in the agent which this
// program becomes.
const deadEnv = "CHAOS_DEAD"

// becomeAgent makes this program an agent whose disk is dead.
func becomeAgent(number string) error {
	n, err := strconv.ParseUint(number, 10, 32)
	if err != nil {
		return err
	}
	runtime.LockOSThread() // the filter is the thread's, and the thread becomes the agent
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the number of the call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: uint32(n)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EIO)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	list := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&list)), 0, 0); err != nil {
		return err
	}
	agent := program("cadastre-agent")
	return syscall.Exec(agent, append([]string{agent}, os.Args[1:]...), os.Environ())
}

// onDeadDisk lets the agents of n begin with a disk that refuses a system call.
func (n *node) onDeadDisk(t *testing.T, call uintptr) {
	t.Helper()
	self, err := os.Executable()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	n.program, n.env = self, append(n.env, fmt.Sprint(deadEnv, "=", call))
}

// What an agent reads after kill -9 may never have reached the disk. If the agent cannot
// make that durable, it answers nothing from it.
func TestADatabaseThatCannotBeSynced(t *testing.T) {
	attack.Begin(t, attack.FullDisk).Add(1)
	g := NewWithT(t)
	n := newNode(t, roomyConf)
	a := n.start(t)
	n.mustAdd(t, "a")
	a.kill()
	n.onDeadDisk(t, unix.SYS_FSYNC)
	g.Expect(n.launch(t).mustEnd(t)).To(MatchRegexp("make it durable before it is used: .*input/output error"))
}
