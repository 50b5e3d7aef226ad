// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cloudlab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// Pod is a network namespace that a runtime attaches with cadastre-cni.
type Pod struct {
	Name      string
	Addresses []netip.Addr
	node      *Node
	ns        *netlab.Namespace
	list      *libcni.NetworkConfigList
	rt        *libcni.RuntimeConf
	said      *strings.Builder // standard error of the plugins

	use  sync.RWMutex // held for reading while packets are sent, for writing by DEL
	gone bool
}

// newPod makes a pod without a network.
func (n *Node) newPod(name string) (*Pod, error) {
	list, err := libcni.ConfListFromFile(n.listPath())
	if err != nil {
		return nil, err
	}
	ns, err := netlab.New()
	if err != nil {
		return nil, err
	}
	p := &Pod{Name: name, node: n, ns: ns, list: list, said: &strings.Builder{}}
	p.rt = &libcni.RuntimeConf{
		ContainerID: n.Node + "-" + name, NetNS: ns.Path(), IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", name}},
	}
	return p, nil
}

func (p *Pod) cni(f func(cni *libcni.CNIConfig) error) error {
	run := &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: p.said}}
	cni := libcni.NewCNIConfigWithCacheDir([]string{p.node.Bin}, filepath.Join(p.node.Dir, "cache"), run)
	return p.node.ns.Do(func() error { return f(cni) })
}

// add runs ADD and tells the judge.
func (p *Pod) add(ctx context.Context) error {
	var result *types100.Result
	err := p.cni(func(cni *libcni.CNIConfig) error {
		answer, err := cni.AddNetworkList(ctx, p.list, p.rt)
		if err == nil {
			result, err = types100.NewResultFromResult(answer)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("ADD %s on %s: %w", p.Name, p.node.Node, err)
	}
	for _, ip := range result.IPs {
		if a, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			p.Addresses = append(p.Addresses, a.Unmap())
		}
	}
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
		err = p.cni(func(cni *libcni.CNIConfig) error { return cni.DelNetworkList(ctx, p.list, p.rt) })
		if err == nil {
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
