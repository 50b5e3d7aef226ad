// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/ledger/addrspace"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipam/addrplan"
	"github.com/cadastre/cadastre/plugins/ipam/nodeset"
	"github.com/cadastre/cadastre/plugins/ipam/poolplan"
	"github.com/cadastre/cadastre/plugins/kubestate"
)

// smallBlock is the size below which a block has no gateway of its own: all of its
// addresses are allocated.
const smallBlock = 8

func isSmall(block netip.Prefix) bool { return addrspace.Size(block) < smallBlock }

// fromNetResources reports whether this node's blocks are those of its NetResourceSet.
func (i *IPAM) fromNetResources() bool {
	return i.ContivConf.PodBlocks() == contivconf.PodBlocksNetResource
}

// deriveResources takes the blocks of the default network from this node's
// NetResourceSet: all of its pool except the blocks on their way back. It reports a block
// that cannot be used and takes the remaining ones.
func (i *IPAM) deriveResources(s *state) error {
	name := i.ServiceLabel.GetAgentLabel()
	if s.neighbours == nil { // in a resync; between resyncs each NodeUpdate changes its node
		s.neighbours = newNeighbours(i.NodeSync.GetAllNodes())
	}
	s.set, s.seen, s.pending = i.register.set, i.register.seen, ""
	pods := i.podAddresses()
	s.uplinks = nodeset.UplinksOf(s.set).Keeping(i.state.Load().uplinks, pods).Keeping(i.recorded, pods)
	if s.set == nil {
		s.pending = fmt.Sprintf(
			"waiting for NetResourceSet %s, which this agent creates if there is a Node %s",
			name,
			name,
		)
	}
	open := i.usableBlocks(s)
	if i.register.local { // the mirror may be older than the release of a block
		known := i.activeBlocks()
		open = slices.DeleteFunc(open, func(p netip.Prefix) bool { return !known[p] })
	}
	s.networks[PodPool] = network{open: open}
	if text := s.set.GetOperatorError(); text != "" {
		s.problems = append(s.problems, Problem{Object: "netresourceset/" + name, Text: "the operator says: " + text})
	}
	s.whole = i.wholeBlocks(s, open)
	withGateway := slices.DeleteFunc(slices.Clone(open), func(p netip.Prefix) bool { return s.isWhole(PodPool, p) })
	if err := s.setPods(withGateway); err != nil {
		return err
	}
	for _, f := range s.families {
		if _, has := ofFamily(open, f.Hosts); s.pending == "" && !has {
			s.pending = fmt.Sprintf("NetResourceSet %s has no addresses of the family of %s to allocate", name, f.Hosts)
			s.explainPending()
		}
	}
	return nil
}

// isWhole reports whether all addresses of a block are allocated: the block has no gateway.
func (s *state) isWhole(name string, block netip.Prefix) bool {
	return isSmall(block) || name == PodPool && s.whole[block]
}

// wholeBlocks returns the blocks of the default network without a gateway of their own: those
// of interfaces. The cloud routes each of their addresses to the interface, and the subnet has
// the gateway. A block with pods stays as it is, because pods have its gateway in their routes.
func (i *IPAM) wholeBlocks(s *state, open []netip.Prefix) map[netip.Prefix]bool {
	gateways, pods := map[netip.Prefix]bool{}, map[netip.Prefix]bool{}
	for _, l := range i.Ledger.LeasesOf(PodPool) {
		if l.Purpose == ledger.ForInfra {
			gateways[l.Block] = true
		} else if l.State != ledger.Cooling {
			pods[l.Block] = true
		}
	}
	blocks := slices.Clone(open)
	for _, b := range i.Ledger.Stats() {
		if b.Pool == PodPool {
			blocks = append(blocks, b.Block)
		}
	}
	whole := map[netip.Prefix]bool{}
	for _, p := range blocks {
		if _, whole[p] = s.uplinks.Of(p.Addr()); i.fromInterfaces() {
			whole[p] = true
		}
		if pods[p] {
			whole[p] = !gateways[p]
		}
	}
	return whole
}

// podAddresses returns the addresses of the default network that pods have.
func (i *IPAM) podAddresses() (all []netip.Addr) {
	for _, l := range i.Ledger.LeasesOf(PodPool) {
		if l.State == ledger.Held && l.Purpose != ledger.ForInfra {
			all = append(all, l.Addr)
		}
	}
	return all
}

// usableBlocks returns the blocks of the NetResourceSet from which addresses may be
// allocated, in order, and reports those that cannot be used.
func (i *IPAM) usableBlocks(s *state) []netip.Prefix {
	s.usable = nodeset.Read(s.set, nodeset.Rules{
		Refuse: s.refuse,
		Leased: i.setUsage().Leased,
	})
	for _, p := range s.usable.Problems {
		s.problems = append(s.problems, Problem{
			Object: "netresourceset/" + s.set.Name,
			Text:   fmt.Sprintf("%q %s", p.Key, p.Text),
		})
	}
	return s.usable.Open
}

