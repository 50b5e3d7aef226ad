// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// Attachment is a pod's interface, which cadastre-cni makes as a container runtime runs it.
type Attachment struct {
	List    *libcni.NetworkConfigList
	Runtime libcni.RuntimeConf
	Result  *types100.Result // of the last ADD
	Stderr  io.Writer        // of the plugins

	agent  Agent
	within func(f func() error) error
}

// NewAttachment returns the attachment eth0 of a pod of the agent's node, by the CNI list of a
// file. within calls a function in the node's network namespace, netns is the pod's.
func NewAttachment(a Agent, within func(f func() error) error, list, pod, netns string) (*Attachment, error) {
	l, err := libcni.ConfListFromFile(list)
	if err != nil {
		return nil, err
	}
	return &Attachment{List: l, Stderr: os.Stderr, agent: a, within: within, Runtime: libcni.RuntimeConf{
		ContainerID: a.Node + "-" + pod, NetNS: netns, IfName: PodInterface,
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", pod}},
	}}, nil
}

// UsePool names the pool of which the pod takes its addresses.
func (a *Attachment) UsePool(pool string) (err error) {
	text := strings.Join(strings.Fields(string(a.List.Bytes)), "")
	changed := strings.Replace(text, `"ipam":{`, fmt.Sprintf(`"ipam":{"pool":%q,`, pool), 1)
	if changed == text {
		return fmt.Errorf("the list has no section ipam: %s", text)
	}
	a.List, err = libcni.ConfListFromBytes([]byte(changed))
	return err
}

func (a *Attachment) call(f func(cni *libcni.CNIConfig) error) error {
	run := &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: a.Stderr}}
	cni := libcni.NewCNIConfigWithCacheDir([]string{a.agent.Bin}, filepath.Join(a.agent.Dir, "cache"), run)
	return a.within(func() error { return f(cni) })
}

// Add runs ADD and returns the addresses.
func (a *Attachment) Add(ctx context.Context) (addresses []netip.Addr, err error) {
	err = a.call(func(cni *libcni.CNIConfig) error {
		answer, err := cni.AddNetworkList(ctx, a.List, &a.Runtime)
		if err == nil {
			a.Result, err = types100.NewResultFromResult(answer)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, ip := range a.Result.IPs {
		if address, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			addresses = append(addresses, address.Unmap())
		}
	}
	return addresses, nil
}

// Check runs CHECK.
func (a *Attachment) Check(ctx context.Context) error {
	return a.call(func(cni *libcni.CNIConfig) error { return cni.CheckNetworkList(ctx, a.List, &a.Runtime) })
}

// Del runs DEL.
func (a *Attachment) Del(ctx context.Context) error {
	return a.call(func(cni *libcni.CNIConfig) error { return cni.DelNetworkList(ctx, a.List, &a.Runtime) })
}
