// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// roomVerb makes the program the first process of a room.
const roomVerb = "room"

// roomReady is its output when the room is furnished.
const roomReady = "ready\n"

// room is a network, mount and PID namespace with a /run of its own. All that
// runs in it ends with its first process, which ends with this one, and its
// mounts and interfaces go with it.
type room struct {
	first      *exec.Cmd
	stdin      io.Closer
	namespaces []*os.File
}

// clones are the namespaces of a room, by their names below /proc/PID/ns.
func clones() map[string]int {
	return map[string]int{"mnt": unix.CLONE_NEWNS, "net": unix.CLONE_NEWNET, "pid": unix.CLONE_NEWPID}
}

// openRoom makes a room whose /run is a directory of dir.
func openRoom(ctx context.Context, dir string) (r *room, err error) {
	if err := os.MkdirAll(runDir(dir), 0o755); err != nil {
		return nil, fmt.Errorf("open a room: %w", err)
	}
	cmd, err := stage.Again(context.WithoutCancel(ctx), "--dir", dir, roomVerb)
	if err != nil {
		return nil, fmt.Errorf("open a room: %w", err)
	}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	for _, flag := range clones() {
		cmd.SysProcAttr.Cloneflags |= uintptr(flag)
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("open a room: %w", err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("open a room: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("open a room: %w", err)
	}
	r = &room{first: cmd, stdin: stdin}
	if _, err := io.ReadFull(stdout, make([]byte, len(roomReady))); err != nil {
		return nil, errors.Join(fmt.Errorf("open a room: its first process is not ready: %w", err), r.close())
	}
	for name := range clones() {
		file, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", cmd.Process.Pid, name))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open a room: %w", err), r.close())
		}
		r.namespaces = append(r.namespaces, file)
	}
	return r, nil
}

// runDir returns the path of the folder that is /run inside.
func runDir(dir string) string { return filepath.Join(dir, "run") }

// within calls f on a thread in the room, for processes to be started there. The
// thread has to end with its goroutine, since nothing leads back.
func (r *room) within(f func() error) error {
	runtime.LockOSThread() // for good
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("enter the room: %w", err)
	}
	for _, file := range r.namespaces {
		if err := unix.Setns(int(file.Fd()), 0); err != nil {
			return fmt.Errorf("enter the room: %w", err)
		}
	}
	return f()
}

// do is within, on a goroutine of its own.
func (r *room) do(f func() error) error {
	done := make(chan error, 1)
	go func() { done <- r.within(f) }()
	return <-done
}

// close ends the room with all that is in it.
func (r *room) close() error {
	for _, file := range r.namespaces {
		_ = file.Close()
	}
	err := r.stdin.Close() // which ends the first process
	ended := time.AfterFunc(10*time.Second, func() { _ = r.first.Process.Kill() })
	err = errors.Join(err, r.first.Wait())
	if !ended.Stop() {
		err = errors.Join(errors.New("it had to be killed"), err)
	}
	if err != nil {
		return fmt.Errorf("close the room: %w", err)
	}
	return nil
}

// serveRoom is the first process: it furnishes the room, and reaps orphaned
// processes, until its input is closed.
func serveRoom(dir string, stdin io.Reader, stdout io.Writer) error {
	if os.Getpid() != 1 {
		return errors.New("room is for the program itself")
	}
	children := make(chan os.Signal, 16)
	signal.Notify(children, unix.SIGCHLD)
	signal.Ignore(unix.SIGINT, unix.SIGTERM) // it ends when it is told to
	if err := furnish(dir); err != nil {
		return err
	}
	if _, err := io.WriteString(stdout, roomReady); err != nil {
		return err
	}
	over := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		close(over)
	}()
	for {
		select {
		case <-over:
			return nil
		case <-children:
			for {
				if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); pid <= 0 || err != nil {
					break
				}
			}
		}
	}
}

// furnish mounts what is the room's own and sets up its loopback interface.
func furnish(dir string) error {
	for _, m := range []struct {
		source, target, kind string
		flags                uintptr
	}{
		{"", "/", "", unix.MS_REC | unix.MS_PRIVATE}, // nothing is seen outside
		{runDir(dir), "/run", "", unix.MS_BIND},
		{"", "/run", "", unix.MS_SHARED}, // within the room: network namespaces are mounted below it
		{"proc", "/proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
	} {
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	return netlink.LinkSetUp(lo)
}
