// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package witness

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cadastre/cadastre/ledger"
)

// World holds the views of one round. A view is nil if its witness is missing or not
// applicable: Reports says which.
type World struct {
	Taken   time.Time
	BootID  string   // of the machine; "": not known
	Reports []Report // in the order of Names
	Kernel  *KernelView
	Runtime *RuntimeView
	Engine  *EngineView
	Cluster *ClusterView
	// Attachments holds the CNI results of this node that libcni keeps.
	Attachments []Attachment
	// Driver is the name under which the engine knows our IPAM driver.
	Driver string
	// Unlisted holds the attachments that the last CNI GC of their network did not
	// list. On a node without a CRI socket the runtime has spoken for them so. It is empty
	// while a runtime that has one does not answer.
	Unlisted map[ledger.Key]bool
}

// Report returns the report of a witness; without one the witness is missing.
func (w *World) Report(name Name) Report {
	for _, r := range w.Reports {
		if r.Name == name {
			return r
		}
	}
	return Report{Name: name, State: Missing, Reason: "it has not been read yet"}
}

// Conclusion sums up the statements of the witnesses about one lease.
type Conclusion uint8

// Conclusions. Only Gone allows a reclaim.
const (
	Unproven Conclusion = iota // a required witness is missing, or none has to be asked
	Alive
	Gone
)

func (c Conclusion) String() string {
	switch c {
	case Unproven:
		return "unproven"
	case Alive:
		return "alive"
	case Gone:
		return "gone"
	}
	return fmt.Sprintf("conclusion %d", c)
}

// Evidence is a statement of one witness.
type Evidence struct {
	Witness Name   `json:"witness"`
	Text    string `json:"text"` // one sentence without a full stop
}

func (e Evidence) String() string { return string(e.Witness) + ": " + e.Text }

// Verdict is a Conclusion with its reasons.
type Verdict struct {
	Conclusion Conclusion
	Evidence   []Evidence // of Alive and Gone
	Missing    []Name     // required witnesses that are missing
}

// Required returns the witnesses that must agree before a lease is reclaimed: nil for
// a lease that no witness can judge, which is never reclaimed.
func Required(l ledger.Lease) []Name {
	switch {
	case l.Key.OfAPI():
		return nil
	case l.Purpose == ledger.ForPod:
		return []Name{Kernel, Runtime}
	case l.Purpose == ledger.ForDocker:
		return []Name{Kernel, Engine}
	}
	return nil
}

// Verdict compares the leases of one claim with the views, which go together: one of them in
// use suffices for Alive, and all must be gone for Gone.
func (w *World) Verdict(claim ...ledger.Lease) (combined Verdict) {
	for i, l := range claim {
		v := w.verdict(l)
		switch {
		case i == 0:
			combined = v
		case v.Conclusion == Alive:
			return v
		case combined.Conclusion == Alive:
		case v.Conclusion == Unproven:
			combined = v
		case combined.Conclusion == Gone:
			for _, e := range v.Evidence {
				if !slices.Contains(combined.Evidence, e) {
					combined.Evidence = append(combined.Evidence, e)
				}
			}
		}
	}
	return combined
}

// verdict compares one lease with the views. One witness that shows the lease in use
// suffices for Alive; Gone needs every required one.
func (w *World) verdict(l ledger.Lease) Verdict {
	var v Verdict
	alive := false
	for _, name := range Required(l) {
		inUse, text, known := w.ask(name, l)
		switch {
		case !known:
			v.Missing = append(v.Missing, name)
			continue
		case inUse:
			alive = true
		}
		v.Evidence = append(v.Evidence, Evidence{name, text})
	}
	switch {
	case alive:
		v.Conclusion = Alive
	case len(v.Evidence) > 0 && len(v.Missing) == 0:
		v.Conclusion = Gone
	}
	return v
}

