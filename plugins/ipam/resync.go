// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/ledger/addrspace"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipam/addrplan"
	"github.com/cadastre/cadastre/plugins/kubestate"
	"github.com/cadastre/cadastre/plugins/nodesync"
	"github.com/cadastre/cadastre/plugins/nodesync/claims"
)

// Resync resynchronizes IPAM against the configuration and Kubernetes state
// data, as a difference: it opens and drains blocks, quarantines used addresses without a
// lease, and removes no lease.
func (i *IPAM) Resync(
	event controller.Event,
	kubeStateData controller.KubeStateData,
	_ int,
	_ controller.ResyncOperations,
) error {
	if err := i.usable(); err != nil {
		return controller.NewFatalError(fmt.Errorf("resync %s: %w", i.Name, err))
	}
	i.register.resync(kubeStateData)
	setKey := kv.NetResourceSetKey(i.ServiceLabel.GetAgentLabel())
	i.register.set, _ = kubeStateData[kubestate.NetResourceSets][setKey].(*kv.NetResourceSet)
	if db, ok := event.(*controller.DBResync); ok {
		i.register.local, i.register.seen = db.Local, db.Revision
	}
	change, _ := event.(*InterfaceChange)
	if change != nil {
		if err := i.stageInterfaces(change); err != nil {
			return err
		}
	}
	s, err := i.derive(i.ownNode(event), kubeStateData)
	if err != nil {
		return controller.NewFatalError(fmt.Errorf("derive the addresses of this node: %w", err))
	}
	if err := i.grant(s); err != nil {
		return err
	}
	if change != nil {
		i.restoreClaims(change.Claims)
	}
	if err := i.occupyReported(s, kubeStateData); err != nil {
		return err
	}
	i.noteMismatch(s)
	i.state.Store(s)
	i.publish(s)
	return nil
}

// ownNode returns the state of this node: that of a PodCIDRChange, otherwise that of
// NodeSync. It is empty before the cluster knows the node.
func (i *IPAM) ownNode(event controller.Event) *nodesync.Node {
	own := nodesync.GetNode(i.NodeSync, i.ServiceLabel.GetAgentLabel())
	if change, ok := event.(*PodCIDRChange); ok && change.Node != nil {
		own = change.Node
	}
	if own == nil {
		return &nodesync.Node{}
	}
	return own
}

// derive returns the state that follows from the configuration, the node ID and, with
// external IPAM, the state of the node.
func (i *IPAM) derive(own *nodesync.Node, data controller.KubeStateData) (*state, error) {
	s := &state{nodeID: i.NodeSync.GetNodeID(), families: i.ContivConf.Cluster().Families}
	switch i.ContivConf.PodBlocks() {
	case contivconf.PodBlocksNodeID:
		s.nodes = make([]addrplan.Node, len(s.families))
		return s, i.deriveNetworks(s)
	case contivconf.PodBlocksStatic, contivconf.PodBlocksPodCIDR, contivconf.PodBlocksNetResource,
		contivconf.PodBlocksInterfaces:
	default:
		return nil, fmt.Errorf(
			"cadastre.podBlocks %q: this agent knows nodeid, podcidr, netresource, interfaces and static",
			i.ContivConf.PodBlocks(),
		)
	}
	var err error
	if s.nodes, err = i.ContivConf.Cluster().Node(s.nodeID); err != nil {
		return nil, err
	}
	switch i.ContivConf.PodBlocks() {
	case contivconf.PodBlocksStatic:
		if err := s.setPods(i.ContivConf.StaticPodCIDRs()); err != nil {
			return nil, err
		}
		i.openHeld(s, i.ContivConf.StaticPodCIDRs())
	case contivconf.PodBlocksPodCIDR:
		s.neighbours = newNeighbours(i.NodeSync.GetAllNodes())
		i.fromNodeObject(s, own)
	}
	return s, i.deriveNetworks(s)
}

// setPods takes the first of subnets in each family as the pod subnet. A family without
// one has none.
func (s *state) setPods(subnets []netip.Prefix) error {
	for f := range s.nodes {
		pods, _ := ofFamily(subnets, s.families[f].Hosts)
		n, err := s.families[f].NodeWith(s.nodeID, pods.Masked())
		if err != nil {
			return err
		}
		s.nodes[f] = n
	}
	return nil
}

