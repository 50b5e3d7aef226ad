// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
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
	Runtime Reader[*witness.RuntimeView]
	Engine  Reader[*witness.EngineView]
	Cluster Reader[*witness.ClusterView]
	// Results reads the CNI results that libcni keeps; nil: none are read. They name
	// namespaces that count.
	Results func() ([]witness.Attachment, error)
}

// Reader reads one witness.
type Reader[V view] interface {
	Read(ctx context.Context) (V, error)
}

// view is what a witness has shown. Its report describes it.
type view interface{ Report() witness.Report }

// KernelReader reads the network namespaces. paths are further files of namespaces.
type KernelReader interface {
	Read(ctx context.Context, paths []string) (*witness.KernelView, error)
}

// errNoReader is the error of a witness without a reader.
var errNoReader = fmt.Errorf("the agent has no reader for it: %w", witness.ErrNotApplicable)

// readTimeout bounds the time that one witness may take.
const readTimeout = 10 * time.Second

// read reads all witnesses, one after the other. The kernel is the last one: the others name
// namespaces.
func (p *Plugin) read(ctx context.Context, leases []ledger.Lease) *witness.World {
	w := &witness.World{Taken: p.Now().UTC(), Driver: p.Driver}
	w.Cluster = readOne(ctx, p, w, witness.Cluster, p.Readers.Cluster)
	w.Engine = readOne(ctx, p, w, witness.Engine, p.Readers.Engine)
	w.Runtime = readOne(ctx, p, w, witness.Runtime, p.Readers.Runtime)
	var kernel Reader[*witness.KernelView]
	if p.Readers.Kernel != nil {
		unknown := p.readResults(w)
		kernel = namespaces{p.Readers.Kernel, paths(leases, w), unknown}
	}
	w.Kernel = readOne(ctx, p, w, witness.Kernel, kernel)
	slices.Reverse(w.Reports) // as witness.Names lists them
	return w
}

// namespaces reads the kernel after the other witnesses.
type namespaces struct {
	kernel  KernelReader
	paths   []string
	unknown error // of the CNI results
}

// Read returns the namespaces. Without the CNI results one may count that does not seem to.
func (n namespaces) Read(ctx context.Context) (*witness.KernelView, error) {
	view, err := n.kernel.Read(ctx, n.paths)
	if err == nil && n.unknown != nil && view.Hidden == "" {
		view.Hidden = n.unknown.Error()
	}
	return view, err
}

// readOne returns the view of one witness, nil if there is an error, and adds its report to w.
func readOne[V view](ctx context.Context, p *Plugin, w *witness.World, name witness.Name, reader Reader[V]) (shown V) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	found, err := shown, errNoReader
	if reader != nil {
		found, err = reader.Read(ctx)
	}
	r := witness.ReportOf(name, err)
	if err == nil {
		shown, r = found, found.Report()
	} else {
		r.Read = p.lastRead(name)
	}
	w.Reports = append(w.Reports, r)
	p.logChange(r, err)
	return shown
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

// readResults adds the CNI results.
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
