// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/nodesync"
	"github.com/cadastre/cadastre/plugins/podmanager"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

func isPodEvent(event controller.Event) bool {
	switch event.(type) {
	case *podmanager.AddPod, *podmanager.DeletePod:
		return true
	}
	return false
}

func isOutside(err error) bool {
	return errors.Is(err, ledger.ErrOutside) || errors.Is(err, ledger.ErrNoPool)
}

// Update handles NodeUpdate if external IPAM is in use, AddPod, DeletePod, and changes of
// claims, pools, custom networks and the NetResourceSet.
func (i *IPAM) Update(event controller.Event, txn controller.UpdateOperations) (changeDescription string, err error) {
	switch ev := event.(type) {
	case *nodesync.NodeUpdate:
		return i.updateNode(ev, txn)
	case *nodesync.ClaimChange:
		return i.updateClaims(ev, txn)
	case *InterfaceChange:
		return i.updateInterfaces(ev, txn)
	case *controller.KubeStateChange:
		if i.isOwnSet(ev) {
			return i.updateResources(ev, txn)
		}
		return i.updateNetworks(ev, txn)
	case *podmanager.AddPod:
		return i.addPod(ev)
	case *podmanager.DeletePod:
		return i.deletePod(ev)
	}
	return "", nil
}

// addPod stages the claim of an attachment and sets its addresses.
func (i *IPAM) addPod(ev *podmanager.AddPod) (string, error) {
	ev.Fresh, ev.Generation, ev.Remnant = false, 0, nil // of an earlier try beside other events
	networks := i.state.Load().networks
	if _, ok := networks[ev.Pool]; !ok && ev.Pool != PodPool {
		known := strings.Join(slices.Sorted(maps.Keys(networks)), ", ")
		return "", fmt.Errorf("pool %q: %w; pods have %s", ev.Pool, ledger.ErrNoPool, known)
	}
	if why := i.Pending(); why != "" && ev.Pool == PodPool && len(i.Ledger.ByKey(ev.Key)) == 0 {
		return "", errors.New(why)
	}
	leases, fresh, err := i.Stage.Claim(ledger.Request{
		Pool:     ev.Pool,
		Key:      ev.Key,
		Pod:      ledger.Pod{Namespace: ev.Pod.Namespace, Name: ev.Pod.Name, UID: ev.UID},
		NetNS:    ev.Netns,
		NetNSID:  ev.NetNSID,
		Wired:    ev.Wired,
		MAC:      ev.MAC,
		Accepted: ev.Ticket,
		Wanted:   ev.Wanted,
		Listed:   ev.Pool == PodPool && i.fromInterfaces(),
		Rested:   ev.Pool == PodPool && i.fromInterfaces(),
	})
	if errors.Is(err, ledger.ErrExhausted) && ev.Pool == PodPool {
		err = i.shortage(err)
	}
	if err != nil {
		return "", err
	}
	if ev.Fresh = fresh; fresh {
		ev.Generation = leases[0].Generation
	}
	i.byFamily(leases)
	ev.Addresses = each(leases, ledger.Lease.Prefix)
	if ev.Pool == PodPool && i.fromInterfaces() {
		ev.Addresses = hostPrefixes(leases)
	}
	i.event.Store(&podEvent{AddPod: ev, pod: ev.Pod, onLoop: controller.OnLoop()})
	if !fresh { // the lease stays that of the first ADD's pod
		pod := leases[0].Pod
		ev.Netns, ev.NetNSID, ev.Wired, ev.MAC = leases[0].NetNS, leases[0].NetNSID, leases[0].Wired, leases[0].MAC
		ev.Pod, ev.UID = kv.PodID{Namespace: pod.Namespace, Name: pod.Name}, pod.UID
		return "", nil
	}
	return "leased " + texts(ev.Addresses), nil
}

// byFamily sorts leases by family, the first configured family first.
func (i *IPAM) byFamily(leases []ledger.Lease) {
	fs := i.families()
	if len(fs) > 0 && !fs[0].Pods.Addr().Is4() {
		slices.SortStableFunc(leases, func(x, y ledger.Lease) int { return y.Addr.BitLen() - x.Addr.BitLen() })
	}
}

// deletePod stages the release of an attachment.
func (i *IPAM) deletePod(ev *podmanager.DeletePod) (string, error) {
	if ev.Void() {
		return "", nil
	}
	ev.Freed = nil // of an earlier try beside other events
	leases, err := i.Stage.Release(ledger.Selector{Key: ev.Key, Generation: ev.Generation, Reason: ev.Reason})
	if err != nil || len(leases) == 0 {
		return "", err
	}
	ev.Release(leases)
	return fmt.Sprintf("released %v", ev.Freed), nil
}

