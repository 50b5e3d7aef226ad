// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package findings

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/witness"
)

// subjectOf names a lease.
func subjectOf(l *ledger.Lease) Subject {
	return Subject{
		Pool:        l.Pool,
		Addr:        l.Addr,
		Pod:         l.Pod.String(),
		ContainerID: l.Key.ContainerID,
		IfName:      l.Key.IfName,
		Network:     l.Key.Network,
		Generation:  l.Generation,
	}
}

// leaseFacts identify a claim, also after a restart of the agent.
func leaseFacts(l *ledger.Lease) []string {
	return []string{
		"key " + l.Key.String(),
		"pod UID " + l.Pod.UID,
		"state " + l.State.String() + " since " + strconv.FormatInt(l.Since.UnixNano(), 10),
	}
}

// holder names the holder of a lease for people.
func holder(l *ledger.Lease) string {
	if pod := l.Pod.String(); pod != "" {
		return "pod " + pod
	}
	return "container " + l.Key.ContainerID
}

// leases compares each lease with the witnesses.
func (c *comparison) leases() {
	type claim struct {
		key        ledger.Key
		generation uint64
	}
	claims := map[claim][]ledger.Lease{} // the leases of one are reclaimed together
	for i := range c.book.Leases {
		if l := &c.book.Leases[i]; compared(l) {
			of := claim{l.Key, l.Generation}
			claims[of] = append(claims[of], *l)
		}
	}
	for i := range c.book.Leases {
		l := &c.book.Leases[i]
		if !compared(l) || c.book.young(l) {
			continue
		}
		places := c.places[l.Addr]
		c.unidentified(l)
		v := c.world.Verdict(claims[claim{l.Key, l.Generation}]...)
		switch {
		case v.Conclusion == witness.Gone:
			c.add(numLeaked, subjectOf(l), fmt.Sprintf("%s is leased to %s, which is gone", l.Addr, holder(l)),
				v.Evidence, leaseFacts(l)...)
		case c.complete() && len(places) == 0:
			c.onNoLink(l)
		case len(places) > 0:
			c.inPlace(l, places)
		}
	}
}

// unidentified reports a lease of a pod whose network namespace cannot be told from another one.
func (c *comparison) unidentified(l *ledger.Lease) {
	if c.world.Unidentified(*l) {
		text := fmt.Sprintf("whether %s is still the network namespace of the pod of %s cannot be told",
			l.NetNS, l.Addr)
		c.add(numUnidentified, subjectOf(l), text, said(witness.Kernel, text), leaseFacts(l)...)
	}
}

// onNoLink reports a lease whose address is on no link and whose owner is not proven to
// be gone.
func (c *comparison) onNoLink(l *ledger.Lease) {
	evidence := said(witness.Kernel, "no network namespace has "+l.Addr.String())
	facts := leaseFacts(l)
	if l.Purpose == ledger.ForDocker {
		endpoint := c.endpoint(l.Addr)
		if endpoint == "" {
			return // a gateway or an auxiliary address, or the address of a stopped container
		}
		evidence = append(evidence, witness.Evidence{Witness: witness.Engine, Text: endpoint})
		c.add(numMissingAddress, subjectOf(l),
			fmt.Sprintf("%s is leased to %s and is on no link", l.Addr, holder(l)), evidence, facts...)
		return
	}
	if c.world.Runtime != nil {
		s := c.world.Runtime.Find(l.Key.ContainerID)
		if s == nil || !s.Ready {
			return // the kubelet ends a sandbox that is not ready: its DEL follows
		}
		text := fmt.Sprintf("sandbox %s of pod %s/%s is ready", s.ID, s.Namespace, s.Name)
		evidence = append(evidence, witness.Evidence{Witness: witness.Runtime, Text: text})
	} else if why := c.podEnded(l); why != "" {
		evidence = append(evidence, witness.Evidence{Witness: witness.Cluster, Text: why})
		c.add(numEndedPod, subjectOf(l),
			fmt.Sprintf("%s is leased to %s, which the cluster does not have any more", l.Addr, holder(l)),
			evidence, append(facts, why)...)
		return
	}
	c.add(numMissingAddress, subjectOf(l),
		fmt.Sprintf("%s is leased to %s and is on no link", l.Addr, holder(l)), evidence, facts...)
}

