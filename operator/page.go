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
	"github.com/cadastre/cadastre/ledger/addrspace"
	"github.com/cadastre/cadastre/operator/nodeipam/agentclaims"
	"github.com/cadastre/cadastre/plugins/ipam/poolplan"
	"github.com/cadastre/cadastre/plugins/nodesync"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
	"github.com/cadastre/cadastre/web"
)

// routePage adds the page with the map of the cluster. It is read from the cluster store:
// pools, and the blocks of all nodes with the leases that the nodes have counted.
func (p *operator) routePage(mux *http.ServeMux) {
	mux.Handle("GET "+web.Path, p.certified(notRebound(web.Handler())))
	mux.Handle("GET "+localapi.PathMap, p.certified(notRebound(http.HandlerFunc(p.addressMap))))
	mux.Handle("GET "+localapi.PathMapSearch, p.certified(notRebound(http.HandlerFunc(p.mapSearch))))
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
func (p *operator) addressMap(w http.ResponseWriter, r *http.Request) {
	args := r.URL.Query()
	pool, text := args.Get("pool"), args.Get("prefix")
	p.answerMap(w, "part "+text+" "+pool, func() (any, error) {
		source, err := p.mapSource(r.Context())
		if err != nil || text == "" {
			return source.Overview(), err
		}
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("map: prefix %q: want address/length, such as 10.1.0.0/16", text)
		}
		return source.Part(pool, prefix)
	})
}

// mapSearch answers as the agent's /v1/map/search does.
func (p *operator) mapSearch(w http.ResponseWriter, r *http.Request) {
	text := r.URL.Query().Get("q")
	p.answerMap(w, "search "+text, func() (any, error) {
		source, err := p.mapSource(r.Context())
		return source.Search(text), err
	})
}

func (p *operator) answerMap(w http.ResponseWriter, key string, make func() (any, error)) {
	status := http.StatusOK
	answer, err := p.views.Get(key, time.Now, make)
	if err != nil {
		status, answer = http.StatusBadRequest, localapi.Error{Error: err.Error()}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer)
}

// mapSource reads the pools and the blocks of all nodes.
func (p *operator) mapSource(ctx context.Context) (*addrmap.Source, error) {
	s := &addrmap.Source{Scope: addrmap.ScopeCluster, Now: time.Now(), Ranges: map[string][]netip.Prefix{}}
	pools, err := p.storedPools(ctx)
	if err != nil {
		return s, err
	}
	for _, pool := range pools {
		for _, r := range pool.Ranges {
			s.Ranges[pool.Network] = append(s.Ranges[pool.Network], r.CIDR)
		}
	}
	nodes, err := nodesync.List(ctx, p.store)
	if err != nil {
		return s, err
	}
	for _, n := range nodes {
		if n.Released == 0 {
			s.Blocks = append(s.Blocks, blocksOf(n, pools)...)
		}
	}
	claims, err := agentclaims.Reader{
		Store:  p.store,
		Expire: cmp.Or(p.options.expire, defaultExpire),
		Now:    time.Now,
	}.Claims(
		ctx,
	)
	if err != nil {
		return s, err
	}
	for _, c := range claims {
		if c.Held {
			s.Blocks = append(s.Blocks, addrmap.Block{Pool: poolplan.Default, Prefix: c.Block, Node: c.Node})
		}
	}
	s.Blocks = unique(s.Blocks)
	return s, nil
}

// storedPools returns the pools in use. A pool that cannot be read is left out.
func (p *operator) storedPools(ctx context.Context) (all []poolplan.Pool, err error) {
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

// blocksOf returns the blocks of a node: the podCIDRs that it has recorded, and what
// follows from its ID in all other pools. Leases are counted by pool, so that the number
// is known of a pool's only block.
func blocksOf(n nodesync.Registered, pools []poolplan.Pool) (all []addrmap.Block) {
	for _, text := range n.PodCidrs {
		if prefix, err := netip.ParsePrefix(text); err == nil {
			all = append(all, addrmap.Block{Pool: poolplan.Default, Prefix: prefix.Masked(), Node: n.Name})
		}
	}
	explicit := len(all) > 0
	for _, pool := range pools {
		if explicit && pool.Network == poolplan.Default {
			continue
		}
		for _, r := range pool.Ranges {
			prefix, err := addrspace.NodePrefix(r.CIDR, r.OneNode, n.Id)
			if err != nil {
				continue
			}
			block := addrmap.Block{Pool: pool.Network, Prefix: prefix, Node: n.Name}
			for _, use := range n.Beat.GetPools() {
				if use.Pool == pool.Name && len(pool.Ranges) == 1 {
					block.Used = use.Leases
				}
			}
			all = append(all, block)
		}
	}
	return all
}

// unique returns blocks sorted, each once: with its use if one of the equal ones has it.
func unique(all []addrmap.Block) []addrmap.Block {
	slices.SortFunc(all, func(x, y addrmap.Block) int {
		return cmp.Or(
			cmp.Compare(x.Pool, y.Pool),
			x.Prefix.Compare(y.Prefix),
			cmp.Compare(x.Node, y.Node),
			cmp.Compare(y.Used, x.Used),
		)
	})
	return slices.CompactFunc(all, func(x, y addrmap.Block) bool {
		return x.Pool == y.Pool && x.Prefix == y.Prefix && x.Node == y.Node
	})
}
