// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/operator/runner"
)

// NetResourceSetManager keeps the addresses of all nodes at their watermarks. Use New.
type NetResourceSetManager struct {
	config   Config
	provider Provider
	open     context.Context // until Close
	shut     context.CancelFunc
	gate     *runner.Gate
	maintain *runner.Queue // by node
	sync     *runner.Queue // by node
	resync   *runner.Queue // one key

	unanswered atomic.Int64 // calls without an answer by their deadline since the last reading

	mu      sync.Mutex
	nodes   map[string]*NetResource
	leaving map[string]chan struct{} // turns of deleted nodes that the provider has not forgotten yet
	refused map[string]bool          // nodes that the provider refuses
	ready   bool
	started bool
	begun   time.Time // start of the newest reading of the provider
	stop    context.CancelFunc
	work    sync.WaitGroup
}

// NewNetResourceSetManager returns a manager with the defaults of Config.
func NewNetResourceSetManager(
	instancesAPI AllocationImplementation,
	k8sAPI NetResourceSetGetterUpdater,
	metrics MetricsAPI,
	parallelWorkers int64,
	releaseExcessIPs bool,
	prefixDelegation bool,
) (*NetResourceSetManager, error) {
	return New(Config{
		Instances: instancesAPI, API: k8sAPI, Metrics: metrics, Workers: parallelWorkers,
		ReleaseExcess: releaseExcessIPs, PrefixDelegation: prefixDelegation,
	})
}

// New returns a manager that does nothing before Start.
func New(c Config) (*NetResourceSetManager, error) {
	if (c.Provider == nil) == (c.Instances == nil) || c.API == nil {
		return nil, errors.New(
			"make a manager of NetResourceSets: want Config.API, and one of Config.Provider and Config.Instances",
		)
	}
	c = c.withDefaults()
	open, shut := context.WithCancel(context.Background())
	m := &NetResourceSetManager{
		config:   c,
		provider: c.Provider,
		open:     open,
		shut:     shut,
		gate:     runner.NewGate(c.Fence, fenceTimeout),
		nodes:    map[string]*NetResource{},
		leaving:  map[string]chan struct{}{},
		refused:  map[string]bool{},
		maintain: runner.NewQueue(c.TriggerInterval, c.Metrics.PoolMaintainerTrigger(), c.Now),
		sync:     runner.NewQueue(c.TriggerInterval, c.Metrics.K8sSyncTrigger(), c.Now),
		resync:   runner.NewQueue(max(c.TriggerInterval, c.ResyncInterval/30), c.Metrics.ResyncTrigger(), c.Now),
	}
	if m.provider == nil {
		m.provider = newPublished(m)
	}
	return m, nil
}

// resyncKey is the only key of the resync queue.
const resyncKey = "all"