// WhyKept says why "cadastre repair C206 --all" keeps the lease of a missing address, "" if it
// may release it. A release needs three facts. The node has no runtime that would tell
// whether the pod runs. No namespace is at the path of the lease, and the cluster does not
// have the pod.
func WhyKept(l *ledger.Lease, world *witness.World) string {
	runtime := world.Report(witness.Runtime)
	switch {
	case l.Purpose != ledger.ForPod:
		return fmt.Sprintf("it is the lease of a %s, not of a pod", l.Purpose)
	case runtime.State == witness.Missing:
		return "the runtime cannot be asked whether the pod runs: " + runtime.Reason
	case runtime.State != witness.NotApplicable:
		return "this node has a container runtime: what that has lost is reclaimed without a person, and this pod still runs"
	case world.Kernel == nil:
		return "the kernel cannot be asked whether the network namespace exists"
	}
	for i := range world.Kernel.Namespaces {
		ns := &world.Kernel.Namespaces[i]
		if slices.Contains(ns.Paths, l.NetNS) && !ns.Identity(world.BootID).IsNot(l.NetNSID) {
			return fmt.Sprintf("its network namespace %s still exists", l.NetNS)
		}
	}
	if world.Cluster != nil && l.Pod.Name != "" && world.Cluster.Pod(l.Pod.Namespace, l.Pod.Name) != nil {
		return "the cluster still has pod " + l.Pod.String()
	}
	return ""
}

// podEnded returns the statement of the cluster that the pod of a lease has ended, "" if
// the cluster has the pod or cannot tell.
func (c *comparison) podEnded(l *ledger.Lease) string {
	if c.world.Cluster == nil || l.Pod.Name == "" {
		return ""
	}
	p := c.world.Cluster.Pod(l.Pod.Namespace, l.Pod.Name)
	switch {
	case p == nil:
		return "this node has no pod " + l.Pod.String()
	case static(l.Pod.UID): // its object in the cluster is a mirror with a UID of its own
		return ""
	case l.Pod.UID != "" && p.UID != "" && p.UID != l.Pod.UID:
		return fmt.Sprintf("pod %s has UID %s, the lease has %s", l.Pod, p.UID, l.Pod.UID)
	}
	return ""
}

// static reports whether a UID is that of a static pod: the kubelet makes it, as 32
// hexadecimal digits without a dash.
func static(uid string) bool {
	const digits = 32
	return len(uid) == digits && !strings.Contains(uid, "-")
}

// inPlace reports a lease whose address is in another namespace than its own.
func (c *comparison) inPlace(l *ledger.Lease, places []witness.Sighting) {
	own := c.byName[l.NetNS]
	if own != nil && own.Identity(c.world.BootID).IsNot(l.NetNSID) {
		own = nil // the path names another namespace by now
	}
	if why := c.ended(l, places[0]); own == nil && why != "" {
		c.add(numElsewhere, subjectOf(l),
			fmt.Sprintf("%s is leased to %s, %s, and is on %s", l.Addr, holder(l), why, places[0].Place),
			c.world.Verdict(*l).Evidence, append(leaseFacts(l), "address on "+places[0].Place.String())...)
	}
	if own == nil || slices.ContainsFunc(places, func(p witness.Sighting) bool { return p.Namespace == own }) {
		return
	}
	p := places[0].Place
	c.add(numElsewhere, subjectOf(l),
		fmt.Sprintf("%s is leased to %s with network namespace %s, and is on %s", l.Addr, holder(l), l.NetNS, p),
		[]witness.Evidence{onLink(places[0])},
		append(leaseFacts(l), "address on "+p.String())...)
}

