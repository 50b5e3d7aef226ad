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
	Name      string // such as "containerd"
	Version   string
	Sandboxes []Sandbox
}

// Sandbox holds a pod sandbox. The ContainerID of a CNI lease is its ID.
type Sandbox struct {
	ID        string
	Namespace string // of the pod
	Name      string
	UID       string
	Ready     bool
	HostNet   bool // it uses the network namespace of the host and has no CNI lease
	Created   time.Time
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