// fromNodeObject takes the pod subnets from Node.spec.podCIDRs. If it cannot use them it
// reports that, the node has no pod subnet, and refused is set.
func (i *IPAM) fromNodeObject(s *state, own *nodesync.Node) (refused bool) {
	name := i.ServiceLabel.GetAgentLabel()
	s.asked, s.askedProblem = i.ofOurFamilies(own.PodCIDRs), own.PodCIDRProblem
	subnets := s.asked
	switch {
	case own.PodCIDRProblem != "":
		refused = true
		s.pending = fmt.Sprintf("Node.spec.podCIDRs of node %s: %s", name, own.PodCIDRProblem)
	case len(own.PodCIDRs) == 0 && !i.ContivConf.WaitForPodCIDR():
		subnets = podSubnets(s.nodes) // as derived from the node ID
	case len(own.PodCIDRs) == 0:
		s.pending = fmt.Sprintf("waiting for Node.spec.podCIDRs of node %s", name)
	default:
		if err := i.refusal(s, subnets); err != nil {
			refused = true
			s.pending = fmt.Sprintf("Node.spec.podCIDRs of node %s: %v", name, err)
		}
	}
	if s.pending != "" {
		subnets = i.keptOpen(s, subnets)
	}
	i.openHeld(s, subnets)
	for f, n := range s.nodes {
		if s.pending == "" && len(s.waiting) == 0 && !n.PodSubnet.IsValid() {
			s.pending = fmt.Sprintf(
				"waiting for a network of the family of %s in Node.spec.podCIDRs of node %s",
				s.families[f].Pods,
				name,
			)
		}
	}
	if s.pending != "" {
		i.Log.Warn("this node has no pod subnet", "reason", s.pending)
	}
	return refused
}

// refusal returns the reason why subnets cannot be blocks of this node. One of them
// overlaps a network that is not for pods, or lies outside the pod networks. Or it is a
// whole pod network that other nodes need too, or it has no room for a pod.
func (i *IPAM) refusal(s *state, subnets []netip.Prefix) error {
	if err := s.clash(subnets); err != nil {
		return err
	}
	for _, p := range subnets {
		for f, family := range s.families {
			switch {
			case p.Addr().Is4() != family.Pods.Addr().Is4():
				continue
			case !p.Overlaps(family.Pods):
				return fmt.Errorf("%s is outside podSubnetCIDR %s", p, family.Pods)
			case p.Bits() < family.Pods.Bits():
				return fmt.Errorf("%s is larger than podSubnetCIDR %s", p, family.Pods)
			case p.Bits() == family.Pods.Bits() && len(i.NodeSync.GetAllNodes()) > 1:
				return fmt.Errorf("%s is all of podSubnetCIDR, which the other nodes need too", p)
			}
			if _, err := s.families[f].WithPodSubnet(s.nodeID, p.Masked()); err != nil {
				return err
			}
		}
	}
	return nil
}

// keptOpen returns the subnets that cannot be new blocks but are blocks with leases
// already. It reports them, and they stay open.
func (i *IPAM) keptOpen(s *state, subnets []netip.Prefix) (kept []netip.Prefix) {
	for _, b := range i.Ledger.Stats() {
		open := slices.ContainsFunc(subnets, func(p netip.Prefix) bool { return p.Masked() == b.Block })
		if b.Pool == PodPool && b.State == ledger.Active && b.Held > 0 && open {
			kept = append(kept, b.Block)
			s.kept = append(s.kept, Problem{
				Object: "node/" + i.ServiceLabel.GetAgentLabel(),
				Text:   s.pending + "; it stays open because it has leases",
			})
		}
	}
	if len(kept) == len(subnets) && len(kept) > 0 {
		s.pending = ""
	}
	return kept
}

// clash returns an error if one of the subnets overlaps a network that is not for pods.
func (s *state) clash(subnets []netip.Prefix) error {
	for _, p := range subnets {
		for _, f := range s.families {
			for _, x := range notForPods(f) {
				if p.Overlaps(x.Net) {
					return fmt.Errorf("%s overlaps %s %s", p, x.Name, x.Net)
				}
			}
		}
	}
	return nil
}