// Start takes over from an earlier manager (Since), reads the provider, and starts workers
// that run until ctx ends or Close is called. If the provider cannot be read, it starts
// nothing. It writes no NetResourceSet: each is taken over in its own first round. Before
// Start the caller passes to Create every NetResourceSet, as it was read in this leadership.
func (n *NetResourceSetManager) Start(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	n.mu.Lock()
	if n.started {
		n.mu.Unlock()
		cancel()
		return errors.New("start the manager of NetResourceSets: it was started before")
	}
	n.started, n.stop = true, cancel
	n.mu.Unlock()
	err := n.takeOver(ctx)
	if err == nil {
		if err = n.read(ctx); err != nil {
			err = fmt.Errorf("%w: %w", ErrNotReady, err)
		}
	}
	if err != nil {
		cancel()
		n.mu.Lock()
		n.started = false
		n.mu.Unlock()
		return fmt.Errorf("start the manager of NetResourceSets: %w", err)
	}
	for _, name := range n.GetNames() {
		n.maintain.Add(name, "start", 0)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.resync.Add(resyncKey, "periodic", n.config.ResyncInterval)
	n.work.Go(func() { n.maintain.Run(ctx, int(n.config.Workers), n.maintainNode) })
	n.work.Go(func() { n.sync.Run(ctx, int(n.config.Workers), n.syncNode) })
	n.work.Go(func() { n.resync.Run(ctx, 1, n.resyncAll) })
	return nil
}

// Close stops the workers, and waits for them. The error names calls of the provider
// that do not return although their context has ended.
func (n *NetResourceSetManager) Close() error {
	n.mu.Lock()
	stop := n.stop
	n.mu.Unlock()
	n.shut()
	if stop != nil {
		stop()
	}
	n.work.Wait()
	if p, ok := n.provider.(*published); ok {
		return p.close()
	}
	return nil
}

// read makes the provider read its state.
func (n *NetResourceSetManager) read(ctx context.Context) error {
	began, err := call(ctx, n, "Read", n.config.ReadTimeout, n.provider.Read)
	n.SetInstancesAPIReadiness(err == nil)
	if err != nil {
		return fmt.Errorf("read the provider: %w", err)
	}
	n.unanswered.Store(0)
	n.mu.Lock()
	defer n.mu.Unlock()
	if began.After(n.begun) {
		n.begun = began
	}
	return nil
}

func (n *NetResourceSetManager) resyncAll(ctx context.Context, _ string) {
	defer n.resync.Add(resyncKey, "periodic", n.config.ResyncInterval)
	if err := n.read(ctx); err != nil {
		if ctx.Err() == nil {
			n.config.Log.Warn("nothing is changed until the provider can be read, trying again", "error", err)
			n.resync.Add(resyncKey, "retry", n.config.RetryInterval)
		}
		return
	}
	n.mu.Lock()
	begun := n.begun
	n.mu.Unlock()
	n.Resync(ctx, begun)
}

// Resync runs a round of each node, the largest deficit first. syncTime is the start of
// the provider's last reading.
func (n *NetResourceSetManager) Resync(ctx context.Context, syncTime time.Time) {
	n.config.Metrics.IncResyncCount()
	nodes := n.GetNodesByIPWatermark()
	n.each(ctx, nodes, func(ctx context.Context, node *NetResource) {
		ctx, cancel := context.WithTimeout(ctx, n.config.ResyncInterval)
		defer cancel()
		node.resync(ctx, syncTime)
	})
	n.report(ctx, nodes)
}

// each calls do for all nodes, Workers of them at once. It does not wait for a node that
// takes longer than runner.Patience.
func (n *NetResourceSetManager) each(
	ctx context.Context,
	nodes []*NetResource,
	do func(context.Context, *NetResource),
) {
	slots := make(chan struct{}, n.config.Workers)
	var all sync.WaitGroup
	for _, node := range nodes {
		slots <- struct{}{}
		all.Add(1)
		leave := sync.OnceFunc(func() {
			<-slots
			all.Done()
		})
		n.work.Go(func() {
			defer leave()
			late := time.AfterFunc(runner.Patience, leave)
			defer late.Stop()
			do(ctx, node)
		})
	}
	all.Wait()
}

// report sets the metrics of all nodes. A node whose addresses are not known counts
// neither as satisfied nor as in deficit.
func (n *NetResourceSetManager) report(ctx context.Context, nodes []*NetResource) {
	var sum Statistics
	deficit, full, unknown := 0, 0, 0
	for _, node := range nodes {
		if !node.Known() {
			unknown++
			continue
		}
		s := node.Stats()
		sum.UsedIPs += s.UsedIPs
		sum.AvailableIPs += s.AvailableIPs
		sum.NeededIPs += s.NeededIPs
		sum.RemainingInterfaces += s.RemainingInterfaces
		if s.NeededIPs > 0 {
			deficit++
		}
		if s.RemainingInterfaces == 0 && s.AvailableIPs <= s.UsedIPs {
			full++
		}
	}
	m := n.config.Metrics
	m.SetAllocatedIPs("used", sum.UsedIPs)
	m.SetAllocatedIPs("available", sum.AvailableIPs-sum.UsedIPs)
	m.SetAllocatedIPs("needed", sum.NeededIPs)
	m.SetAvailableInterfaces(sum.RemainingInterfaces)
	m.SetNetResourceSets("total", len(nodes))
	m.SetNetResourceSets("in-deficit", deficit)
	m.SetNetResourceSets("at-capacity", full)
	m.SetNetResourceSets("unknown", unknown)
	quotas, err := call(ctx, n, "Quotas", n.config.CallTimeout, n.provider.Quotas)
	if err != nil && ctx.Err() == nil {
		n.config.Log.Warn("read the quotas of the provider's pools", "error", err)
	}
	for id, quota := range quotas {
		m.SetAvailableIPsPerSubnet(string(id), quota.AvailabilityZone, quota.AvailableIPs)
	}
}

// Create is the same as Update.
func (n *NetResourceSetManager) Create(resource *v1alpha1.NetResourceSet) error {
	return n.Update(resource)
}

// Update receives every version of a NetResourceSet, and keeps a copy. It counts the
// node's deficit before it returns from the first version. If the provider panics or
// hangs, the status of the node says so.
func (n *NetResourceSetManager) Update(resource *v1alpha1.NetResourceSet) error {
	if resource == nil || resource.Name == "" {
		return errors.New("update a NetResourceSet: it must have a name")
	}
	node := n.nodeOf(resource)
	node.UpdatedResource(resource)
	if !node.isRemoved() {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.refused[resource.Name] {
		return fmt.Errorf("update the NetResourceSet %s: %w", resource.Name, ErrRefused)
	}
	return fmt.Errorf("update the NetResourceSet %s: it was deleted in the meantime", resource.Name)
}

// nodeOf returns the node of a NetResourceSet, a new one if there is none.
func (n *NetResourceSetManager) nodeOf(resource *v1alpha1.NetResourceSet) *NetResource {
	n.mu.Lock()
	defer n.mu.Unlock()
	node := n.nodes[resource.Name]
	if node == nil {
		turn := n.leaving[resource.Name]
		if turn == nil {
			turn = make(chan struct{}, 1)
		}
		node = newNetResource(n, resource, turn)
		n.nodes[resource.Name] = node
		delete(n.refused, resource.Name)
	}
	return node
}

// refuse is called for a node that the provider does not serve.
func (n *NetResourceSetManager) refuse(node *NetResource) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.nodes[node.name] != node {
		return
	}
	delete(n.nodes, node.name)
	n.refused[node.name] = true
	node.remove()
}

// Delete is called when a NetResourceSet was deleted. The provider itself takes back the
// node's addresses.
func (n *NetResourceSetManager) Delete(nodeName string) error {
	n.mu.Lock()
	node := n.nodes[nodeName]
	delete(n.nodes, nodeName)
	delete(n.refused, nodeName)
	if node != nil {
		n.leaving[nodeName] = node.turn
	}
	n.mu.Unlock()
	if node == nil {
		return nil
	}
	node.remove()
	n.maintain.Remove(nodeName)
	n.sync.Remove(nodeName)
	select {
	case node.turn <- struct{}{}:
		ctx, cancel := context.WithTimeout(n.open, n.short())
		defer cancel()
		defer node.releaseTurn()
		n.forgetOrRetry(ctx, nodeName)
	default: // a round runs, and ends without another call
		n.maintain.Add(nodeName, "gone", n.config.RetryInterval)
	}
	return nil
}

// leave makes the provider forget a deleted node whose name has no other node.
func (n *NetResourceSetManager) leave(ctx context.Context, name string) {
	n.mu.Lock()
	turn := n.leaving[name]
	n.mu.Unlock()
	if turn == nil {
		return
	}
	select {
	case turn <- struct{}{}:
		n.forgetOrRetry(ctx, name)
		<-turn
	case <-ctx.Done():
	}
}

func (n *NetResourceSetManager) forgetOrRetry(ctx context.Context, name string) {
	if err := n.forget(ctx, name); err != nil {
		n.config.Log.Warn("tell the provider that a node is gone, trying again", "node", name, "error", err)
		n.maintain.Add(name, "gone", n.config.RetryInterval)
	}
}

// forget makes the provider forget the deleted node of a name, if there is one. The caller has
// the turn of the name.
func (n *NetResourceSetManager) forget(ctx context.Context, name string) error {
	n.mu.Lock()
	gone := n.leaving[name] != nil
	n.mu.Unlock()
	if !gone {
		return nil
	}
	_, err := call(ctx, n, "Forget for node "+name, n.config.CallTimeout, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, n.provider.Forget(ctx, name)
	})
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.leaving, name)
	return nil
}

