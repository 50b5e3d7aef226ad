// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipam/nodeset"
)

// Interfaces is the source of this node's blocks with podBlocks interfaces. Any goroutine
// may call its methods.
type Interfaces interface {
	// Known returns the interfaces and blocks that the node had before the first
	// InterfaceChange.
	Known() InterfaceState
	// Shortage returns the reason why the cloud gives no more addresses, "" if it gives
	// them.
	Shortage() string
}

// InterfaceState holds the interfaces of this node with their blocks.
type InterfaceState struct {
	Uplinks []Uplink
	Blocks  []InterfaceBlock // in the order in which they are filled
}

// InterfaceBlock is an address or a prefix of an interface, and a block of the ledger.
type InterfaceBlock struct {
	Prefix    netip.Prefix
	Interface string
	// Usable is false for a block from which nothing new is allocated: of an excluded
	// interface, of the other kind, or of one that the cloud no longer has.
	Usable bool
}

// ReturningPool is the pool of the ledger that holds the blocks on their way back to the
// cloud. No address of it is ever allocated. A block stays there until the cloud no longer
// shows it, so that a stale reading after a crash does not bring it back.
const ReturningPool = "interfaces/returning"

// InterfaceChange is pushed when the interfaces of this node or their blocks change. It
// makes Blocks those of the default pool, and Returning those of ReturningPool.
type InterfaceChange struct {
	InterfaceState
	// Returning holds the blocks on their way back to the cloud. One that the ledger still
	// has an address of is kept instead.
	Returning []netip.Prefix
	// Claims holds the leases that an imported checkpoint has for the new blocks. They are
	// claimed in the same commit.
	Claims []ledger.Request
	// Found is set if some blocks were on the interfaces before this agent knew them. The
	// event is then a resync, which quarantines the addresses among them that pods report.
	Found  bool
	OnDone func(error)

	// set by ipam:
	Kept    []netip.Prefix // blocks of Returning that are in use: they stay as they were
	Refused []RefusedBlock // usable blocks of Blocks from which pods cannot have addresses
}

// Drain stages the end of allocations from the blocks on their way back, and moves those
// without a lease to ReturningPool. The others are Kept; reopened are those of them from
// which addresses were allocated before. The caller stages the usable blocks and those of
// reopened as the blocks of the pool afterwards.
func (ev *InterfaceChange) Drain(
	l *ledger.Ledger,
	st *ledger.Stage,
	usable []InterfaceBlock,
) (reopened []netip.Prefix, err error) {
	active := map[netip.Prefix]bool{}
	for _, b := range l.Stats() {
		if b.Pool == PodPool && b.State == ledger.Active {
			active[b.Block] = true
		}
	}
	if err := st.SetBlocks(PodPool, UsablePrefixes(usable)); err != nil {
		return nil, fmt.Errorf("drain the blocks of pool %q: %w", PodPool, err)
	}
	going := slices.Clone(ev.Returning)
	ev.Kept = nil
	for _, b := range l.Stats() { // nothing more is claimed there
		i := slices.Index(going, b.Block)
		if b.Pool != PodPool || i < 0 || b.Held+b.Cooling+b.Quarantined == 0 {
			continue
		}
		going = slices.Delete(going, i, i+1)
		if ev.Kept = append(ev.Kept, b.Block); active[b.Block] {
			reopened = append(reopened, b.Block)
		}
	}
	if err := st.SetPool(ledger.Pool{Name: ReturningPool}); err != nil {
		return nil, err
	}
	if err := st.SetBlocks(ReturningPool, going); err != nil {
		return nil, fmt.Errorf("note the blocks on their way back to the cloud: %w", err)
	}
	return reopened, nil
}

// UsablePrefixes returns the blocks from which addresses are allocated, in their order.
func UsablePrefixes(blocks []InterfaceBlock) (usable []netip.Prefix) {
	for _, b := range blocks {
		if b.Usable {
			usable = append(usable, b.Prefix)
		}
	}
	return usable
}

// RefusedBlock is a block from which pods cannot have addresses.
type RefusedBlock struct {
	InterfaceBlock
	Why string
}