// grant passes the blocks to the ledger and claims the infra leases.
func (i *IPAM) grant(s *state) error {
	var hosts []netip.Prefix
	var links []infraLease
	for _, n := range s.nodes {
		hosts = append(hosts, n.HostSubnet)
		links = append(links,
			infraLease{HostPool, n.HostSubnet, "vpp", n.HostVPP},
			infraLease{HostPool, n.HostSubnet, "linux", n.HostLinux})
	}
	if err := i.open(ledger.Pool{Name: HostPool, Order: ledger.Lowest, ReserveEdges: true}, hosts); err != nil {
		return err
	}
	for _, x := range links {
		if _, _, err := i.Stage.Claim(x.request()); err != nil {
			return fmt.Errorf("claim the %s address of %s: %w", x.name, x.block, err)
		}
	}
	for _, name := range i.networksToGrant(s) {
		if err := i.grantNetwork(s, name); err != nil {
			return err
		}
	}
	return nil
}

// networksToGrant returns the pod networks, the default one first, and former ones of
// which the ledger still has blocks: these drain.
func (i *IPAM) networksToGrant(s *state) []string {
	if _, ok := s.networks[PodPool]; !ok {
		s.networks[PodPool] = network{open: podSubnets(s.nodes)}
	}
	names := slices.Collect(maps.Keys(s.networks))
	for _, b := range i.Ledger.Stats() {
		if b.Pool != HostPool && !strings.Contains(b.Pool, "/") { // a slash: a pool of another allocator
			names = append(names, b.Pool)
		}
	}
	slices.Sort(names)
	names = slices.DeleteFunc(slices.Compact(names), func(n string) bool { return n == PodPool })
	return append([]string{PodPool}, names...)
}

// grantNetwork opens the blocks of a pod network, and claims the gateway and the NAT
// loopback of each that has them. It releases those of a block that has them no more.
func (i *IPAM) grantNetwork(s *state, name string) error {
	open := s.networks[name].open
	pool := i.policy(s, name)
	if err := i.open(pool, open); err != nil {
		return err
	}
	excluded := len(pool.Exclude)
	for _, block := range open {
		if isSmall(block) {
			continue
		}
		gateway, _ := addrspace.Nth(block, 1)
		loopback, _ := addrspace.NthLast(block, 1)
		for _, x := range []infraLease{
			{name, block, "gateway", gateway},
			{name, block, LoopbackName, loopback},
		} {
			if s.isWhole(name, block) {
				if _, err := i.Stage.Release(ledger.Selector{Key: x.request().Key}); err != nil {
					return fmt.Errorf("release the %s address of %s: %w", x.name, x.block, err)
				}
				continue
			}
			_, _, err := i.Stage.Claim(x.request())
			if errors.Is(err, ledger.ErrTaken) {
				// A live pod of a draining block holds it. The exclusion keeps it from being
				// allocated again.
				i.Log.Error("an address that this node needs is in use",
					"for", x.name, "block", x.block, "error", err)
				pool.Exclude = append(pool.Exclude, netip.PrefixFrom(x.addr, x.addr.BitLen()))
				continue
			}
			if err != nil {
				return fmt.Errorf("claim the %s address of %s: %w", x.name, x.block, err)
			}
		}
	}
	if len(pool.Exclude) > excluded {
		return i.Stage.SetPool(pool)
	}
	return nil
}

// policy returns the policy of a pod network. Blocks of a NetResourceSet or of interfaces go
// back one by one, so the lowest are filled first. All addresses of small blocks, and of those
// of interfaces, are allocated; only then the edges of the other blocks are exclusions, because
// an exclusion costs every block. Otherwise the ledger reserves the edges itself.
func (i *IPAM) policy(s *state, name string) ledger.Pool {
	pool := ledger.Pool{Name: name, Order: ledger.Next, CoolDown: i.ContivConf.CoolDown(), ReserveEdges: true}
	if name != PodPool || !i.fromNetResources() && !i.fromInterfaces() {
		return pool
	}
	pool.Order = ledger.Lowest
	open := s.networks[name].open
	whole := func(b netip.Prefix) bool { return s.isWhole(name, b) && !b.IsSingleIP() }
	if !i.fromInterfaces() && !slices.ContainsFunc(open, whole) {
		return pool
	}
	pool.ReserveEdges = false
	for _, block := range open {
		if last, _ := addrspace.NthLast(block, 0); !s.isWhole(name, block) {
			pool.Exclude = append(pool.Exclude,
				netip.PrefixFrom(block.Addr(), block.Addr().BitLen()),
				netip.PrefixFrom(last, last.BitLen()))
		}
	}
	return pool
}

// open sets the policy and the blocks of a pool.
func (i *IPAM) open(pool ledger.Pool, blocks []netip.Prefix) error {
	if err := i.Stage.SetPool(pool); err != nil {
		return err
	}
	return i.Stage.SetBlocks(pool.Name, blocks)
}