// ask asks one witness about a lease. known is false if the witness is missing or
// cannot tell.
func (w *World) ask(name Name, l ledger.Lease) (inUse bool, text string, known bool) {
	switch {
	case name == Kernel && w.Kernel != nil:
		return w.askKernel(l)
	case name == Runtime && w.Runtime != nil:
		if s := w.Runtime.Find(l.Key.ContainerID); s != nil {
			return true, fmt.Sprintf("%s has sandbox %s of pod %s/%s", w.Runtime.Name, s.ID, s.Namespace, s.Name), true
		}
		return false, fmt.Sprintf("%s has no sandbox %s", w.Runtime.Name, l.Key.ContainerID), true
	case name == Runtime && w.Unlisted[l.Key]:
		return false, "the last CNI GC of network " + l.Key.Network + " did not list " + l.Key.ContainerID, true
	case name == Engine && w.Engine != nil:
		if uses := w.Engine.Uses(w.Driver, l.Addr); len(uses) > 0 {
			return true, fmt.Sprintf("network %s uses %s: %s", uses[0].Network.Name, l.Addr, uses[0].What), true
		}
		return false, fmt.Sprintf("no network of the engine uses %s", l.Addr), true
	}
	return false, "", false
}

// askKernel looks for a lease in the namespace that it has recorded. Without a recorded
// identity it looks for the address in all namespaces that count.
func (w *World) askKernel(l ledger.Lease) (inUse bool, text string, known bool) {
	if l.NetNSID.Known() {
		return w.askRecorded(l)
	}
	for _, p := range w.Kernel.Find(l.Addr) {
		if p.Namespace.Counts {
			return true, fmt.Sprintf("%s has %s", p, l.Addr), true
		}
	}
	if w.Kernel.Hidden != "" || l.NetNS != "" && w.Kernel.At(l.NetNS) != nil {
		return false, "", false // the namespace at the path may be the pod's, or another one
	}
	return false, fmt.Sprintf("none of %d network namespaces has %s", len(w.Kernel.Namespaces), l.Addr), true
}

// askRecorded looks for the namespace that a lease has recorded. The path of the lease proves
// nothing: another namespace can be there.
func (w *World) askRecorded(l ledger.Lease) (inUse bool, text string, known bool) {
	doubt := w.Kernel.Hidden != "" || w.BootID == ""
	for i := range w.Kernel.Namespaces {
		ns := &w.Kernel.Namespaces[i]
		same, certain := ns.Identity(w.BootID).Is(l.NetNSID)
		if certain && !same || ns.Host {
			continue
		}
		for j := range ns.Links {
			has := slices.ContainsFunc(ns.Links[j].Addrs, func(p netip.Prefix) bool { return p.Addr() == l.Addr })
			if has && (certain || ns.Counts) {
				return true, fmt.Sprintf("%s has %s", Place{ns, &ns.Links[j]}, l.Addr), true
			}
		}
		if same {
			return true, fmt.Sprintf("network namespace %s of the pod lives, without %s", ns.Label(), l.Addr), true
		}
		// Only links lead to a namespace without an ID: if it is the pod's, it has the address.
		doubt = doubt || ns.ID != NamespaceID{}
	}
	if doubt {
		return false, "", false
	}
	return false, fmt.Sprintf("none of %d network namespaces is %s, which had %s",
		len(w.Kernel.Namespaces), l.NetNSID, l.Addr), true
}

// Unidentified reports whether it cannot be told if a namespace that the kernel shows is the
// one of a lease of a pod: the lease has recorded too little.
func (w *World) Unidentified(l ledger.Lease) bool {
	if w.Kernel == nil || l.Purpose != ledger.ForPod || l.NetNS == "" {
		return false
	}
	for i := range w.Kernel.Namespaces {
		ns := &w.Kernel.Namespaces[i]
		if _, certain := ns.Identity(w.BootID).Is(l.NetNSID); certain || ns.ID == (NamespaceID{}) {
			continue
		}
		if l.NetNSID.Known() || slices.Contains(ns.Paths, l.NetNS) {
			return true
		}
	}
	return false
}

// String names a namespace within a sentence.
func (n *Namespace) String() string {
	if n.Host {
		return "the host"
	}
	return "network namespace " + n.Label()
}

// Label names a namespace for people: "host", its first path, its inode, or its ID in
// the host's namespace.
func (n *Namespace) Label() string {
	switch {
	case n.Host:
		return "host"
	case len(n.Paths) > 0:
		return n.Paths[0]
	case n.ID.Inode == 0:
		return fmt.Sprintf("nsid %d", n.NSID)
	}
	return fmt.Sprintf("net:[%d]", n.ID.Inode)
}
