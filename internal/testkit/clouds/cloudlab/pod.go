// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cloudlab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// Pod is a network namespace that a runtime attaches with cadastre-cni.
type Pod struct {
	Name      string
	Addresses []netip.Addr
	node      *Node
	ns        *netlab.Namespace
	attached  *stage.Attachment
	said      *strings.Builder // standard error of the plugins

	use  sync.RWMutex // held for reading while packets are sent, for writing by DEL
	gone bool
}

// newPod makes a pod without a network.
func (n *Node) newPod(name string) (*Pod, error) {
	ns, err := netlab.New()
	if err != nil {
		return nil, err
	}
	p := &Pod{Name: name, node: n, ns: ns, said: &strings.Builder{}}
	p.attached, err = stage.NewAttachment(n.Agent, n.ns.Do, n.listPath(), name, ns.Path())
	if err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	p.attached.Stderr = p.said
	return p, nil
}

// add runs ADD and tells the judge.
func (p *Pod) add(ctx context.Context) error {
	addresses, err := p.attached.Add(ctx)
	if err != nil {
		return fmt.Errorf("ADD %s on %s: %w", p.Name, p.node.Node, err)
	}
	p.Addresses = append(p.Addresses, addresses...)
	p.node.l.Judge.Added(time.Now(), p.Name, p.node.Machine, p.Addresses)
	return nil
}

// del tells the judge, and runs DEL until it succeeds, as a runtime does.
func (p *Pod) del(ctx context.Context) error {
	p.use.Lock()
	p.gone = true
	p.use.Unlock()
	p.node.l.Judge.Deleting(time.Now(), p.Name, p.node.Machine)
	var err error
	for ctx.Err() == nil {
		if err = p.attached.Del(ctx); err == nil {
			return p.ns.Close()
		}
		select {
		case <-ctx.Done():
		case <-time.After(Pace):
		}
	}
	return errors.Join(fmt.Errorf("DEL %s on %s: %w", p.Name, p.node.Node, err), p.ns.Close())
}

// end returns the pod as an end of an exchange in a family.
func (p *Pod) end(is4 bool) (stage.End, bool) {
	for _, a := range p.Addresses {
		if a.Is4() == is4 {
			return stage.End{Name: p.node.Node + "/" + p.Name, Address: a, Within: p.ns.Do}, true
		}
	}
	return stage.End{}, false
}
