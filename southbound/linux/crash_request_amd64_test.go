// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/testkit/effort"
)

// traced runs an order in a process of its own under ptrace, which sees each batch of netlink
// requests before the kernel does. The kernel executes request number last of all batches, and
// none of those behind it in its batch. Then the process is killed, as between two requests.
// 0: it survives, and traced returns their number.
func (o crashOrder) traced(t *testing.T, last int) (requests int) {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread() // only the thread that has started it may trace it
	defer runtime.UnlockOSThread()
	var out bytes.Buffer
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), crashEnv+"="+string(text))
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true, Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	x := &tracer{group: cmd.Process.Pid, last: last, inside: map[int]bool{}}
	status, err := x.follow()
	_ = cmd.Wait() // the tracer has waited for it already
	switch {
	case err != nil:
		t.Fatalf("seed %d, request %d: %v\n%s", o.Seed, last, err, out.String())
	case last == 0 && status.ExitStatus() != 0:
		t.Fatalf("seed %d: %v\n%s", o.Seed, status, out.String())
	case x.requests < last && status.ExitStatus() == 0: // it took fewer requests this time, and survived
	case last > 0 && status.Signal() != unix.SIGKILL:
		t.Fatalf("seed %d: the process was not killed at request %d of %d: %v\n%s", o.Seed, last, x.requests, status, out.String())
	}
	return x.requests
}

// tracer follows the threads of a process.
type tracer struct {
	group    int
	last     int
	requests int
	inside   map[int]bool // threads that are in a system call
	kills    int          // the thread whose call ends with a kill
}

// follow runs the process until it ends.
func (x *tracer) follow() (status unix.WaitStatus, err error) {
	if _, err := unix.Wait4(x.group, &status, unix.WALL, nil); err != nil {
		return status, fmt.Errorf("wait for its start: %w", err)
	}
	const options = unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_EXITKILL
	if err := unix.PtraceSetOptions(x.group, options); err != nil {
		return status, fmt.Errorf("set the options of the trace: %w", err)
	}
	for thread, signal := x.group, 0; ; {
		if err := unix.PtraceSyscall(thread, signal); err != nil && !errors.Is(err, unix.ESRCH) {
			return status, fmt.Errorf("continue thread %d: %w", thread, err)
		}
		for signal = 0; ; {
			if thread, err = unix.Wait4(-x.group, &status, unix.WALL, nil); err != nil {
				return status, fmt.Errorf("wait for a thread: %w", err)
			}
			if thread == x.group && (status.Exited() || status.Signaled()) {
				return status, nil
			}
			if status.Stopped() {
				break
			}
		}
		switch stop := status.StopSignal(); {
		case stop == unix.SIGTRAP|0x80:
			if err := x.call(thread); err != nil {
				return status, err
			}
		case stop != unix.SIGTRAP && stop != unix.SIGSTOP: // these are of the trace
			signal = int(stop)
		}
	}
}

// call is called when a thread enters a system call, and when it leaves it.
func (x *tracer) call(thread int) error {
	if x.inside[thread] = !x.inside[thread]; !x.inside[thread] {
		if thread == x.kills {
			return unix.Kill(x.group, unix.SIGKILL)
		}
		return nil
	}
	var regs unix.PtraceRegs
	if err := unix.PtraceGetRegs(thread, &regs); err != nil {
		return fmt.Errorf("read the registers: %w", err)
	}
	if regs.Orig_rax != unix.SYS_SENDTO || x.kills != 0 {
		return nil
	}
	packet := make([]byte, min(regs.Rdx, 1<<20))
	if _, err := unix.ProcessVMReadv(thread,
		[]unix.Iovec{{Base: unsafe.SliceData(packet), Len: uint64(len(packet))}},
		[]unix.RemoteIovec{{Base: uintptr(regs.Rsi), Len: len(packet)}}, 0); err != nil {
		return fmt.Errorf("read a packet: %w", err)
	}
	end, found := x.cut(packet)
	if !found {
		return nil
	}
	x.kills, regs.Rdx = thread, uint64(end)
	if err := unix.PtraceSetRegs(thread, &regs); err != nil {
		return fmt.Errorf("cut a packet: %w", err)
	}
	return nil
}

// cut counts the requests of a packet. If the last one to be executed is among them, it returns
// its end.
func (x *tracer) cut(packet []byte) (end int, found bool) {
	for end+unix.SizeofNlMsghdr <= len(packet) {
		size := int(binary.NativeEndian.Uint32(packet[end:]))
		flags := binary.NativeEndian.Uint16(packet[end+6:])
		if size < unix.SizeofNlMsghdr || end+size > len(packet) || flags&(unix.NLM_F_REQUEST|unix.NLM_F_ACK) != unix.NLM_F_REQUEST|unix.NLM_F_ACK {
			return 0, false // a dump, or no netlink
		}
		end += (size + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1)
		if x.requests++; x.requests == x.last {
			return end, true
		}
	}
	return 0, false
}

// TestAProcessIsKilledBetweenTwoRequests ends a process behind each request of random
// transactions over values of every kind. A new process then ends where one fresh resync ends.
func TestAProcessIsKilledBetweenTwoRequests(t *testing.T) {
	t.Parallel()
	l := newCrashLab(t)
	l.resync(nil)
	empty := l.state()
	first, count := effort.Seeds(t, 1)
	for seed := first; seed < first+count; seed++ {
		o := l.order
		o.Seed = seed
		_, final := o.transactions()
		want := l.once(final)
		requests := o.traced(t, 0)
		l.ends(empty, want, final, fmt.Sprintf("seed %d, survives", seed))
		stride := 1
		switch level := effort.Level(t); { // one takes a second
		case level < effort.Nightly:
			stride = max(1, requests/12)
		case level < effort.Long:
			stride = max(1, requests/60)
		}
		for last := 1 + int(seed)%stride; last <= requests; last += stride {
			o.traced(t, last)
			l.ends(empty, want, final, fmt.Sprintf("seed %d, behind request %d of %d", seed, last, requests))
		}
	}
}