// ended says how the owner of a lease has ended whose address is in a place, "" if that is
// not certain. For a pod it is certain if the runtime has no sandbox of it and the file of
// its network namespace is gone. For an address of Docker it is certain if the engine has
// no use of it. Files of processes do not count, since the kernel's view may lack
// processes. On the host, an address of Docker is a gateway; a swarm has addresses that the
// engine does not list.
func (c *comparison) ended(l *ledger.Lease, at witness.Sighting) string {
	w := c.world
	switch {
	case !c.complete():
	case l.Purpose == ledger.ForPod && w.Runtime != nil && w.Runtime.Find(l.Key.ContainerID) == nil:
		if l.NetNS != "" && !strings.HasPrefix(l.NetNS, "/proc/") {
			return "whose sandbox and network namespace are gone"
		}
	case l.Purpose == ledger.ForDocker && w.Engine != nil && !w.Engine.Swarm && !at.Namespace.Host && len(c.uses(l.Addr)) == 0:
		return "which the engine does not have any more"
	}
	return ""
}

// endpoint returns the statement of the engine about an endpoint with an address on a
// network of our driver, "" if there is none.
func (c *comparison) endpoint(a netip.Addr) string {
	if c.world.Engine == nil {
		return ""
	}
	found := ""
	for i := range c.world.Engine.Networks {
		n := &c.world.Engine.Networks[i]
		for _, e := range n.Endpoints {
			if n.IPAMDriver == c.world.Driver && slices.Contains(e.Addrs, a) {
				text := fmt.Sprintf("container %s has %s on network %s", e.Name, a, n.Name)
				if found == "" || text < found {
					found = text
				}
			}
		}
	}
	return found
}

// quarantines reports quarantined addresses that no witness shows in use.
func (c *comparison) quarantines() {
	for i := range c.book.Leases {
		l := &c.book.Leases[i]
		if !quarantined(l) || c.book.young(l) || !c.unused(l.Addr) {
			continue
		}
		c.add(numUnusedQuarantine, subjectOf(l),
			fmt.Sprintf("%s of pool %q is quarantined (%s), and no witness shows a use of it",
				l.Addr, l.Pool, l.Reason),
			[]witness.Evidence{c.answersNowhere(l.Addr)}, append(leaseFacts(l), "reason "+l.Reason)...)
	}
}

// uses returns the statements of the engine about an address on networks of our driver,
// sorted.
func (c *comparison) uses(a netip.Addr) (all []string) {
	if c.world.Engine == nil {
		return nil
	}
	for _, u := range c.world.Engine.Uses(c.world.Driver, a) {
		all = append(all, fmt.Sprintf("network %s uses %s: %s", u.Network.Name, a, u.What))
	}
	slices.Sort(all)
	return all
}

// witnesses reports each witness that the book needs and that cannot be asked.
func (c *comparison) witnesses() {
	need := map[witness.Name]string{}
	if len(c.book.Blocks) > 0 {
		need[witness.Kernel] = "to find the addresses of " + strconv.Itoa(len(c.book.Blocks)) + " blocks"
	}
	if c.book.DockerOn && len(c.book.Docker) > 0 {
		need[witness.Engine] = "for the pools of Docker"
	}
	for i := range c.book.Leases {
		l := &c.book.Leases[i]
		if !compared(l) {
			continue
		}
		for _, name := range witness.Required(*l) {
			if need[name] == "" {
				need[name] = "for the leases of " + l.Purpose.String() + "s"
			}
		}
	}
	for _, name := range witness.Names() {
		if need[name] == "" {
			continue
		}
		why := c.missing(name)
		if why == "" {
			continue
		}
		c.add(numWitness, Subject{Object: string(name)},
			fmt.Sprintf("the %s is needed %s and cannot be asked: %s", name, need[name], why),
			said(name, why))
	}
}

// missing returns the reason for which a witness cannot tell what the comparison needs,
// "" if it can or if it does not apply. The kernel always applies.
func (c *comparison) missing(name witness.Name) string {
	r := c.world.Report(name)
	switch {
	case name == witness.Kernel && c.world.Kernel != nil:
		if c.complete() {
			return ""
		}
		return "it does not see all network namespaces: " + c.world.Kernel.Hidden
	case r.State == witness.Missing, name == witness.Kernel:
		return r.Reason
	}
	return ""
}
