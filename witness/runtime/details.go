// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/cadastre/cadastre/witness"
)

// detailKey identifies details: a sandbox that has stopped has other ones.
type detailKey struct {
	id    string
	ready bool
}

// details holds what only the status of a sandbox has.
type details struct {
	hostNet bool
	netNS   string
	addrs   []netip.Addr
}

// cache holds the details of the sandboxes that a runtime lists. It outlives connections:
// a slow runtime is described in several attempts.
type cache struct{ known map[detailKey]details }

// keepListed forgets the sandboxes that are not listed.
func (k *cache) keepListed(all []witness.Sandbox) {
	listed := make(map[detailKey]details, len(all))
	for i := range all {
		key := detailKey{all[i].ID, all[i].Ready}
		if d, ok := k.known[key]; ok {
			listed[key] = d
		}
	}
	k.known = listed
}

// describe sets the details of the sandboxes, which are all of the runtime. It reads the
// status of those that it has not seen before.
func (c *conn) describe(ctx context.Context, all []witness.Sandbox) error {
	c.cache.keepListed(all)
	for i := range all {
		s := &all[i]
		key := detailKey{s.ID, s.Ready}
		d, ok := c.cache.known[key]
		if !ok {
			q := &cri.PodSandboxStatusRequest{PodSandboxId: s.ID, Verbose: true}
			a, err := call(ctx, c, "read the status of sandbox "+s.ID, c.client.PodSandboxStatus, q)
			if status.Code(err) == codes.NotFound {
				continue // removed since it was listed
			}
			if err != nil {
				return err
			}
			if d, err = detailsOf(a); err != nil {
				return fmt.Errorf("read the status of sandbox %s: %w", s.ID, err)
			}
			c.cache.known[key] = d
		}
		s.HostNet, s.NetNS, s.Addrs = d.hostNet, d.netNS, d.addrs
	}
	return nil
}

func detailsOf(a *cri.PodSandboxStatusResponse) (d details, err error) {
	s := a.GetStatus()
	options := s.GetLinux().GetNamespaces().GetOptions()
	d.hostNet = options.GetNetwork() == cri.NamespaceMode_NODE
	texts := []string{s.GetNetwork().GetIp()}
	for _, ip := range s.GetNetwork().GetAdditionalIps() {
		texts = append(texts, ip.GetIp())
	}
	if d.hostNet {
		return d, nil // CRI-O reports the addresses of the host
	}
	for _, text := range texts {
		if text == "" {
			continue
		}
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return d, fmt.Errorf("parse its address: %w", err)
		}
		d.addrs = append(d.addrs, addr.Unmap())
	}
	d.netNS, err = netNSOf(a.GetInfo()["info"])
	return d, err
}

// netNSOf finds the path of the network namespace in the verbose information, "" if
// there is none. containerd and CRI-O have it in the OCI specification of the pause
// container. containerd 2 leaves that out for a sandbox that has ended, and has the
// path in its own metadata.
func netNSOf(info string) (string, error) {
	if info == "" {
		return "", nil // cri-dockerd
	}
	var parsed struct {
		RuntimeSpec struct {
			Linux struct {
				Namespaces []struct{ Type, Path string }
			}
		}
		SandboxMetadata struct {
			Metadata struct{ NetNSPath string }
		}
	}
	if err := json.Unmarshal([]byte(info), &parsed); err != nil {
		return "", fmt.Errorf("parse its verbose information: %w", err)
	}
	for _, ns := range parsed.RuntimeSpec.Linux.Namespaces {
		if ns.Type == "network" && ns.Path != "" {
			return ns.Path, nil
		}
	}
	return parsed.SandboxMetadata.Metadata.NetNSPath, nil
}