// refuse returns the reason why this node cannot allocate from a block of its set.
func (s *state) refuse(_ string, p netip.Prefix) error {
	sameFamily := func(f addrplan.Family) bool { return f.Hosts.Addr().Is4() == p.Addr().Is4() }
	if !slices.ContainsFunc(s.families, sameFamily) {
		return errors.New("is of a family that contiv.conf does not have")
	}
	if err := s.clash([]netip.Prefix{p}); err != nil {
		return fmt.Errorf("cannot be used: %w", err)
	}
	if k := slices.IndexFunc(s.pools, func(x poolplan.Pool) bool { return shares(x, p) }); k >= 0 {
		return fmt.Errorf("cannot be used: it overlaps %s", s.pools[k])
	}
	return nil
}

// shares reports whether a pool that is not removed has addresses of a block.
func shares(x poolplan.Pool, block netip.Prefix) bool {
	overlaps := func(r poolplan.Range) bool { return r.CIDR.Overlaps(block) }
	return x.State != poolplan.Removed && slices.ContainsFunc(x.Ranges, overlaps)
}

// activeBlocks returns the blocks from which the ledger allocates.
func (i *IPAM) activeBlocks() map[netip.Prefix]bool {
	active := map[netip.Prefix]bool{}
	for _, b := range i.Ledger.Stats() {
		if b.Pool == PodPool && b.State == ledger.Active {
			active[b.Block] = true
		}
	}
	return active
}

// updateResources follows a change of this node's NetResourceSet.
func (i *IPAM) updateResources(ev *controller.KubeStateChange, txn controller.UpdateOperations) (string, error) {
	i.register.set, _ = ev.New.(*kv.NetResourceSet)
	i.register.seen = ev.Revision
	was := i.state.Load()
	if i.register.set != nil && alike(was.set, i.register.set) { // this node wrote the change itself
		next := *was
		next.set, next.seen = i.register.set, i.register.seen
		i.state.Store(&next)
		return "", nil
	}
	return i.updateBlocks(ev.Key, txn)
}

// alike reports whether two versions of a set have the same usable blocks.
func alike(a, b *kv.NetResourceSet) bool {
	return a != nil && a.OperatorError == b.OperatorError && nodeset.SameGrants(a, b)
}

// isOwnSet reports whether event changes this node's NetResourceSet.
func (i *IPAM) isOwnSet(event controller.Event) bool {
	change, ok := event.(*controller.KubeStateChange)
	return ok && change.Resource == kubestate.NetResourceSets && i.fromNetResources() &&
		change.Key == kv.NetResourceSetKey(i.ServiceLabel.GetAgentLabel())
}

// edges returns the reserved addresses of a block and their purpose.
func (s *state) edges(block netip.Prefix) map[netip.Addr]string {
	if s.isWhole(PodPool, block) {
		return nil
	}
	gateway, _ := addrspace.Nth(block, 1)
	loopback, _ := addrspace.NthLast(block, 1)
	last, _ := addrspace.NthLast(block, 0)
	return map[netip.Addr]string{
		block.Addr(): "network",
		gateway:      "gateway",
		loopback:     LoopbackName,
		last:         "broadcast",
	}
}

// BlockGateway returns the gateway of the pods in a block: the address after the network
// address. For a block that is too small it is the VPP end of this node's link.
func (i *IPAM) BlockGateway(block netip.Prefix) netip.Addr {
	if !i.state.Load().isWhole(PodPool, block.Masked()) {
		gateway, _ := addrspace.Nth(block.Masked(), 1)
		return gateway
	}
	for _, n := range i.nodes() {
		if n.HostVPP.Is4() == block.Addr().Is4() {
			return n.HostVPP
		}
	}
	return netip.Addr{}
}

// routed returns the blocks that other nodes route to this one: the active ones, and the
// draining ones in which pods still have addresses.
func (i *IPAM) routed(s *state) []netip.Prefix {
	all := slices.Clone(s.networks[PodPool].open)
	for _, b := range i.Ledger.Stats() {
		if b.Pool == PodPool && b.State == ledger.Draining && b.Held > 0 {
			all = append(all, b.Block)
		}
	}
	return sortedPrefixes(all)
}

// firstSet returns the NetResourceSet for a node that has none.
func (i *IPAM) firstSet(node *kv.Node) *kv.NetResourceSet {
	marks := i.ContivConf.NetResource()
	return nodeset.First(node, i.ContivConf.InstanceID(), &kv.NetResourceMarks{
		MinAllocate:       int32(marks.MinAllocate),
		MaxAllocate:       int32(marks.MaxAllocate),
		PreAllocate:       int32(marks.PreAllocate),
		MaxAboveWatermark: int32(marks.MaxAboveWatermark),
	}, i.Ledger, PodPool)
}
