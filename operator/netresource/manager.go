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
	"time"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/operator/runner"
)

// NetResourceSetManager keeps the addresses of all nodes at their watermarks. Use New.
type NetResourceSetManager struct {
	config   Config
	calls    *calls
	gate     *runner.Gate
	maintain *runner.Queue // by node
	sync     *runner.Queue // by node
	resync   *runner.Queue // one key

	mu      sync.Mutex
	nodes   map[string]*NetResource
	refused map[string]bool // nodes that the provider refuses
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
	if c.Instances == nil || c.API == nil {
		return nil, errors.New("make a manager of NetResourceSets: Config.Instances and Config.API must both be given")
	}
	c = c.withDefaults()
	return &NetResourceSetManager{
		config:   c,
		calls:    newCalls(&c),
		gate:     runner.NewGate(c.Fence, fenceTimeout),
		nodes:    map[string]*NetResource{},
		refused:  map[string]bool{},
		maintain: runner.NewQueue(c.TriggerInterval, c.Metrics.PoolMaintainerTrigger(), c.Now),
		sync:     runner.NewQueue(c.TriggerInterval, c.Metrics.K8sSyncTrigger(), c.Now),
		resync:   runner.NewQueue(max(c.TriggerInterval, c.ResyncInterval/30), c.Metrics.ResyncTrigger(), c.Now),
	}, nil
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
	if err == nil && !n.read(ctx) {
		err = fmt.Errorf("read the provider: %w", ErrNotReady)
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
	if stop != nil {
		stop()
	}
	n.work.Wait()
	return n.calls.close()
}

// tracks reports whether a call of the provider that has succeeded needs no reading.
func (n *NetResourceSetManager) tracks() bool {
	t, ok := n.config.Instances.(ChangeTracker)
	return ok && t.TracksChanges()
}

// read makes the provider read its state, and reports whether it could.
func (n *NetResourceSetManager) read(ctx context.Context) bool {
	begun, err := request[time.Time]{
		operation: operation{name: opRead}, deadline: n.config.ReadTimeout,
		do: func(ctx context.Context) (time.Time, error) { return n.config.Instances.Resync(ctx), nil },
	}.run(ctx, n.calls)
	if err != nil && ctx.Err() == nil {
		n.config.Log.Warn("read the provider", "error", err)
	}
	n.SetInstancesAPIReadiness(!begun.IsZero())
	n.mu.Lock()
	defer n.mu.Unlock()
	if begun.After(n.begun) {
		n.begun = begun
	}
	return n.ready
}

func (n *NetResourceSetManager) resyncAll(ctx context.Context, _ string) {
	defer n.resync.Add(resyncKey, "periodic", n.config.ResyncInterval)
	if !n.read(ctx) {
		if ctx.Err() != nil {
			return
		}
		n.config.Log.Warn("the provider cannot be read: nothing is changed until it can")
		n.resync.Add(resyncKey, "retry", n.config.RetryInterval)
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
		if node.Ops() == nil { // CreateNetResource has failed
			n.serve(node)
		}
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
	quotas, err := request[v1alpha1.PoolQuotaMap]{
		operation: operation{name: opQuota},
		do:        func(context.Context) (v1alpha1.PoolQuotaMap, error) { return n.config.Instances.GetPoolQuota(), nil },
	}.run(ctx, n.calls)
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
	node := n.Get(resource.Name)
	if node == nil || node.Ops() == nil {
		var err error
		if node, err = n.create(node, resource); err != nil {
			return fmt.Errorf("update the NetResourceSet %s: %w", resource.Name, err)
		}
	}
	node.UpdatedResource(resource)
	return nil
}

// create calls CreateNetResource for a node; known is the node if that was tried before.
// The node is known from then on even if the provider fails.
func (n *NetResourceSetManager) create(known *NetResource, resource *v1alpha1.NetResourceSet) (*NetResource, error) {
	node := known
	if node == nil {
		node = newNetResource(n, resource)
	}
	copied := resource.DeepCopy()
	registered := make(chan struct{})
	defer close(registered)
	ops, err := request[NetResourceOperations]{
		operation: operation{opCreate, resource.Name}, wait: n.calls.shortWait(),
		do: func(context.Context) (NetResourceOperations, error) {
			if ops := node.Ops(); ops != nil { // of an earlier call that this one waited for
				return ops, nil
			}
			ops := n.config.Instances.CreateNetResource(copied, node)
			node.servedBy(ops)
			return ops, nil
		},
		late: func(ops NetResourceOperations, err error) {
			<-registered
			n.createdLate(node, ops, err)
		},
	}.run(context.Background(), n.calls)
	other, refused := n.register(node, known == nil, err == nil && ops == nil, err)
	switch {
	case refused:
		return nil, errors.New("the provider does not serve it")
	case other == nil:
		n.forget(resource.Name)
		return nil, errors.New("it was deleted in the meantime")
	}
	return other, nil
}

// register records the outcome of CreateNetResource. It returns the node that has the
// name now, nil for none, and whether the provider refuses it.
func (n *NetResourceSetManager) register(
	node *NetResource,
	first, refuses bool,
	err error,
) (other *NetResource, refused bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if other = n.nodes[node.name]; other != node && (other != nil || !first) {
		return other, false
	}
	if refuses {
		delete(n.nodes, node.name)
		n.refused[node.name] = true
		node.remove()
		return nil, true
	}
	delete(n.refused, node.name)
	n.nodes[node.name] = node
	node.mu.Lock()
	defer node.mu.Unlock()
	node.opsError = err
	return node, false
}

// createdLate continues after a CreateNetResource that outlasted Update.
func (n *NetResourceSetManager) createdLate(node *NetResource, ops NetResourceOperations, err error) {
	other, refused := n.register(node, false, err == nil && ops == nil, err)
	switch {
	case other == nil && !refused:
		n.forget(node.name)
	case other != nil && other != node:
		n.serve(other)
	case other != nil && err == nil:
		node.updated()
	}
}

// serve calls CreateNetResource again for a node without operations.
func (n *NetResourceSetManager) serve(node *NetResource) {
	if node.Ops() != nil {
		return
	}
	if other, err := n.create(node, node.ResourceCopy()); err == nil && other == node {
		node.updated()
	}
}

// forget tells the provider that a node is gone, unless there is a node of the same name
// again.
func (n *NetResourceSetManager) forget(name string) {
	f, ok := n.config.Instances.(Forgetter)
	if !ok || n.Get(name) != nil {
		return
	}
	_, err := request[struct{}]{
		operation: operation{opForget, name}, wait: n.calls.shortWait(),
		do: func(context.Context) (struct{}, error) {
			f.Forget(name)
			return struct{}{}, nil
		},
		late: func(struct{}, error) {
			if node := n.Get(name); node != nil { // a new one, which had to wait
				n.serve(node)
			}
		},
	}.run(context.Background(), n.calls)
	if err != nil {
		n.config.Log.Warn("tell the provider that a node is gone", "node", name, "error", err)
	}
}

// Delete is called when a NetResourceSet was deleted. The provider itself takes back the
// node's addresses.
func (n *NetResourceSetManager) Delete(nodeName string) error {
	n.mu.Lock()
	node := n.nodes[nodeName]
	delete(n.nodes, nodeName)
	delete(n.refused, nodeName)
	n.mu.Unlock()
	if node == nil {
		return nil
	}
	n.maintain.Remove(nodeName)
	n.sync.Remove(nodeName)
	node.remove()
	n.forget(nodeName)
	return nil
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
	if node := n.Get(name); node != nil {
		if err := node.MaintainIPPool(ctx); err != nil && ctx.Err() == nil {
			node.log.Warn("keep the addresses of the node at its watermarks", "error", err)
		}
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
