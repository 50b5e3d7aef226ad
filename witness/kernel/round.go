// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/rtnl"
	"github.com/cadastre/cadastre/witness"
)

// round reads the namespaces of one view, one after the other, through the socket of
// the host's namespace. At most one namespace is open at a time.
type round struct {
	host   *conn
	thread *thread
	hidden *hidden
	ids    map[int32]bool // of the namespaces that were read
	plain  []string       // files that are not namespaces
}

// candidate reads the namespace that a candidate is; nil if it has vanished, is not a
// network namespace, or is hidden.
func (r *round) candidate(c *candidate) *witness.Namespace {
	open, name := r.open(c)
	if open == nil {
		return nil
	}
	ns := &witness.Namespace{ID: c.id, Counts: c.named, Paths: c.paths()}
	nsid, err := r.host.id(open.Fd())
	if err == nil {
		r.ids[nsid] = true
		ns.NSID = int(nsid)
		ns.Links, err = r.host.links(nsid)
	}
	if err == nil {
		err = r.thread.inside(open.Fd(), r.host, ns)
	}
	err = cmp.Or(err, open.Close())
	if err != nil {
		r.hide(name, err)
		return nil
	}
	return ns
}

// open opens a candidate by the first of its names that still leads to it, nil if there is
// none, or if the candidate is not a network namespace.
func (r *round) open(c *candidate) (ns *rtnl.Namespace, name string) {
	names := slices.Clone(c.files)
	for _, pid := range c.pids {
		names = append(names, processFile(c.proc, pid))
	}
	for i, name := range names {
		ns, err := openNamespace(name, c.id)
		switch {
		case err == nil:
			return ns, name
		case vanished(err):
		case errors.Is(err, rtnl.ErrNone):
			if i < len(c.files) {
				r.plain = append(r.plain, c.files...)
			}
			return nil, ""
		case exists(name):
			r.hide(name, err)
			return nil, ""
		}
	}
	return nil, ""
}

// openNamespace opens a file if it is the namespace with an identity. It fails with
// ErrNotExist if the path leads elsewhere by now, and with rtnl.ErrNone if it is no network
// namespace.
func openNamespace(path string, id witness.NamespaceID) (*rtnl.Namespace, error) {
	is, err := identify(path)
	if err == nil && is != id {
		return nil, os.ErrNotExist
	}
	ns, err := rtnl.Open(path)
	if err != nil {
		return nil, err
	}
	if opened := (witness.NamespaceID{Dev: ns.ID().Device, Inode: ns.ID().Inode}); opened != id {
		return nil, errors.Join(os.ErrNotExist, ns.Close())
	}
	return ns, nil
}

// linked reads the namespaces that the host's namespace has an ID for and that no file
// and no process has shown. The other end of a link of the host leads to them.
func (r *round) linked(ctx context.Context) (all []witness.Namespace, err error) {
	ids, err := r.host.ids()
	if err != nil {
		return nil, err
	}
	for _, nsid := range ids {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if r.ids[nsid] {
			continue
		}
		ns := witness.Namespace{NSID: int(nsid), RoutesHidden: true}
		ns.Links, err = r.host.links(nsid)
		switch {
		case err == nil:
			all = append(all, ns)
		case !errors.Is(err, unix.EINVAL): // the answer for a namespace that ends
			r.hide(fmt.Sprintf("nsid %d", nsid), err)
		}
	}
	return all, nil
}

// hide records a namespace that exists and cannot be read.
func (r *round) hide(name string, err error) {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		err = fmt.Errorf("%w: CAP_NET_ADMIN is needed", err)
	}
	r.hidden.add(name, err)
}