// infraLease is an address that this node itself uses.
type infraLease struct {
	pool  string
	block netip.Prefix
	name  string
	addr  netip.Addr
}

// request returns the claim. No CNI network can have its key, because a CNI name has no
// slash.
func (x infraLease) request() ledger.Request {
	return ledger.Request{
		Pool:    x.pool,
		Purpose: ledger.ForInfra,
		Wanted:  []netip.Addr{x.addr},
		Key:     ledger.Key{Network: "infra/" + x.pool, ContainerID: x.block.String(), IfName: x.name},
	}
}

// occupyReported quarantines the addresses of this node's blocks that a pod reports and
// that are not leased. Most addresses of a cluster are of other nodes, and most of this
// node's are leased: only the remaining ones are sorted and staged.
func (i *IPAM) occupyReported(s *state, data controller.KubeStateData) error {
	names := slices.Sorted(maps.Keys(s.networks))
	var unknown []reported
	for _, m := range data[kubestate.Pods] {
		pod, ok := m.(*kv.Pod)
		if !ok || pod.HostNetwork || pod.Phase == "Succeeded" || pod.Phase == "Failed" {
			continue
		}
		for _, text := range pod.IpAddresses {
			a, err := netip.ParseAddr(text)
			if err != nil {
				i.Log.Warn("a pod reports an address that cannot be parsed",
					"pod", pod.Namespace+"/"+pod.Name, "address", text)
				continue
			}
			x := reported{addr: a.Unmap(), pod: pod}
			x.network = s.networkOf(names, x.addr)
			if !i.isLeased(x) {
				unknown = append(unknown, x)
			}
		}
	}
	slices.SortFunc(unknown, compareReported)
	for _, x := range unknown {
		if err := i.occupy(x); err != nil {
			return err
		}
	}
	return nil
}

// reported is an address that a pod reports.
type reported struct {
	addr    netip.Addr
	network string
	pod     *kv.Pod
}

func compareReported(x, y reported) int {
	return cmp.Or(
		x.addr.Compare(y.addr),
		cmp.Compare(x.pod.Namespace, y.pod.Namespace),
		cmp.Compare(x.pod.Name, y.pod.Name))
}

// networkOf returns the network of an address among names, PodPool if no block contains it.
func (s *state) networkOf(names []string, a netip.Addr) string {
	for _, name := range names {
		n := s.networks[name]
		contains := func(p netip.Prefix) bool { return p.Contains(a) }
		if slices.ContainsFunc(n.open, contains) || slices.ContainsFunc(n.draining, contains) {
			return name
		}
	}
	return PodPool
}

// isLeased reports whether the address has a lease that does not cool. It logs a lease of
// another pod.
func (i *IPAM) isLeased(x reported) bool {
	l, ok := i.Ledger.Lookup(x.network, x.addr)
	if !ok || l.State == ledger.Cooling {
		return false
	}
	if l.Pod.Name != "" && (l.Pod.Name != x.pod.Name || l.Pod.Namespace != x.pod.Namespace) {
		i.Log.Warn("two pods have one address",
			"address", x.addr, "leased", l.Pod.String(), "reported", x.pod.Namespace+"/"+x.pod.Name)
	}
	return true
}

// occupy quarantines an address that a pod reports.
func (i *IPAM) occupy(x reported) error {
	id := ledger.Pod{Namespace: x.pod.Namespace, Name: x.pod.Name, UID: x.pod.Uid}
	fresh, err := i.Stage.Quarantine(x.network, x.addr, id, "pod "+id.String()+" reports it, and it is not leased")
	if isOutside(err) {
		return nil // it belongs to another node
	}
	if fresh {
		i.Log.Warn("address in use without a lease is quarantined", "address", x.addr, "pod", id.String())
	}
	return err
}

// HandlesEvent selects:
//   - any Resync event
//   - NodeUpdate if external IPAM is in use: for the current node it may
//     trigger PodCIDRChange, for others it changes their pod subnets
//   - as extensions of the published plugin: changes of pools, custom networks and this
//     node's NetResourceSet, AddPod, DeletePod, ClaimChange, InterfaceChange, and NodeUpdate of the current
//     node without external IPAM, to report a mismatch
func (i *IPAM) HandlesEvent(event controller.Event) bool {
	if event.Method() != controller.Update {
		return true
	}
	if update, ok := event.(*nodesync.NodeUpdate); ok {
		return i.ContivConf.UseExternalIPAM() || i.fromNetResources() ||
			update.NodeName == i.ServiceLabel.GetAgentLabel()
	}
	switch event.(type) {
	case *nodesync.ClaimChange, *InterfaceChange:
		return true
	}
	return isPodEvent(event) || isNetworkChange(event) || i.isOwnSet(event)
}

