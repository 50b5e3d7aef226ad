// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"errors"
	"time"
)

// Endpoints that are not the URL of a socket.
const (
	Auto = "auto" // every socket of Options.Sockets that exists
	None = "none" // this node has no container runtime
)

// ErrNoRuntime is wrapped by the error of Read if none of the sockets of Auto exists, or
// none of them offers the CRI. On a node with CNI leases the witness is then missing, on
// another one not applicable: the caller knows which.
var ErrNoRuntime = errors.New("no container runtime offers the CRI")

// absentError says that this node does not have what was to be read.
type absentError struct{ error }

// Absent is for witness.Absent.
func (absentError) Absent() bool { return true }

func (e absentError) Unwrap() error { return e.error }

// Options configure a Reader. The zero value reads the usual sockets.
type Options struct {
	Endpoint  string           // Auto, None, or unix:///PATH; "": Auto
	Sockets   []string         // paths that Auto tries; nil: DefaultSockets
	Timeout   time.Duration    // of each call; 0: five seconds
	MaxAnswer int              // size of the largest answer in bytes; 0: 16 MiB, the kubelet's limit
	Now       func() time.Time // nil: time.Now
}

// DefaultSockets returns the sockets of containerd, CRI-O, k3s and cri-dockerd.
func DefaultSockets() []string {
	return []string{
		"/run/containerd/containerd.sock",
		"/run/crio/crio.sock",
		"/run/k3s/containerd/containerd.sock",
		"/var/run/cri-dockerd.sock",
	}
}
