// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/addrmap"
	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/version"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/ledger/addrspace"
	"github.com/cadastre/cadastre/operator/nodeipam/agentclaims"
	"github.com/cadastre/cadastre/plugins/ipam/poolplan"
	"github.com/cadastre/cadastre/plugins/nodesync"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
	"github.com/cadastre/cadastre/web"
)

// page serves the map of the cluster to browsers. It reads the cluster store, and the
// objects of the API server while a browser looks. It changes nothing.
type page struct {
	store     kvdb.Store
	expire    time.Duration // of claims
	now       func() time.Time
	decisions *decisions
	objects   *pageObjects
	status    func() localapi.OperatorStatus
	views     addrmap.Cache // answers
	states    addrmap.Cache // the one clusterState that they share
}

// newPage returns the page of the cluster store.
func (p *operator) newPage() *page {
	return &page{
		store:     p.store,
		expire:    cmp.Or(p.options.expire, defaultExpire),
		now:       time.Now,
		decisions: p.decisions,
		objects:   newPageObjects(p.clients, slices.Contains(p.options.plan().run, controllerNetResource)),
		status:    p.pageStatus,
	}
}

// pageStatus returns what the page shows of this process.
func (p *operator) pageStatus() localapi.OperatorStatus {
	s := localapi.OperatorStatus{Version: version.Current(), Leading: p.runner.Leading(), Ready: true}
	for _, c := range p.ready() {
		if c.err != nil {
			s.Ready, s.ReadyError = false, c.name+": "+c.err.Error()
		}
	}
	return s
}

// routePage adds the page with the map of the cluster, and the API that it asks. stop ends the
// event streams.
func (p *operator) routePage(mux *http.ServeMux, stop <-chan struct{}) {
	events := &eventStreams{decisions: p.decisions, started: p.page.now().UTC(), stop: stop}
	for path, handler := range map[string]http.Handler{
		web.Path:                 web.Handler(),
		localapi.PathMap:         http.HandlerFunc(p.page.addressMap),
		localapi.PathMapSearch:   http.HandlerFunc(p.page.search),
		localapi.PathMapFindings: http.HandlerFunc(p.page.findings),
		localapi.PathMapChanges:  http.HandlerFunc(p.page.changes),
		localapi.PathExplain:     http.HandlerFunc(p.page.explain),
		localapi.PathEvents:      events,
		localapi.PathStatus:      http.HandlerFunc(p.page.answerStatus),
	} {
		mux.Handle("GET "+path, p.certified(notRebound(handler)))
	}
}

// notRebound refuses requests over plain text whose Host is a name: a site in the
// browser of an administrator may let its name resolve to a loopback address.
func notRebound(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = r.Host
		}
		if _, err := netip.ParseAddr(host); err != nil && host != "localhost" && r.TLS == nil {
			http.Error(
				w,
				fmt.Sprintf("open the page by an address or localhost, not %q", host),
				http.StatusMisdirectedRequest,
			)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// addressMap answers as the agent's /v1/map does.
func (p *page) addressMap(w http.ResponseWriter, r *http.Request) {
	args := r.URL.Query()
	pool, text := args.Get("pool"), args.Get("prefix")
	p.answer(w, "part "+text+" "+pool, func() (any, error) {
		s, err := p.state(r.Context())
		if err != nil || text == "" {
			return s.source.Overview(), err
		}
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("map: prefix %q: want address/length, such as 10.1.0.0/16", text)
		}
		return s.source.Part(pool, prefix)
	})
}

// findings answers with the last comparison of the operator that leads.
func (p *page) findings(w http.ResponseWriter, r *http.Request) {
	p.answer(w, "findings", func() (any, error) {
		c, err := p.check(r.Context())
		if c.Findings == nil {
			c.Findings = []localapi.ClusterFinding{}
		}
		return localapi.MapFindings{Cluster: &c}, err
	})
}

// check reads the last comparison from the cluster store.
func (p *page) check(ctx context.Context) (c localapi.ClusterCheck, err error) {
	x, found, err := p.store.Get(ctx, kv.ClusterCheckKey)
	if err != nil {
		return c, fmt.Errorf("read the comparison of the cluster's objects: %w", err)
	}
	if !found {
		return localapi.NoClusterCheck(), nil
	}
	m := &kv.ClusterCheck{}
	if err := proto.Unmarshal(x.Value, m); err != nil {
		return c, fmt.Errorf("read the value of %s in the cluster store: %w", kv.ClusterCheckKey, err)
	}
	return localapi.ClusterCheckOf(m, p.now()), nil
}

// changes answers with the decisions of the last hour.
func (p *page) changes(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, p.decisions.lastHour())
}

func (p *page) answerStatus(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, p.status())
}

// answer answers with a view, which may be one that another caller got a moment ago.
func (p *page) answer(w http.ResponseWriter, key string, make func() (any, error)) {
	view, err := p.views.Get(key, p.now, make)
	if err != nil {
		writeJSON(w, http.StatusBadRequest, localapi.Error{Error: err.Error()})
		return
	}
	writeJSON(w, http.StatusOK, view)
}

func writeJSON(w http.ResponseWriter, status int, answer any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer)
}

