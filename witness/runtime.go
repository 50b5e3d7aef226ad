// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package witness

import (
	"net/netip"
	"time"
)

// RuntimeView holds the pod sandboxes of the container runtime.
type RuntimeView struct {
	Taken     time.Time
	Since     time.Time // the runtime has answered every reading since then, without a restart in between
	Name      string    // such as "containerd"; of several runtimes "containerd and cri-o"
	Version   string
	Source    string // such as "containerd 2.1.4 at /run/containerd/containerd.sock"
	Detailed  bool   // HostNet, NetNS and Addrs of the sandboxes are set
	Sandboxes []Sandbox
}

// Report describes the view.
func (v *RuntimeView) Report() Report {
	return Report{Name: Runtime, Read: v.Taken, Source: v.Source, Objects: len(v.Sandboxes)}
}

// Sandbox holds a pod sandbox. The ContainerID of a CNI lease is its ID.
type Sandbox struct {
	ID        string
	Namespace string // of the pod
	Name      string
	UID       string
	Ready     bool
	Created   time.Time
	HostNet   bool         // it uses the network namespace of the host and has no CNI lease
	NetNS     string       // path of its network namespace; "": not known
	Addrs     []netip.Addr // as the runtime reports them
}

// Find returns the sandbox with an ID, nil if the runtime has none.
func (v *RuntimeView) Find(id string) *Sandbox {
	for i := range v.Sandboxes {
		if v.Sandboxes[i].ID == id {
			return &v.Sandboxes[i]
		}
	}
	return nil
}