// String names the block and the reason.
func (b RefusedBlock) String() string {
	return fmt.Sprintf("%s of interface %s cannot be used: %s", b.Prefix, b.Interface, b.Why)
}

// GetName returns the name of the event.
func (ev *InterfaceChange) GetName() string { return "Interface Change" }

// String describes the event.
func (ev *InterfaceChange) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s\n* blocks: %d", ev.GetName(), len(ev.Blocks))
	if len(ev.Returning) > 0 {
		fmt.Fprintf(&s, "\n* on their way back: %s", texts(ev.Returning))
	}
	for _, c := range ev.Claims {
		fmt.Fprintf(&s, "\n* claim: %s for %s", strings.Join(each(c.Wanted, netip.Addr.String), ", "), c.Key)
	}
	return s.String()
}

// Method returns Update, for blocks that were found UpstreamResync.
func (ev *InterfaceChange) Method() controller.EventMethodType {
	if ev.Found {
		return controller.UpstreamResync
	}
	return controller.Update
}

// TransactionType returns BestEffort: the blocks do not depend on the southbound.
func (ev *InterfaceChange) TransactionType() controller.UpdateTransactionType {
	return controller.BestEffort
}

// Direction returns Forward.
func (ev *InterfaceChange) Direction() controller.UpdateDirectionType { return controller.Forward }

// IsBlocking returns true.
func (ev *InterfaceChange) IsBlocking() bool { return true }

// Done passes the outcome to the producer.
func (ev *InterfaceChange) Done(err error) { ev.OnDone(err) }

// fromInterfaces reports whether this node's blocks are those of its interfaces.
func (i *IPAM) fromInterfaces() bool {
	return i.ContivConf.PodBlocks() == contivconf.PodBlocksInterfaces
}

// deriveInterfaces takes the blocks of the default network from this node's interfaces. Only
// an interface that pods have addresses of, or get new ones of, becomes an uplink: the link
// of another one may be that of another program.
func (i *IPAM) deriveInterfaces(s *state) error {
	known := i.knownInterfaces()
	blocks, open := map[netip.Prefix]string{}, []netip.Prefix{}
	leased := i.leasedBlocks()
	usable, refused := i.usableOf(known.Blocks)
	for _, b := range usable {
		if b.Usable {
			open = append(open, b.Prefix)
		}
		if b.Usable || leased[b.Prefix] {
			blocks[b.Prefix] = b.Interface
		}
	}
	for _, b := range refused {
		s.problems = append(s.problems, Problem{
			Object: "interface/" + b.Interface,
			Text:   fmt.Sprintf("%s cannot be used: %s", b.Prefix, b.Why),
		})
	}
	s.uplinks = nodeset.NewUplinks(known.Uplinks, blocks)
	s.networks[PodPool] = network{open: open}
	s.pending, s.whole = "", i.wholeBlocks(s, open)
	if err := s.setPods(nil); err != nil {
		return err
	}
	for _, f := range s.families {
		if _, has := ofFamily(open, f.Hosts); s.pending == "" && !has {
			s.pending = fmt.Sprintf(
				"the interfaces of this machine have no addresses of the family of %s for pods yet",
				f.Hosts,
			)
		}
	}
	return nil
}

// leasedBlocks returns the blocks of the default network in which addresses are held.
func (i *IPAM) leasedBlocks() map[netip.Prefix]bool {
	all := map[netip.Prefix]bool{}
	for _, b := range i.Ledger.Stats() {
		if b.Pool == PodPool && b.Held+b.Quarantined > 0 {
			all[b.Block] = true
		}
	}
	return all
}

func (i *IPAM) knownInterfaces() *InterfaceState {
	if i.register.interfaces == nil {
		known := InterfaceState{}
		if i.Interfaces != nil {
			known = i.Interfaces.Known()
		}
		i.register.interfaces = &known
	}
	return i.register.interfaces
}

// updateInterfaces follows a change of this node's interfaces.
func (i *IPAM) updateInterfaces(ev *InterfaceChange, txn controller.UpdateOperations) (string, error) {
	if i.state.Load().networks == nil {
		return "", errNotSynced
	}
	was := i.register.interfaces
	if err := i.stageInterfaces(ev); err != nil {
		return "", err
	}
	text, err := i.updateBlocks(ev.GetName(), txn)
	if err != nil {
		i.register.interfaces = was
		return "", err
	}
	i.restoreClaims(ev.Claims)
	return text, nil
}