// updateNode follows one node with external IPAM. Only a change of this node costs more
// than its entries in the index.
func (i *IPAM) updateNode(ev *nodesync.NodeUpdate, txn controller.UpdateOperations) (string, error) {
	if indexed := i.state.Load().neighbours; indexed != nil { // the claims of this node count for the routes, too
		// NodeSync may know more than this event tells: a resync has indexed that already.
		indexed.set(ev.NodeName, nodesync.GetNode(i.NodeSync, ev.NodeName))
	}
	if ev.NodeName != i.ServiceLabel.GetAgentLabel() {
		return "", nil
	}
	s := *i.state.Load()
	i.noteMismatch(&s)
	i.state.Store(&s)
	if !i.ContivConf.UseExternalIPAM() {
		return s.mismatch, nil
	}
	own := ev.NewState
	if own == nil {
		own = &nodesync.Node{}
	}
	if sameSet(s.asked, i.ofOurFamilies(own.PodCIDRs)) && s.askedProblem == own.PodCIDRProblem {
		return "", nil
	}
	next := s
	var err error
	if next.nodes, err = i.ContivConf.Cluster().Node(s.nodeID); err != nil {
		return "", err
	}
	next.pending, next.kept = "", nil
	if i.fromNodeObject(&next, own) {
		return i.openNow(&next, ev.GetName(), txn)
	}
	return i.changePodSubnets(&next, own, ev.GetName(), txn)
}

// changePodSubnets follows a change of the pod subnets to those of next. It pushes one
// PodCIDRChange when this node holds the claims of all of them, or lost one: the resync of
// that event opens and drains blocks. Until then next counts, and its subnets without a claim
// stay closed.
func (i *IPAM) changePodSubnets(
	next *state,
	own *nodesync.Node,
	cause string,
	txn controller.UpdateOperations,
) (string, error) {
	s := *i.state.Load()
	have, want := podSubnets(s.nodes), podSubnets(next.nodes)
	isLost := func(p netip.Prefix) bool {
		return slices.ContainsFunc(next.waiting, func(t claims.Target) bool { return t == claims.Block(p) })
	}
	if sameSet(have, want) || len(next.waiting) > 0 && !slices.ContainsFunc(have, isLost) {
		return i.openNow(next, cause, txn)
	}
	change := &PodCIDRChange{Node: own}
	if len(want) > 0 {
		change.LocalPodCIDR = toNet(want[0].Masked())
	}
	if err := txn.FollowUp(change); err != nil {
		return "", err
	}
	s.asked, s.askedProblem = next.asked, next.askedProblem // the event is pushed once
	s.wanted = slices.Concat(s.wanted, next.wanted)         // the claims of both until the resync
	i.state.Store(&s)
	return fmt.Sprintf("pod subnets %v -> %v", texts(have), texts(want)), nil
}

// ofOurFamilies returns the first prefix of each configured family.
func (i *IPAM) ofOurFamilies(cidrs []netip.Prefix) (ours []netip.Prefix) {
	for _, f := range i.ContivConf.Cluster().Families {
		if p, found := ofFamily(cidrs, f.Pods); found {
			ours = append(ours, p)
		}
	}
	return ours
}

func podSubnets(nodes []addrplan.Node) []netip.Prefix {
	var all []netip.Prefix
	for _, n := range nodes {
		if n.PodSubnet.IsValid() {
			all = append(all, n.PodSubnet)
		}
	}
	return all
}

// sameSet reports whether xs and ys have the same prefixes in any order.
func sameSet(xs, ys []netip.Prefix) bool {
	return slices.Equal(sortedPrefixes(xs), sortedPrefixes(ys))
}

func sortedPrefixes(xs []netip.Prefix) []netip.Prefix {
	var all []netip.Prefix
	for _, x := range xs {
		all = append(all, x.Masked())
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return slices.Compact(all)
}

func texts(ps []netip.Prefix) string {
	if len(ps) == 0 {
		return "none"
	}
	return strings.Join(each(ps, netip.Prefix.String), ",")
}
