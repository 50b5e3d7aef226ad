// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// What Kubernetes and CNI call a pod's parts here.
const (
	PodNamespace = "demo"
	PodInterface = "eth0"
)

// Pod is a network namespace with the address that it was given.
type Pod struct {
	Name    string
	ns      *netlab.Namespace // nil for WayNone
	netns   string            // CNI_NETNS
	Address netip.Prefix
	Gateway netip.Addr
}

// NewPod makes a pod without an address; without namespaces it has a path below
// dir where none is.
func NewPod(name string, w Way, dir string) (*Pod, error) {
	p := &Pod{Name: name, netns: filepath.Join(dir, "no-namespace-of-"+name)}
	if w == WayNone {
		return p, nil
	}
	ns, err := netlab.New()
	if err != nil {
		return nil, err
	}
	p.ns, p.netns = ns, ns.Path()
	return p, nil
}

// NetNS returns the path of the namespace, as CNI_NETNS has it.
func (p *Pod) NetNS() string { return p.netns }

// Do calls f inside the namespace.
func (p *Pod) Do(f func() error) error { return p.ns.Do(f) }

// Close lets go of the namespace.
func (p *Pod) Close() error {
	if p.ns == nil {
		return nil
	}
	return p.ns.Close()
}

// ContainerID looks like a container runtime's.
func (p *Pod) ContainerID() string {
	return fmt.Sprintf("%x", sha256.Sum256([]byte(PodNamespace+"/"+p.Name)))
}

func (p *Pod) runtimeConf() *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: p.ContainerID(), NetNS: p.netns, IfName: PodInterface, Args: [][2]string{
		{"IgnoreUnknown", "1"},
		{"K8S_POD_NAMESPACE", PodNamespace}, {"K8S_POD_NAME", p.Name}, {"K8S_POD_INFRA_CONTAINER_ID", p.ContainerID()},
	}}
}

// take takes what ADD has answered.
func (p *Pod) take(result *types100.Result) (err error) {
	if len(result.IPs) != 1 {
		return fmt.Errorf("ADD %s: %d addresses, not one: %s", p.Name, len(result.IPs), result)
	}
	if p.Address, err = netip.ParsePrefix(result.IPs[0].Address.String()); err != nil {
		return fmt.Errorf("ADD %s: %w", p.Name, err)
	}
	p.Gateway, _ = netip.AddrFromSlice(result.IPs[0].Gateway)
	p.Gateway = p.Gateway.Unmap()
	return nil
}

// inside are the addresses that the pod's interface really has; none where
// there is no such interface, or no namespace.
func (p *Pod) inside() (addrs []netip.Prefix, err error) {
	if p.ns == nil {
		return nil, nil
	}
	err = p.ns.Do(func() error {
		all, err := net.Interfaces()
		if err != nil {
			return err
		}
		for _, i := range all {
			if i.Name != PodInterface {
				continue
			}
			has, err := i.Addrs()
			if err != nil {
				return err
			}
			for _, a := range has {
				prefix, err := netip.ParsePrefix(a.String())
				if err != nil {
					return err
				}
				addrs = append(addrs, prefix)
			}
		}
		return nil
	})
	return addrs, err
}

// VerifyAdded compares what ADD has answered with the pod subnet and the gateway
// of the node, with other pods and with the interface.
func (p *Pod) VerifyAdded(subnet netip.Prefix, gateway netip.Addr, others []*Pod) error {
	switch {
	case !subnet.Contains(p.Address.Addr()) || p.Address.Addr() == subnet.Addr():
		return fmt.Errorf("ADD %s: %s is not an address of %s", p.Name, p.Address, subnet)
	case p.Gateway != gateway || p.Address.Addr() == p.Gateway:
		return fmt.Errorf("ADD %s: the gateway of %s is %s, not the plan's %s", p.Name, p.Address, p.Gateway, gateway)
	case slices.ContainsFunc(others, func(o *Pod) bool { return o.Address == p.Address }):
		return fmt.Errorf("ADD %s: %s is another pod's", p.Name, p.Address)
	case p.ns == nil:
		return nil
	}
	return p.VerifyInside()
}

// VerifyInside fails unless the interface has the pod's address.
func (p *Pod) VerifyInside() error {
	has, err := p.inside()
	if err != nil {
		return err
	}
	if !slices.Contains(has, p.Address) {
		return fmt.Errorf("the interface of %s has %v, not %s", p.Name, has, p.Address)
	}
	return nil
}

// VerifyDeleted waits until the interface is gone: a DEL detaches it, and the agent removes
// detached interfaces in batches.
func (p *Pod) VerifyDeleted(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		has, err := p.inside()
		if err == nil && len(has) == 0 {
			return nil
		}
		if err == nil {
			err = errors.New("its interface is still there")
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("DEL %s: %w: %v", p.Name, err, has)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// VerifyHeld fails unless each pod holds its address and, but for the node itself, no
// other owner holds one. What was given back and rests is passed over where
// resting is true.
func VerifyHeld(leases []localapi.Lease, pods []*Pod, resting bool) error {
	holders := map[string]*Pod{}
	for _, p := range pods {
		holders[p.Address.Addr().String()] = p
	}
	for _, l := range leases {
		p := holders[l.IP]
		if p == nil && (l.Purpose == "infra" || resting && l.State == "cooling") {
			continue
		}
		if p == nil {
			return fmt.Errorf("%s is %s for %s/%s, who was given no address", l.IP, l.State, l.PodNamespace, l.PodName)
		}
		delete(holders, l.IP)
		got := localapi.Lease{
			IP:           l.IP,
			State:        l.State,
			Purpose:      l.Purpose,
			Network:      l.Network,
			ContainerID:  l.ContainerID,
			IfName:       l.IfName,
			PodName:      l.PodName,
			PodNamespace: l.PodNamespace,
		}
		want := localapi.Lease{
			IP:           l.IP,
			State:        "held",
			Purpose:      "pod",
			Network:      networkName,
			ContainerID:  p.ContainerID(),
			IfName:       PodInterface,
			PodName:      p.Name,
			PodNamespace: PodNamespace,
		}
		if got != want {
			return fmt.Errorf("the lease of %s is %+v, not %+v", l.IP, got, want)
		}
	}
	for ip, p := range holders {
		return fmt.Errorf("%s was given %s, and there is no lease of it", p.Name, ip)
	}
	return nil
}