// released records addresses that the provider has released for the node of a name, also if
// it is not the one any more that they were released for.
func (n *NetResourceSetManager) released(name string, keys []string) {
	node, now := n.Get(name), n.config.Now()
	if node == nil {
		return
	}
	node.mu.Lock()
	defer node.mu.Unlock()
	for _, key := range keys {
		node.release.gone[key] = now
	}
}

// readBack is called when a call for a node has returned after its deadline, with the addresses
// that it has released. The next decision waits for a reading.
func (n *NetResourceSetManager) readBack(name string, gone []string) {
	n.released(name, gone)
	if node := n.Get(name); node != nil {
		node.mu.Lock()
		defer node.mu.Unlock()
		node.waitsFor = n.config.Now()
	}
}

// Recount is called when Config.Pending of a node has changed.
func (n *NetResourceSetManager) Recount(nodeName string) {
	if node := n.Get(nodeName); node != nil && node.recount() {
		n.maintain.Add(nodeName, "pending", 0)
	}
}

// Get returns the node of that name, nil if there is none.
func (n *NetResourceSetManager) Get(nodeName string) *NetResource {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.nodes[nodeName]
}

// knows reports whether Update was called for a NetResourceSet.
func (n *NetResourceSetManager) knows(resource *v1alpha1.NetResourceSet) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if node := n.nodes[resource.Name]; node != nil {
		return node.newest().UID == resource.UID
	}
	return n.refused[resource.Name]
}

