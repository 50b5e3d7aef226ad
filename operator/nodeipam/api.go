// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	informers "k8s.io/client-go/informers/core/v1"
	clientset "k8s.io/client-go/kubernetes"

	"github.com/cadastre/cadastre/operator/blocks"
)

// CIDRAllocator gives nodes their CIDRs.
type CIDRAllocator interface {
	// AllocateOrOccupyCIDR gives the node CIDRs if it has none, and else
	// records that those that it has are in use.
	AllocateOrOccupyCIDR(node *v1.Node) error
	// ReleaseCIDR frees the CIDRs of a node that is gone.
	ReleaseCIDR(node *v1.Node) error
	// Run works until stopCh is closed.
	Run(stopCh <-chan struct{})
}

// CIDRAllocatorType selects the source of the nodes' CIDRs.
type CIDRAllocatorType string

// The types. The last two were published without their type, and are so here.
const (
	// RangeAllocatorType gives nodes blocks of the cluster CIDR.
	RangeAllocatorType CIDRAllocatorType = "RangeAllocator"
	// CloudAllocatorType gives nodes what a cloud routes to their machines.
	CloudAllocatorType CIDRAllocatorType = "CloudAllocator"
	// IPAMFromClusterAllocatorType gives nodes blocks of the cluster CIDR, and
	// has the cloud route them.
	IPAMFromClusterAllocatorType = "IPAMFromCluster"
	// IPAMFromCloudAllocatorType gives nodes what a cloud routes to their
	// machines, and compares again and again.
	IPAMFromCloudAllocatorType = "IPAMFromCloud"
)

// NodeSyncMode is the direction in which a Controller synchronizes.
type NodeSyncMode string

const (
	// SyncFromCloud is from the cloud to the cluster.
	SyncFromCloud NodeSyncMode = "SyncFromCloud"
	// SyncFromCluster is from the cluster to the cloud.
	SyncFromCluster NodeSyncMode = "SyncFromCluster"
)

// New makes the allocator of a type, and registers the informer of nodes: a
// caller may start its factory before Run or after it. clusterCIDR and nodeCIDRMaskSize are not
// looked at where the cloud chooses the CIDRs; serviceCIDR and cloud may be nil
// where they are not needed. NewAllocator can have more ranges, and both families.
func New(
	kubeClient clientset.Interface,
	cloud Cloud,
	nodeInformer informers.NodeInformer,
	allocatorType CIDRAllocatorType,
	clusterCIDR, serviceCIDR *net.IPNet,
	nodeCIDRMaskSize int,
) (CIDRAllocator, error) {
	if allocatorType == "" {
		return nil, errors.New("make a CIDR allocator: no type is given")
	}
	settings, err := oneRange(allocatorType, clusterCIDR, serviceCIDR, nodeCIDRMaskSize)
	if err != nil {
		return nil, err
	}
	return checked(NewAllocator(Deps{Client: kubeClient, Nodes: nodeInformer, Cloud: cloud}, settings))
}

// NewCIDRRangeAllocator makes a RangeAllocator, and registers the informer of
// nodes. nodeList are the nodes that there
// are; with nil they are read from the API server before the first CIDR is given.
func NewCIDRRangeAllocator(
	client clientset.Interface,
	nodeInformer informers.NodeInformer,
	clusterCIDR *net.IPNet,
	serviceCIDR *net.IPNet,
	subNetMaskSize int,
	nodeList *v1.NodeList,
) (CIDRAllocator, error) {
	settings, err := oneRange(RangeAllocatorType, clusterCIDR, serviceCIDR, subNetMaskSize)
	if err != nil {
		return nil, err
	}
	a, err := NewAllocator(Deps{Client: client, Nodes: nodeInformer}, settings)
	if err != nil {
		return nil, err
	}
	if nodeList != nil {
		a.preload(nodeList.Items)
	}
	return a, nil
}

// NewCloudCIDRAllocator makes a CloudAllocator, and registers the informer of
// nodes.
func NewCloudCIDRAllocator(
	client clientset.Interface,
	cloud Cloud,
	nodeInformer informers.NodeInformer,
) (CIDRAllocator, error) {
	return checked(
		NewAllocator(Deps{Client: client, Nodes: nodeInformer, Cloud: cloud}, Settings{Type: CloudAllocatorType}),
	)
}

// checked keeps a nil *Allocator from becoming a CIDRAllocator that is not nil.
func checked(a *Allocator, err error) (CIDRAllocator, error) {
	if err != nil {
		return nil, err
	}
	return a, nil
}

