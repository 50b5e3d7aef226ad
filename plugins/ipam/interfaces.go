// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ipam/datastore"
	"github.com/cadastre/cadastre/ipam/nodeset"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/contivconf"
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
	Blocks  []datastore.GrantedBlock // in the order in which they are filled
}

// InterfaceChange is pushed when the interfaces of this node or their blocks change. It
// changes the blocks of the ledger as datastore.Granter describes.
type InterfaceChange struct {
	Uplinks []Uplink
	Grant   datastore.Grant
	// Found is set if some blocks were on the interfaces before this agent knew them. The
	// event is then a resync, which quarantines the addresses among them that pods report.
	Found  bool
	OnDone func(error)

	// set by ipam:
	Kept    []netip.Prefix // blocks of Grant.Returning that are in use
	Refused []RefusedBlock // usable blocks of Grant from which pods cannot have addresses
}

// RefusedBlock is a block from which pods cannot have addresses.
type RefusedBlock struct {
	datastore.GrantedBlock
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
	fmt.Fprintf(&s, "%s\n* blocks: %d", ev.GetName(), len(ev.Grant.Blocks))
	if len(ev.Grant.Returning) > 0 {
		fmt.Fprintf(&s, "\n* on their way back: %s", texts(ev.Grant.Returning))
	}
	for _, c := range ev.Grant.Claims {
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
	i.restoreClaims(ev.Grant.Claims)
	return text, nil
}

// usableOf returns the blocks, of which those that pods cannot have addresses of are not
// usable: one of them must not keep the others from pods.
func (i *IPAM) usableOf(all []datastore.GrantedBlock) (blocks []datastore.GrantedBlock, refused []RefusedBlock) {
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
	usable := ev.Grant
	usable.Blocks, ev.Refused = i.usableOf(ev.Grant.Blocks)
	kept, reopened, err := usable.Drain(i.Ledger, i.Stage, PodPool)
	if err != nil {
		return err
	}
	ev.Kept = kept
	next := InterfaceState{Uplinks: ev.Uplinks, Blocks: slices.Clone(ev.Grant.Blocks)}
	for _, p := range reopened {
		iface, _ := i.UplinkOf(p.Addr())
		next.Blocks = append(next.Blocks, datastore.GrantedBlock{Prefix: p, Interface: iface, Usable: true})
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
