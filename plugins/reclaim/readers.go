// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/witness"
)

// Readers read the witnesses. A nil reader is not applicable. An error that wraps
// witness.ErrNotApplicable means that this node does not have the source and does not
// need it; after any other error the witness is missing.
type Readers struct {
	Kernel  KernelReader
	Runtime RuntimeReader
	Engine  EngineReader
	Cluster ClusterReader
	// Results reads the CNI results that libcni keeps; nil: none are read. They name
	// namespaces that count.
	Results func() ([]witness.Attachment, error)
}

// KernelReader reads the network namespaces. paths are further files of namespaces.
type KernelReader interface {
	Read(ctx context.Context, paths []string) (*witness.KernelView, error)
}

// RuntimeReader reads the container runtime.
type RuntimeReader interface {
	Read(ctx context.Context) (*witness.RuntimeView, error)
}

// EngineReader reads the Docker engine.
type EngineReader interface {
	Read(ctx context.Context) (*witness.EngineView, error)
}

// ClusterReader reads the Kubernetes state that the agent follows.
type ClusterReader interface {
	Read(ctx context.Context) (*witness.ClusterView, error)
}

// limited is implemented by a reader that knows what its witness cannot prove here.
type limited interface{ Limits() string }

// errNoReader is the error of a witness without a reader.
var errNoReader = fmt.Errorf("the agent has no reader for it: %w", witness.ErrNotApplicable)

// readTimeout bounds the time that one witness may take.
const readTimeout = 10 * time.Second

// read reads all witnesses, one after the other.
func (p *Plugin) read(ctx context.Context, leases []ledger.Lease) *witness.World {
	w := &witness.World{Taken: p.Now().UTC(), Driver: p.Driver}
	p.readOne(ctx, w, witness.Cluster, p.Readers.Cluster, func(ctx context.Context, r *witness.Report) error {
		if p.Readers.Cluster == nil {
			return errNoReader
		}
		view, err := p.Readers.Cluster.Read(ctx)
		if err != nil {
			return err
		}
		w.Cluster = view
		r.Read, r.Objects = w.Cluster.Taken, len(w.Cluster.Pods)
		r.Source = fmt.Sprintf("state of revision %d", w.Cluster.Revision)
		return nil
	})
	p.readOne(ctx, w, witness.Engine, p.Readers.Engine, func(ctx context.Context, r *witness.Report) error {
		if p.Readers.Engine == nil {
			return errNoReader
		}
		view, err := p.Readers.Engine.Read(ctx)
		if err != nil {
			return err
		}
		w.Engine = view
		r.Read, r.Source = w.Engine.Taken, "Docker "+w.Engine.Version
		for i := range w.Engine.Networks {
			r.Objects += len(w.Engine.Networks[i].Endpoints)
		}
		return nil
	})
	p.readOne(ctx, w, witness.Runtime, p.Readers.Runtime, func(ctx context.Context, r *witness.Report) error {
		if p.noRuntime = p.Readers.Runtime == nil; p.noRuntime {
			return errNoReader
		}
		view, err := p.Readers.Runtime.Read(ctx)
		p.noRuntime = witness.Absent(err)
		if err != nil {
			return err
		}
		w.Runtime = view
		r.Read, r.Source, r.Objects = w.Runtime.Taken, w.Runtime.Source, len(w.Runtime.Sandboxes)
		return nil
	})
	p.readOne(ctx, w, witness.Kernel, p.Readers.Kernel, func(ctx context.Context, r *witness.Report) error {
		if p.Readers.Kernel == nil {
			return errNoReader
		}
		unknown := p.readResults(w)
		view, err := p.Readers.Kernel.Read(ctx, paths(leases, w))
		if err != nil {
			return err
		}
		if unknown != nil && view.Hidden == "" {
			view.Hidden = unknown.Error()
		}
		w.Kernel = view
		r.Read, r.Source, r.Limits = w.Kernel.Taken, "netlink", cmp.Or(w.Kernel.Hidden, w.Kernel.Limits)
		r.Objects = len(w.Kernel.Namespaces)
		return nil
	})
	slices.Reverse(w.Reports) // as witness.Names lists them
	return w
}

// readOne adds the report of one witness to w. A view is set only if there is no error.
func (p *Plugin) readOne(
	ctx context.Context,
	w *witness.World,
	name witness.Name,
	reader any,
	read func(context.Context, *witness.Report) error,
) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	began := p.Uptime()
	var found witness.Report
	err := read(ctx, &found)
	r := witness.ReportOf(name, err)
	r.Took = p.Uptime() - began
	if err == nil {
		r.Read, r.Source, r.Limits, r.Objects = found.Read, found.Source, found.Limits, found.Objects
		if l, ok := reader.(limited); ok && r.Limits == "" {
			r.Limits = l.Limits()
		}
	} else {
		r.Read = p.lastRead(name)
	}
	w.Reports = append(w.Reports, r)
	p.logChange(r, err)
}

// lastRead returns the time of the last view of a witness, zero if there is none.
func (p *Plugin) lastRead(name witness.Name) time.Time {
	if last := p.world.Load(); last != nil {
		return last.Report(name).Read
	}
	return time.Time{}
}

// logChange logs that a witness is missing, or present again.
func (p *Plugin) logChange(r witness.Report, err error) {
	before := witness.Present
	if last := p.world.Load(); last != nil {
		before = last.Report(r.Name).State
	}
	switch {
	case errors.Is(err, context.Canceled):
	case r.State == witness.Missing && before != witness.Missing:
		p.Log.Warn("a witness is missing: no lease that needs it is reclaimed", "witness", r.Name, "reason", r.Reason)
	case r.State == witness.Present && before == witness.Missing:
		p.Log.Info("a witness is present again", "witness", r.Name, "source", r.Source)
	}
}

// readResults adds the CNI results. Without them a namespace may count that does not seem to.
func (p *Plugin) readResults(w *witness.World) (err error) {
	if p.Readers.Results != nil {
		w.Attachments, err = p.Readers.Results()
	}
	return err
}

// paths returns the files of network namespaces that leases, the runtime and CNI results name.
func paths(leases []ledger.Lease, w *witness.World) (all []string) {
	for i := range leases {
		all = append(all, leases[i].NetNS)
	}
	if w.Runtime != nil {
		for i := range w.Runtime.Sandboxes {
			if s := &w.Runtime.Sandboxes[i]; !s.HostNet {
				all = append(all, s.NetNS)
			}
		}
	}
	for i := range w.Attachments {
		all = append(all, w.Attachments[i].NetNS)
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(path string) bool { return path == "" })
}

// Interface returns the addresses of an interface in the network namespace of a file.
// known is false if this node has no such namespace, or the agent cannot see it.
func (p *Plugin) Interface(
	ctx context.Context,
	netns, ifName string,
) (addrs []netip.Prefix, exists, known bool, err error) {
	if p.Readers.Kernel == nil {
		return nil, false, false, nil
	}
	view, err := p.Readers.Kernel.Read(ctx, []string{netns})
	if err != nil {
		return nil, false, false, err
	}
	ns := view.At(netns)
	if ns == nil {
		return nil, false, false, nil
	}
	for i := range ns.Links {
		if ns.Links[i].Name == ifName {
			return ns.Links[i].Addrs, true, true, nil
		}
	}
	return nil, false, true, nil
}
