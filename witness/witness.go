// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package witness

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Name names a source of evidence.
type Name string

// The witnesses.
const (
	Kernel  Name = "kernel"  // network namespaces with links and addresses, routes and neighbours of the host
	Runtime Name = "runtime" // sandboxes of the container runtime (CRI)
	Engine  Name = "engine"  // networks, endpoints and containers of the Docker engine
	Cluster Name = "cluster" // pods and nodes in the Kubernetes state that the agent follows
)

// Names lists all witnesses in the order in which they are shown.
func Names() []Name { return []Name{Kernel, Runtime, Engine, Cluster} }

// ErrNotApplicable is wrapped by the error of a reader whose source this node does not
// have and does not need. An example is the Docker engine on a node without Docker's
// driver.
var ErrNotApplicable = errors.New("not applicable")

// Absent reports whether an error of a reader says that this node does not have the source
// at all. Then an error in its chain has the method Absent, or it is not applicable.
func Absent(err error) bool {
	var x interface{ Absent() bool }
	return errors.Is(err, ErrNotApplicable) || errors.As(err, &x) && x.Absent()
}

// State says whether a witness can be asked.
type State uint8

// States of witnesses.
const (
	Present State = iota
	Missing
	NotApplicable
)

func (s State) String() string {
	switch s {
	case Present:
		return "present"
	case Missing:
		return "missing"
	case NotApplicable:
		return "not applicable"
	}
	return fmt.Sprintf("state %d", s)
}

// MarshalText returns the name.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Report describes a witness at the last attempt to read it.
type Report struct {
	Name    Name
	State   State
	Reason  string    // of Missing and NotApplicable
	Absent  bool      // of Missing: this node does not have the source at all
	Source  string    // what was read, such as "containerd 2.1.4 at /run/containerd/containerd.sock"
	Limits  string    // what the witness cannot prove here; "": nothing
	Read    time.Time // time of the last view; zero: none yet
	Objects int       // namespaces, sandboxes, endpoints or pods in that view
}

// ReportOf returns the report of an attempt that began at a time and returned err.
func ReportOf(name Name, err error) Report {
	switch {
	case err == nil:
		return Report{Name: name}
	case errors.Is(err, ErrNotApplicable):
		// State says the rest.
		reason := strings.TrimSuffix(err.Error(), ": "+ErrNotApplicable.Error())
		reason = strings.TrimPrefix(reason, ErrNotApplicable.Error()+": ")
		return Report{Name: name, State: NotApplicable, Reason: reason}
	}
	return Report{Name: name, State: Missing, Reason: err.Error(), Absent: Absent(err)}
}
