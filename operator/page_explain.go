// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/cadastre/cadastre/addrmap"
	"github.com/cadastre/cadastre/explain"
	"github.com/cadastre/cadastre/ledger/addrspace"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// explain answers with the tree of one subject. The arguments are exactly one of
// pod=NAMESPACE/NAME, address=ADDRESS, node=NAME, pool=NAME and block=PREFIX, the last with
// of=POOL.
func (p *page) explain(w http.ResponseWriter, r *http.Request) {
	args := r.URL.Query()
	p.answer(w, "explain "+args.Encode(), func() (any, error) {
		t, err := p.tree(r.Context(), args)
		if err != nil {
			return nil, fmt.Errorf("explain: %w", err)
		}
		return t, nil
	})
}

func (p *page) tree(ctx context.Context, args url.Values) (*explain.Tree, error) {
	subject := ""
	for _, name := range []string{"pod", "address", "node", "pool", "block"} {
		if args.Get(name) == "" {
			continue
		}
		if subject != "" {
			return nil, fmt.Errorf("%s and %s are given: want one of them", subject, name)
		}
		subject = name
	}
	c, err := p.cluster(ctx)
	if err != nil {
		return nil, err
	}
	name := args.Get(subject)
	switch subject {
	case "pod":
		return p.podTree(ctx, c, name)
	case "address":
		a, err := netip.ParseAddr(name)
		if err != nil || a.Zone() != "" {
			return nil, fmt.Errorf("address %q is not an IP address", name)
		}
		pods, problem := p.objects.pods.want(ctx)
		c.Pods, c.PodsUnknown = podsAt(pods, a.Unmap()), problem
		c.Decisions = p.decisions.about("", netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()), decisionsShown)
		return explain.AddressOfCluster(c, a.Unmap()), nil
	case "node":
		c.Decisions = p.decisions.about(name, netip.Prefix{}, decisionsShown)
		return explain.NodeOfCluster(c, name), nil
	case "pool":
		return explain.PoolOfCluster(c, name), nil
	case "block":
		prefix, err := netip.ParsePrefix(name)
		if err != nil {
			return nil, fmt.Errorf("block %q: want address/length, such as 10.1.5.0/24", name)
		}
		c.Decisions = p.decisions.about("", prefix.Masked(), decisionsShown)
		return explain.BlockOfCluster(c, args.Get("of"), prefix.Masked()), nil
	}
	return nil, errors.New("no subject is given: want pod, address, node, pool or block")
}

// decisionsShown limits the decisions of an explanation.
const decisionsShown = 5

func (p *page) podTree(ctx context.Context, c *explain.Cluster, name string) (*explain.Tree, error) {
	namespace, pod, ok := strings.Cut(name, "/")
	if !ok || namespace == "" || pod == "" {
		return nil, fmt.Errorf("pod %q is not of the form namespace/name", name)
	}
	pods, problem := p.objects.pods.want(ctx)
	c.PodsUnknown = problem
	if x := byName(pods, namespace, pod); x != nil {
		c.Pods = []explain.ClusterPod{*x}
		c.Decisions = p.decisions.about(x.Node, netip.Prefix{}, decisionsShown)
	}
	return explain.PodOfCluster(c, namespace, pod), nil
}