// usableOf returns the blocks, of which those that pods cannot have addresses of are not
// usable: one of them must not keep the others from pods.
func (i *IPAM) usableOf(all []InterfaceBlock) (blocks []InterfaceBlock, refused []RefusedBlock) {
	blocks = slices.Clone(all)
	for k, b := range blocks {
		if !b.Usable {
			continue
		}
		if err := i.refuseInterfaceBlock(b.Prefix); err != nil {
			blocks[k].Usable = false
			refused = append(refused, RefusedBlock{b, err.Error()})
		}
	}
	return blocks, refused
}

// stageInterfaces takes over the interfaces of ev, and stages the return of blocks.
func (i *IPAM) stageInterfaces(ev *InterfaceChange) error {
	var usable []InterfaceBlock
	usable, ev.Refused = i.usableOf(ev.Blocks)
	reopened, err := ev.Drain(i.Ledger, i.Stage, usable)
	if err != nil {
		return err
	}
	next := InterfaceState{Uplinks: ev.Uplinks, Blocks: slices.Clone(ev.Blocks)}
	for _, p := range reopened {
		iface, _ := i.UplinkOf(p.Addr())
		next.Blocks = append(next.Blocks, InterfaceBlock{Prefix: p, Interface: iface, Usable: true})
	}
	i.register.interfaces = &next
	return nil
}

// restoreClaims stages the leases of an imported checkpoint. An address that cannot be
// claimed is quarantined: a pod may use it.
func (i *IPAM) restoreClaims(all []ledger.Request) {
	for _, req := range all {
		req.Pool = PodPool
		_, _, err := i.Stage.Claim(req)
		if err == nil {
			continue
		}
		i.Log.Error("an imported lease cannot be claimed: its address is quarantined",
			"addresses", req.Wanted, "key", req.Key.String(), "error", err)
		for _, a := range req.Wanted {
			_, err := i.Stage.Quarantine(PodPool, a, req.Pod, "the imported checkpoint has it for "+req.Key.String())
			if err != nil {
				i.Log.Error("an imported address cannot be quarantined", "address", a, "error", err)
			}
		}
	}
}

// refuseInterfaceBlock returns the reason why pods cannot have addresses of a block.
// Unlike other blocks it may lie in the network of the nodes, since pods have addresses
// of the interfaces' subnets.
func (i *IPAM) refuseInterfaceBlock(p netip.Prefix) error {
	ours := false
	for _, f := range i.ContivConf.Cluster().Families {
		ours = ours || f.Hosts.Addr().Is4() == p.Addr().Is4()
		for _, x := range []struct {
			name string
			net  netip.Prefix
		}{
			{"vppHostSubnetCIDR", f.Hosts},
			{"vxlanCIDR", f.Vxlan},
			{"serviceCIDR", f.Service},
		} {
			if x.net.IsValid() && x.net.Overlaps(p) {
				return fmt.Errorf("it overlaps ipamConfig.%s %s: write another network there", x.name, x.net)
			}
		}
	}
	if !ours {
		return fmt.Errorf(
			"it is of a family that contiv.conf does not have: name a network of both families in ipamConfig.podSubnetCIDR",
		)
	}
	for _, x := range i.register.all() {
		if x.Network != PodPool && shares(x, p) {
			return fmt.Errorf("it overlaps %s", x)
		}
	}
	return nil
}

// shortage adds the cloud's reason to the error of a claim without an address.
func (i *IPAM) shortage(err error) error {
	if !i.fromInterfaces() || i.Interfaces == nil {
		return err
	}
	if why := i.Interfaces.Shortage(); why != "" {
		return fmt.Errorf("%w; %s", err, why)
	}
	return err
}

// hostPrefixes returns the addresses of leases, each with the length of one host.
func hostPrefixes(leases []ledger.Lease) []netip.Prefix {
	return each(leases, func(l ledger.Lease) netip.Prefix { return netip.PrefixFrom(l.Addr, l.Addr.BitLen()) })
}