// Revert releases what an AddPod claimed; a repeated AddPod claimed nothing. If a part of the
// wire may remain, its addresses stay leased: the DEL of the attachment, or reclaim when its
// namespace is gone, frees them after the wire.
func (i *IPAM) Revert(event controller.Event) error {
	ev, ok := event.(*podmanager.AddPod)
	if !ok {
		return nil
	}
	i.event.Store(nil)
	if !ev.Fresh {
		return nil
	}
	ev.Fresh = false
	if ev.Remnant != nil {
		i.Log.Error("a failed attachment keeps its addresses until its DEL: its wire could not be removed",
			"key", ev.Key.String(), "addresses", texts(ev.Addresses), "error", ev.Remnant)
		return nil //nolint:nilerr // the lease stays on purpose
	}
	_, err := i.Stage.Release(ledger.Selector{
		Key:        ev.Key,
		Generation: ev.Generation,
		Reason:     "the event that claimed it failed",
	})
	return err
}

// podEvent holds the AddPod that ipam handled last. It is in progress until it is over.
type podEvent struct {
	*podmanager.AddPod
	pod    kv.PodID // of the request
	onLoop bool     // an event loop processes it: only its goroutine may see what is not committed
}

// ownEvent returns the event in progress if it is for the pod and the caller is a handler
// of it, otherwise nil.
func (i *IPAM) ownEvent(podID kv.PodID) *podEvent {
	ev := i.event.Load()
	if ev == nil || ev.pod != podID || ev.Over() || ev.onLoop && !controller.OnLoop() {
		return nil
	}
	return ev
}

// staged returns the leases that the pod's own event has staged for the pod's main
// attachment, none if there is no such event.
func (i *IPAM) staged(podID kv.PodID) []ledger.Lease {
	ev := i.ownEvent(podID)
	if ev == nil || i.mainOf(podID, ev.Key) != ev.Key {
		return nil
	}
	leases := i.Stage.Claimed(ev.Key)
	i.byFamily(leases)
	return leases
}

// checkNames returns an error for a pod without valid names: its key could be that of
// another pod. Inside the event of an attachment they may be missing, as in CNI.
func (i *IPAM) checkNames(podID kv.PodID) error {
	if len(i.staged(podID)) > 0 {
		return nil
	}
	return cni.Pod{Namespace: podID.Namespace, Name: podID.Name}.CheckNames()
}

// podKey returns the key of the main attachment of the container of the pod's own event,
// otherwise that of its newest sandbox, otherwise that of the Go API.
func (i *IPAM) podKey(podID kv.PodID) ledger.Key {
	if ev := i.ownEvent(podID); ev != nil {
		if key := i.mainOf(podID, ev.Key); len(i.Ledger.ByKey(key)) > 0 {
			return key
		}
	}
	if key, ok := i.newestSandbox(podID); ok {
		return key
	}
	return ledger.Key{Network: ledger.APINetwork, ContainerID: "pod:" + podID.String(), IfName: "eth0"}
}

// newestSandbox returns the key of podmanager. Without podmanager it is the main
// attachment of the container with the pod's newest lease.
func (i *IPAM) newestSandbox(podID kv.PodID) (key ledger.Key, found bool) {
	if i.PodManager != nil {
		return i.PodManager.NewestSandbox(podID)
	}
	leases := i.leasesOf(podID)
	if len(leases) == 0 {
		return ledger.Key{}, false
	}
	return i.mainOf(podID, leases[len(leases)-1].Key), true
}

// mainOf returns the main attachment of the container of key: the oldest one. A further
// interface does not change the pod's address.
func (i *IPAM) mainOf(podID kv.PodID, key ledger.Key) ledger.Key {
	for _, l := range i.leasesOf(podID) {
		if l.Key.ContainerID == key.ContainerID {
			return l.Key
		}
	}
	return key
}

// leasesOf returns the leases that the pod holds, the oldest first.
func (i *IPAM) leasesOf(podID kv.PodID) []ledger.Lease {
	leases := slices.DeleteFunc(i.Ledger.Leases(), func(l ledger.Lease) bool {
		return l.Purpose != ledger.ForPod || !l.InUse() ||
			l.Pod.Namespace != podID.Namespace || l.Pod.Name != podID.Name
	})
	slices.SortStableFunc(leases, func(x, y ledger.Lease) int { return cmp.Compare(x.Generation, y.Generation) })
	return leases
}

// AllocatePodIPs leases an address of each family for the pod. During the pod's own
// AddPod it returns to the handlers of the event the addresses that ipam has staged. For
// any other caller it fails with ledger.ErrBusy until the event is done.
func (i *IPAM) AllocatePodIPs(podID kv.PodID, ipamType string, ipamData string) ([]net.IP, error) {
	if err := i.checkNames(podID); err != nil {
		return nil, fmt.Errorf("allocate an address: %w", err)
	}
	if err := i.usable(); err != nil {
		return nil, fmt.Errorf("allocate an address for pod %s: %w", podID, err)
	}
	var wanted []netip.Addr
	if i.ContivConf.UseExternalIPAM() && ipamData != "" {
		a, err := externalAddress(ipamType, ipamData)
		if err != nil {
			return nil, fmt.Errorf("allocate an address for pod %s: %w", podID, err)
		}
		wanted = []netip.Addr{a}
	}
	leases, err := i.allocate(podID, wanted)
	if err != nil {
		return nil, fmt.Errorf("allocate an address for pod %s: %w", podID, err)
	}
	i.byFamily(leases)
	all := each(leases, func(l ledger.Lease) netip.Addr { return l.Addr })
	for _, a := range wanted { // first, because AllocatePodIP returns only that
		if at := slices.Index(all, a); at > 0 {
			all = slices.Insert(slices.Delete(all, at, at+1), 0, a)
		}
	}
	return each(all, toIP), nil
}