// clusterState holds what the page knows of the cluster at one moment. It is not changed.
type clusterState struct {
	source *addrmap.Source
	pools  []poolplan.Pool
	nodes  []nodesync.Registered
}

// state reads the pools and the blocks of all nodes. All views of a moment share it.
func (p *page) state(ctx context.Context) (*clusterState, error) {
	got, err := p.states.Get("", p.now, func() (any, error) { return p.read(ctx) })
	if err != nil {
		return &clusterState{source: &addrmap.Source{}}, err
	}
	return got.(*clusterState), nil
}

func (p *page) read(ctx context.Context) (*clusterState, error) {
	c := &clusterState{source: &addrmap.Source{
		Scope: addrmap.ScopeCluster, Now: p.now(), Ranges: map[string][]netip.Prefix{},
	}}
	var err error
	if c.pools, err = p.storedPools(ctx); err != nil {
		return nil, err
	}
	for _, pool := range c.pools {
		for _, r := range pool.Ranges {
			c.source.Ranges[pool.Network] = append(c.source.Ranges[pool.Network], r.CIDR)
		}
	}
	if c.nodes, err = nodesync.List(ctx, p.store); err != nil {
		return nil, err
	}
	sets, _ := p.objects.reports(ctx)
	for _, n := range c.nodes {
		if n.Released != 0 {
			continue
		}
		reports := reportsOf(n, c.pools)
		reports.Uses = append(reports.Uses, sets[n.Name]...)
		delete(sets, n.Name)
		c.source.AddNode(n.Name, granted(n, c.pools), reports)
	}
	for node, uses := range sets {
		c.source.AddNode(node, nil, addrmap.Reports{Uses: uses})
	}
	reader := agentclaims.Reader{Store: p.store, Expire: p.expire, Now: p.now}
	claims, err := reader.Claims(ctx)
	if err != nil {
		return nil, err
	}
	for _, claim := range claims {
		if claim.Held {
			b := addrmap.Block{Pool: poolplan.Default, Prefix: claim.Block, Node: claim.Node}
			c.source.Blocks = append(c.source.Blocks, b)
		}
	}
	c.source.Blocks = unique(c.source.Blocks)
	return c, nil
}

// storedPools returns the pools in use. A pool that cannot be read is left out.
func (p *page) storedPools(ctx context.Context) (all []poolplan.Pool, err error) {
	kvs, _, err := p.store.List(ctx, kv.PoolPrefix)
	if err != nil {
		return nil, fmt.Errorf("list the pools: %w", err)
	}
	for _, x := range kvs {
		m := &kv.Pool{}
		if proto.Unmarshal(x.Value, m) != nil {
			continue
		}
		if pool, err := poolplan.FromMessage(m); err == nil && pool.State != poolplan.Removed {
			all = append(all, pool)
		}
	}
	return all, nil
}

// granted returns the blocks of a node: the podCIDRs that it has recorded, and what
// follows from its ID in all other pools.
func granted(n nodesync.Registered, pools []poolplan.Pool) (all []addrmap.Place) {
	for _, text := range n.PodCidrs {
		if prefix, err := netip.ParsePrefix(text); err == nil {
			all = append(all, addrmap.Place{Pool: poolplan.Default, Prefix: prefix.Masked()})
		}
	}
	explicit := len(all) > 0 || n.ExplicitBlocks
	for _, pool := range pools {
		if explicit && pool.Network == poolplan.Default {
			continue
		}
		for _, r := range pool.Ranges {
			if prefix, err := addrspace.NodePrefix(r.CIDR, r.OneNode, n.Id); err == nil {
				all = append(all, addrmap.Place{Pool: pool.Network, Prefix: prefix})
			}
		}
	}
	return all
}

// reportsOf returns the use of a node's blocks that its last beat counts.
func reportsOf(n nodesync.Registered, pools []poolplan.Pool) (reports addrmap.Reports) {
	for _, use := range n.Beat.GetPools() {
		network := use.Pool
		for _, pool := range pools {
			if pool.Name == use.Pool {
				network = pool.Network
			}
		}
		if len(use.Blocks) == 0 {
			reports.AddSum(network, use.Leases)
		}
		for _, b := range use.Blocks {
			if prefix, err := netip.ParsePrefix(b.Prefix); err == nil {
				place := addrmap.Place{Pool: network, Prefix: prefix.Masked()}
				reports.Uses = append(reports.Uses, addrmap.Use{Place: place, Leases: b.Leases, Draining: b.Draining})
			}
		}
	}
	return reports
}

// unique returns blocks sorted, each once: with its use if one of the equal ones has it.
func unique(all []addrmap.Block) []addrmap.Block {
	slices.SortFunc(all, func(x, y addrmap.Block) int {
		return cmp.Or(
			cmp.Compare(x.Pool, y.Pool),
			x.Prefix.Compare(y.Prefix),
			cmp.Compare(x.Node, y.Node),
			order(y.Known, x.Known),
			cmp.Compare(y.Used, x.Used),
		)
	})
	return slices.CompactFunc(all, func(x, y addrmap.Block) bool {
		return x.Pool == y.Pool && x.Prefix == y.Prefix && x.Node == y.Node
	})
}

// order compares two flags: false is before true.
func order(x, y bool) int {
	switch {
	case x == y:
		return 0
	case y:
		return -1
	}
	return 1
}
