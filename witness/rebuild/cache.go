// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package rebuild

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/witness"
)

// cached holds the fields of a file of libcni's result cache.
type cached struct {
	ContainerID string      `json:"containerId"`
	Config      []byte      `json:"config"`
	IfName      string      `json:"ifName"`
	NetworkName string      `json:"networkName"`
	NetNS       string      `json:"netns"`
	CNIArgs     [][2]string `json:"cniArgs"`
	Result      struct {
		IPs []struct {
			Address string `json:"address"`
		} `json:"ips"`
		Interfaces []struct {
			Name    string `json:"name"`
			MAC     string `json:"mac"`
			Sandbox string `json:"sandbox"`
		} `json:"interfaces"`
		IP4, IP6 *struct { // of CNI 0.2
			IP string `json:"ip"`
		}
	} `json:"result"`
}

// kindOfCache is the kind of the files that this package decodes.
const kindOfCache = "cniCacheV1"

// ReadCache returns the attachments in a result cache of libcni, such as
// /var/lib/cni/results, whose network uses one of our plugins by the given name. A folder
// that does not exist has none. A file that cannot be decoded, such as an empty one after a
// crash of the machine, is in unread: the attachment that it belongs to is not known.
func ReadCache(dir, plugin string) (all []witness.Attachment, unread []string, err error) {
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil, nil
	case err != nil:
		return nil, nil, fmt.Errorf("read the CNI results: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		text, err := readCached(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // its attachment was removed meanwhile
		}
		var a *witness.Attachment
		if err == nil {
			a, err = decodeCached(text, plugin)
		}
		if err != nil {
			unread = append(unread, fmt.Sprintf("the CNI result %s cannot be read: %v", path, err))
		}
		if a != nil {
			all = append(all, *a)
		}
	}
	return all, unread, nil
}

// maxCached is far above the size of a result with its configuration.
const maxCached = 4 << 20

// readCached reads a regular file of a bounded size.
func readCached(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("it is of type %s: want a file", info.Mode().Type())
	case info.Size() == 0:
		return nil, errors.New("it is empty")
	case info.Size() > maxCached:
		return nil, fmt.Errorf("it has %d bytes: want at most %d", info.Size(), maxCached)
	}
	return os.ReadFile(path)
}

// decodeCached returns the attachment in a file, nil if it is of another plugin or kind.
func decodeCached(text []byte, plugin string) (*witness.Attachment, error) {
	var kind struct {
		Kind string `json:"kind"`
	}
	if err := json.Unmarshal(text, &kind); err != nil {
		return nil, err
	}
	if kind.Kind != kindOfCache {
		return nil, nil
	}
	var c cached
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, err
	}
	ours, wired, err := uses(c.Config, plugin)
	if err != nil || !ours {
		return nil, err
	}
	a := &witness.Attachment{
		Key:   ledger.Key{Network: c.NetworkName, ContainerID: c.ContainerID, IfName: c.IfName},
		Pod:   c.pod(),
		NetNS: c.NetNS,
		Wired: wired,
	}
	for _, i := range c.Result.Interfaces {
		if wired && i.Sandbox != "" && i.Name == c.IfName {
			a.MAC = i.MAC
		}
	}
	for _, text := range c.addresses() {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, err
		}
		a.Addrs = append(a.Addrs, p.Addr())
	}
	return a, nil
}

func (c *cached) addresses() (all []string) {
	for _, ip := range c.Result.IPs {
		all = append(all, ip.Address)
	}
	if c.Result.IP4 != nil {
		all = append(all, c.Result.IP4.IP)
	}
	if c.Result.IP6 != nil {
		all = append(all, c.Result.IP6.IP)
	}
	return all
}

// pod returns the pod that the runtime has named in CNI_ARGS.
func (c *cached) pod() (p ledger.Pod) {
	for _, arg := range c.CNIArgs {
		switch arg[0] {
		case "K8S_POD_NAMESPACE":
			p.Namespace = arg[1]
		case "K8S_POD_NAME":
			p.Name = arg[1]
		case "K8S_POD_UID":
			p.UID = arg[1]
		}
	}
	return p
}

// uses reports whether a CNI configuration or list of them has a plugin, and whether that
// plugin makes the interfaces of pods.
func uses(config []byte, plugin string) (ours, wired bool, err error) {
	type part struct {
		Type string `json:"type"`
		IPAM struct {
			Type string `json:"type"`
		} `json:"ipam"`
	}
	var list struct {
		part
		Plugins []part `json:"plugins"`
	}
	if err := json.Unmarshal(config, &list); err != nil {
		return false, false, fmt.Errorf("its configuration: %w", err)
	}
	for _, p := range append(list.Plugins, list.part) {
		if p.Type == plugin || p.IPAM.Type == plugin {
			return true, p.Type == plugin, nil
		}
	}
	return false, false, nil
}