func (i *IPAM) allocate(podID kv.PodID, wanted []netip.Addr) ([]ledger.Lease, error) {
	if leases := i.staged(podID); len(leases) > 0 {
		for _, a := range wanted {
			hasAddr := func(l ledger.Lease) bool { return l.Addr == a }
			if !slices.ContainsFunc(leases, hasAddr) {
				return nil, fmt.Errorf(
					"external IPAM says %s: the event that adds the pod has claimed %s",
					a,
					leases[0].Addr,
				)
			}
		}
		return leases, nil
	}
	if why := i.Pending(); why != "" && wanted == nil {
		return nil, errors.New(why)
	}
	leases, _, err := i.Ledger.Claim(context.Background(), ledger.Request{
		Pool:   PodPool,
		Key:    i.podKey(podID),
		Pod:    ledger.Pod{Namespace: podID.Namespace, Name: podID.Name},
		Wanted: wanted,
		Listed: i.fromInterfaces(),
		Rested: i.fromInterfaces(),
	})
	return leases, err
}

// AllocatePodIP tries to allocate IP address for the given pod.
func (i *IPAM) AllocatePodIP(podID kv.PodID, ipamType string, ipamData string) (net.IP, error) {
	all, err := i.AllocatePodIPs(podID, ipamType, ipamData)
	return first(all), err
}

// externalAddress parses the result of another IPAM plugin: one entry of the ips of a CNI
// result.
func externalAddress(ipamType, ipamData string) (netip.Addr, error) {
	var ip struct {
		Version string `json:"version"`
		Address string `json:"address"`
		Gateway string `json:"gateway"`
	}
	if err := json.Unmarshal([]byte(ipamData), &ip); err != nil {
		return netip.Addr{}, fmt.Errorf("error by unmarshalling external IPAM result: %w", err)
	}
	p, err := netip.ParsePrefix(ip.Address)
	if err != nil {
		return netip.Addr{}, fmt.Errorf(
			"external IPAM result of %q: address %q is not an address with its prefix length",
			ipamType,
			ip.Address,
		)
	}
	a := p.Addr().Unmap()
	if ip.Version != "" && (ip.Version == "4") != a.Is4() {
		return netip.Addr{}, fmt.Errorf("external IPAM result of %q: address %s is not of version %q",
			ipamType, a, ip.Version)
	}
	return a, nil
}

// GetPodIPs returns the addresses of a pod, each with the mask of one host. During the
// pod's own AddPod they are those that ipam has staged.
func (i *IPAM) GetPodIPs(podID kv.PodID) []*net.IPNet {
	if i.checkNames(podID) != nil || i.usable() != nil {
		return nil
	}
	leases := i.staged(podID)
	if len(leases) == 0 {
		leases = i.Ledger.ByKey(i.podKey(podID))
		i.byFamily(leases)
	}
	return each(leases, func(l ledger.Lease) *net.IPNet { return toNet(netip.PrefixFrom(l.Addr, l.Addr.BitLen())) })
}

// GetPodIP returns the allocated pod IP, together with the mask. Returns nil if
// the pod does not have allocated IP address.
func (i *IPAM) GetPodIP(podID kv.PodID) *net.IPNet { return first(i.GetPodIPs(podID)) }

// ReleasePodIP releases the pod IP address making it available for new PODs.
// The southbound values of a sandbox go with its DeletePod, or with the next resync.
// During the pod's own AddPod it does nothing: only the revert of the event knows
// whether the event claimed the address, or an earlier one.
// A handler that calls it, for example in a DeletePod, releases only addresses of
// AllocatePodIP. ipam itself releases the lease of the sandbox that the event deletes,
// and the newest sandbox of the pod may be another one.
func (i *IPAM) ReleasePodIP(podID kv.PodID) error {
	if err := i.usable(); err != nil {
		return fmt.Errorf("release the address of pod %.300s: %w", podID, err)
	}
	if ev := i.ownEvent(podID); ev != nil && (ev.onLoop || len(i.Stage.Claimed(ev.Key)) > 0) {
		return nil
	}
	if err := i.checkNames(podID); err != nil {
		return fmt.Errorf("release the address of a pod: %w", err)
	}
	key := i.podKey(podID)
	if key.Network != ledger.APINetwork && controller.OnLoop() {
		return nil
	}
	leases, err := i.Ledger.Release(context.Background(), ledger.Selector{Key: key, Reason: "ReleasePodIP"})
	if err != nil {
		return fmt.Errorf("release the address of pod %s: %w", podID, err)
	}
	if len(leases) == 0 {
		i.Log.Warn("a pod without an address was released", "pod", podID.String())
	}
	return nil
}