// refresh passes a version of a known NetResourceSet to its node if the node has an older one.
func (n *NetResourceSetManager) refresh(resource *v1alpha1.NetResourceSet) {
	node := n.Get(resource.Name)
	if node != nil && isOlder(node.newest().ResourceVersion, resource.ResourceVersion) {
		node.UpdatedResource(resource)
	}
}

// GetNames returns the names of all nodes, sorted.
func (n *NetResourceSetManager) GetNames() (allNodeNames []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Sorted(maps.Keys(n.nodes))
}

// GetNodesByIPWatermark returns all nodes: deficits first, the largest at the start,
// then nodes without one, then excesses, the largest first.
func (n *NetResourceSetManager) GetNodesByIPWatermark() []*NetResource {
	n.mu.Lock()
	type ranked struct {
		node *NetResource
		need int
	}
	all := make([]ranked, 0, len(n.nodes))
	for _, node := range n.nodes {
		all = append(all, ranked{node: node})
	}
	n.mu.Unlock()
	for i := range all {
		all[i].need = all[i].node.GetNeededAddresses()
	}
	slices.SortFunc(all, func(a, b ranked) int {
		switch {
		case a.need < 0 && b.need < 0:
			return cmp.Or(cmp.Compare(a.need, b.need), cmp.Compare(a.node.name, b.node.name))
		default:
			return cmp.Or(cmp.Compare(b.need, a.need), cmp.Compare(a.node.name, b.node.name))
		}
	})
	nodes := make([]*NetResource, len(all))
	for i, r := range all {
		nodes[i] = r.node
	}
	return nodes
}

// InstancesAPIIsReady reports whether the last reading of the provider succeeded.
func (n *NetResourceSetManager) InstancesAPIIsReady() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ready
}

// SetInstancesAPIReadiness records whether the provider could be read.
func (n *NetResourceSetManager) SetInstancesAPIReadiness(ready bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ready = ready
}

// fenceTimeout limits one call of Config.Fence.
const fenceTimeout = 10 * time.Second

// checkFence returns nil if this manager still led at some moment after the call.
func (n *NetResourceSetManager) checkFence(ctx context.Context) error {
	if err := n.gate.Check(ctx); err != nil {
		return fmt.Errorf("check the fence of the manager of NetResourceSets: %w", err)
	}
	return nil
}

// ResourceType returns the kind that the manager works on.
func (n *NetResourceSetManager) ResourceType() string { return "NetResourceSet" }

func (n *NetResourceSetManager) maintainNode(ctx context.Context, name string) {
	node := n.Get(name)
	if node == nil {
		n.leave(ctx, name)
		return
	}
	if err := node.MaintainIPPool(ctx); err != nil && ctx.Err() == nil {
		node.log.Warn("keep the addresses of the node at its watermarks", "error", err)
	}
}

func (n *NetResourceSetManager) syncNode(ctx context.Context, name string) {
	if node := n.Get(name); node != nil {
		if err := node.syncToAPIServer(ctx); err != nil && ctx.Err() == nil {
			node.log.Warn("write the NetResourceSet", "error", err)
			node.retryWrite()
		}
	}
}