// cluster returns the views of this moment without Pods and decisions. Without the last
// comparison it has no findings.
func (p *page) cluster(ctx context.Context) (*explain.Cluster, error) {
	s, err := p.state(ctx)
	if err != nil {
		return nil, err
	}
	c := &explain.Cluster{Now: p.now()}
	for _, pool := range s.pools {
		x := explain.ClusterPool{Name: pool.Name, Network: pool.Network, State: pool.State.String()}
		for _, r := range pool.Ranges {
			x.Ranges = append(x.Ranges, r.String())
		}
		c.Pools = append(c.Pools, x)
	}
	for i := range s.source.Blocks {
		b := &s.source.Blocks[i]
		c.Blocks = append(c.Blocks, explain.ClusterBlock{
			Pool: b.Pool, Prefix: b.Prefix, Node: b.Node, Size: addrspace.Size(b.Prefix),
			Used: b.Used, Known: b.Known, Draining: b.Draining,
		})
	}
	for _, n := range s.nodes {
		x := explain.ClusterNode{Name: n.Name, ID: n.Id, Addrs: n.IpAddresses, Released: n.Released != 0}
		if n.Beat != nil {
			x.LastSeen, x.Stopped = time.Unix(0, n.Beat.At), n.Beat.Stopped
		}
		c.Nodes = append(c.Nodes, x)
	}
	check, err := p.check(ctx)
	if err != nil {
		return c, nil //nolint:nilerr // the panel of the findings shows it
	}
	for i := range check.Findings {
		f := &check.Findings[i].Finding
		x := explain.ClusterFinding{
			Number: f.Number, Name: f.Name, Text: f.Text, Fix: f.Fix,
			Node: f.Subject.Node, Pool: f.Subject.Pool, Prefix: f.Subject.Prefix,
		}
		if f.Subject.Addr.IsValid() {
			x.Prefix = netip.PrefixFrom(f.Subject.Addr, f.Subject.Addr.BitLen())
		}
		c.Findings = append(c.Findings, x)
	}
	return c, nil
}

// search answers as the agent's /v1/map/search does. Containers are those that the API server
// has in the status of Pods.
func (p *page) search(w http.ResponseWriter, r *http.Request) {
	text := r.URL.Query().Get("q")
	p.answer(w, "search "+text, func() (any, error) {
		s, err := p.state(r.Context())
		if err != nil {
			return nil, err
		}
		hits := s.source.Search(text)
		pods, problem := p.objects.pods.want(r.Context())
		if problem != "" {
			hits.Problem = "Pods are not searched: " + problem
		}
		found := podHits(s.source, pods, strings.ToLower(strings.TrimSpace(text)))
		hits.More = hits.More || len(hits.Hits)+len(found) > localapi.MapMaxHits
		hits.Hits = slices.Concat(hits.Hits, found)
		hits.Hits = hits.Hits[:min(len(hits.Hits), localapi.MapMaxHits)]
		return hits, nil
	})
}

// shortest is the least length of a text that is looked for in the IDs of containers.
const shortest = 4

// podHits returns the Pods with a text in their names, with an address or with a container
// whose ID begins with the text. It returns at most one more than an answer has.
func podHits(s *addrmap.Source, pods cache.Indexer, text string) (hits []localapi.MapHit) {
	if text == "" {
		return nil
	}
	add := func(x *explain.ClusterPod, kind, name string) {
		for _, a := range x.Addrs {
			hit := localapi.MapHit{Kind: kind, Text: name + " " + a.String(), Pod: x.Namespace + "/" + x.Name}
			hit.Prefix = netip.PrefixFrom(a, a.BitLen())
			if hit.Pool = poolOf(s, a); hit.Pool != "" {
				hits = append(hits, hit)
			}
		}
	}
	if a, err := netip.ParseAddr(text); err == nil {
		for _, x := range podsAt(pods, a.Unmap()) {
			add(&x, "pod", x.Namespace+"/"+x.Name)
		}
		return hits
	}
	for _, obj := range listed(pods) {
		x, ok := obj.(*podObject)
		if !ok || x.HostNetwork || len(hits) > localapi.MapMaxHits {
			continue
		}
		if name := x.ClusterPod.Namespace + "/" + x.ClusterPod.Name; strings.Contains(name, text) {
			add(&x.ClusterPod, "pod", name)
			continue
		}
		for _, id := range x.Containers {
			if _, bare, _ := strings.Cut(id, "://"); len(text) >= shortest && strings.HasPrefix(bare, text) {
				add(&x.ClusterPod, "container", bare)
			}
		}
	}
	return hits
}

// poolOf returns the pool that has an address in a block or in a range, "" if none has it.
func poolOf(s *addrmap.Source, a netip.Addr) string {
	for i := range s.Blocks {
		if s.Blocks[i].Prefix.Contains(a) {
			return s.Blocks[i].Pool
		}
	}
	for pool, ranges := range s.Ranges {
		if slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) }) {
			return pool
		}
	}
	return ""
}
