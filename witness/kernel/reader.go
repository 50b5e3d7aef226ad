// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cadastre/cadastre/internal/rtnl"
	"github.com/cadastre/cadastre/witness"
)

// Options configures a Reader. The zero value reads the whole machine.
type Options struct {
	// Host is a file of the network namespace that counts as the host's. "": that of this
	// process. Another one needs CAP_SYS_ADMIN.
	Host string
	// Dirs are folders with the files of network namespaces. nil: DefaultDirs. The namespaces
	// of a folder count, as those of Docker's, unless it is one of SharedDirs.
	Dirs []string
	// Proc is the mount point of a procfs whose processes are asked for their network
	// namespaces. "": /proc. A procfs of the host may be mounted elsewhere, in place of
	// hostPID.
	Proc string
	// NoProcesses leaves out the namespaces that only processes show, for a program that
	// shares the machine with nodes that are not its own.
	NoProcesses bool
	// Now returns the time. nil: time.Now.
	Now func() time.Time
}

// DefaultDirs returns the folders in which containerd, CRI-O, "ip netns" and the Docker
// engine keep the files of network namespaces.
func DefaultDirs() []string { return []string{"/var/run/netns", "/var/run/docker/netns"} }

// SharedDirs returns the folders whose files say nothing about their makers: runtimes, "ip
// netns" and whatever else root starts use the same one.
func SharedDirs() []string { return []string{"/var/run/netns", "/run/netns"} }

// Reader reads the network namespaces of this node. It has no state between two reads.
type Reader struct {
	host      string
	dirs      []string
	proc      string // "": no processes
	now       func() time.Time
	mountinfo string
}

// New returns a reader. It touches nothing before Read.
func New(o Options) *Reader {
	r := &Reader{host: o.Host, dirs: o.Dirs, proc: o.Proc, now: o.Now, mountinfo: "/proc/self/mountinfo"}
	if r.dirs == nil {
		r.dirs = DefaultDirs()
	}
	switch {
	case o.NoProcesses:
		r.proc = ""
	case r.proc == "":
		r.proc = "/proc"
	}
	if r.now == nil {
		r.now = time.Now
	}
	return r
}

// Read returns all network namespaces that it finds: the host's, the files below the folders,
// the namespaces of processes, those of paths, and those that the host's links lead to. paths
// are the files that leases, the runtime and libcni's cache name: their namespaces count. Read
// fails if the host's own namespace cannot be read; the view's Hidden names other namespaces
// that exist and cannot be read.
func (r *Reader) Read(ctx context.Context, paths []string) (*witness.KernelView, error) {
	view := &witness.KernelView{Taken: r.now()}
	err := onThread(func(t *thread) error { return r.read(ctx, t, paths, view) })
	if err != nil {
		return nil, fmt.Errorf("read the network namespaces: %w", err)
	}
	return view, nil
}

// read runs on a thread that may move between namespaces.
func (r *Reader) read(ctx context.Context, t *thread, paths []string, view *witness.KernelView) (err error) {
	if r.host != "" {
		if err := t.enterFile(r.host); err != nil {
			return fmt.Errorf("host: %w", err)
		}
	}
	host, err := dial()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, host.Close()) }()
	self, err := os.Open(current)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, self.Close()) }()
	ns, err := readHost(host)
	if err != nil {
		return fmt.Errorf("host: %w", err)
	}
	found := r.find(paths)
	ns.Paths = found.take(ns.ID)
	view.Namespaces = append(view.Namespaces, ns)

	round := &round{host: host, thread: t, hidden: &found.hidden, ids: map[int32]bool{}}
	for _, c := range found.candidates() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if ns := round.candidate(c); ns != nil {
			view.Namespaces = append(view.Namespaces, *ns)
		}
	}
	// The kernel gives the host an ID for itself when it tells of a link that leads here.
	nsid, err := host.getID(int(self.Fd()))
	if err != nil {
		return err
	}
	round.ids[nsid] = true
	linked, err := round.linked(ctx)
	if err != nil {
		return err
	}
	view.Namespaces = append(view.Namespaces, linked...)
	if nsid, err = host.getID(int(self.Fd())); err != nil { // the links of linked may be the first that lead here
		return err
	}
	view.Namespaces[0].NSID = int(nsid)
	count(view.Namespaces)
	r.checkPropagation(round.plain, &found.hidden)
	view.Hidden = found.hidden.String()
	view.Limits = r.limits()
	return nil
}

// readHost returns the namespace that the thread is in, that of the host.
func readHost(c *conn) (ns witness.Namespace, err error) {
	ns.Host, ns.Counts = true, true
	if ns.ID, err = identify(current); err != nil {
		return ns, err
	}
	if ns.Links, err = c.links(rtnl.Here); err != nil {
		return ns, err
	}
	if ns.Routes, ns.OtherRoutes, err = c.allRoutes(); err != nil {
		return ns, err
	}
	ns.Neighbours, err = c.neighbours()
	return ns, err
}