// oneRange are the settings of the published constructors. Blocks do not cool
// down with them, as they never did.
func oneRange(t CIDRAllocatorType, cluster, service *net.IPNet, bits int) (Settings, error) {
	s := Settings{Type: t}
	if t == CloudAllocatorType || t == IPAMFromCloudAllocatorType {
		return s, nil
	}
	if cluster == nil {
		return s, fmt.Errorf("make a CIDR allocator of type %s: it needs a cluster CIDR", t)
	}
	p, err := prefixOf(cluster)
	if err != nil {
		return s, fmt.Errorf("make a CIDR allocator of type %s: cluster CIDR: %w", t, err)
	}
	s.Ranges = []blocks.Range{{Prefix: p, Bits: bits}}
	if service == nil {
		return s, nil
	}
	if p, err = prefixOf(service); err != nil {
		return s, fmt.Errorf("make a CIDR allocator of type %s: service CIDR: %w", t, err)
	}
	s.Reserved = []netip.Prefix{p}
	return s, nil
}

// Config holds the intervals and the direction of a Controller.
type Config struct {
	// Resync is the time between two synchronizations of a node, without errors.
	Resync time.Duration
	// MaxBackoff is the longest time to the next one after errors.
	MaxBackoff time.Duration
	// InitialRetry is the time after a first error.
	InitialRetry time.Duration
	// Mode is the direction.
	Mode NodeSyncMode
}

// Controller keeps the cluster's podCIDRs and the cloud's aliases the same. It
// is an Allocator of one of the IPAMFrom types, under its published name.
type Controller struct {
	allocator *Allocator

	mu   sync.Mutex
	stop context.CancelFunc // none before Start
	done chan struct{}
}

// NewController makes a Controller of one cluster CIDR.
func NewController(
	config *Config,
	kubeClient clientset.Interface,
	cloud Cloud,
	clusterCIDR, serviceCIDR *net.IPNet,
	nodeCIDRMaskSize int,
) (*Controller, error) {
	if config == nil {
		return nil, errors.New("make an IPAM controller: no configuration")
	}
	types := map[NodeSyncMode]CIDRAllocatorType{
		SyncFromCluster: IPAMFromClusterAllocatorType,
		SyncFromCloud:   IPAMFromCloudAllocatorType,
	}
	if types[config.Mode] == "" {
		return nil, fmt.Errorf("make an IPAM controller: invalid IPAM controller mode %q", config.Mode)
	}
	settings, err := oneRange(types[config.Mode], clusterCIDR, serviceCIDR, nodeCIDRMaskSize)
	if err != nil {
		return nil, err
	}
	settings.Sync = *config
	return NewControllerOf(Deps{Client: kubeClient, Cloud: cloud}, settings)
}

// NewControllerOf makes a Controller of any number of ranges; the type in the
// settings is one of the IPAMFrom types.
func NewControllerOf(deps Deps, settings Settings) (*Controller, error) {
	a, err := NewAllocator(deps, settings)
	if err != nil {
		return nil, err
	}
	return &Controller{allocator: a}, nil
}

// Start reads all nodes, and then keeps them synchronized until Close. It
// returns when the nodes are read, or cannot be. The informer is registered
// before Start returns, and may be started afterwards.
func (c *Controller) Start(nodeInformer informers.NodeInformer) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stop != nil {
		return errors.New("start the IPAM controller: it was started before")
	}
	if nodeInformer == nil {
		return errors.New("start the IPAM controller: the informer of nodes is nil")
	}
	nodeInformer.Informer()
	ctx, cancel := context.WithCancel(context.Background())
	if err := c.allocator.load(ctx); err != nil {
		cancel()
		return fmt.Errorf("start the IPAM controller: %w", err)
	}
	c.stop, c.done = cancel, make(chan struct{})
	made := func(context.Context) error { return nil }
	go func() {
		defer close(c.done)
		if err := c.allocator.run(ctx, nodeInformer, made); err != nil {
			c.allocator.log.Error("the IPAM controller has ended", "error", err)
		}
	}()
	return nil
}

// Close ends what Start has started, and waits for it.
func (c *Controller) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stop != nil {
		c.stop()
		<-c.done
	}
	return nil
}

// Allocator returns the Allocator of the Controller.
func (c *Controller) Allocator() *Allocator { return c.allocator }

// prefixOf is n in our form. IPv4 written as IPv6 is IPv4.
func prefixOf(n *net.IPNet) (netip.Prefix, error) {
	a, ok := netip.AddrFromSlice(n.IP)
	ones, width := n.Mask.Size()
	if !ok || width == 0 || width > a.BitLen() {
		return netip.Prefix{}, fmt.Errorf("%v is not a CIDR", n)
	}
	if a.Is4In6() && (width == 32 || ones >= 96) {
		a = a.Unmap()
		ones -= width - 32
	}
	return netip.PrefixFrom(a, ones).Masked(), nil
}
