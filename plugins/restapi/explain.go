// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/explain"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// explain answers with the tree of one subject.
func (p *RESTAPI) explain(w http.ResponseWriter, r *http.Request) {
	args := r.URL.Query()
	subject, err := subjectOf(args)
	if err != nil {
		writeError(w, http.StatusBadRequest, err)
		return
	}
	n, err := p.node(args.Get("zone"))
	if err != nil {
		writeError(w, http.StatusBadRequest, err)
		return
	}
	t, err := p.tree(r.Context(), n, subject, args)
	if err != nil {
		status := http.StatusInternalServerError
		if bad := new(localapi.StatusError); errors.As(err, &bad) {
			status = bad.Status
		}
		writeError(w, status, err)
		return
	}
	p.conclude(r.Context(), t, findingsAbout(subject, args.Get(subject), n))
	writeJSON(w, http.StatusOK, t)
}

// conclude adds the findings about a subject to its explanation.
func (p *RESTAPI) conclude(ctx context.Context, t *explain.Tree, about func(*localapi.Finding) bool) {
	ctx, cancel := context.WithTimeout(ctx, compareLimit)
	defer cancel()
	last := p.recentFindings(ctx)
	if last.Report == nil {
		t.Uncompared(last.Error)
		return
	}
	var found []explain.Finding
	for i := range last.Report.Findings {
		if f := &last.Report.Findings[i]; f.Name != localapi.FindingWitnessMissing && about(f) {
			found = append(found, explain.Finding{Number: f.Number, Text: f.Text, Fix: f.Fix})
		}
	}
	t.Conclude(found)
}

// findingsAbout returns what selects the findings about a subject: its own, and those of the
// addresses that it has.
func findingsAbout(subject, name string, n *explain.Node) func(*localapi.Finding) bool {
	of := func(mine func(*ledger.Lease) bool) map[netip.Addr]bool {
		addrs := map[netip.Addr]bool{}
		for i := range n.Leases {
			if mine(&n.Leases[i]) {
				addrs[n.Leases[i].Addr] = true
			}
		}
		return addrs
	}
	switch subject {
	case "pod":
		addrs := of(func(l *ledger.Lease) bool { return l.Pod.String() == name && l.InUse() })
		return func(f *localapi.Finding) bool { return f.Subject.Pod == name || addrs[f.Subject.Addr] }
	case "container":
		mine := func(id string) bool { return explain.NamesContainer(name, id) }
		addrs := of(func(l *ledger.Lease) bool { return mine(l.Key.ContainerID) && l.InUse() })
		return func(f *localapi.Finding) bool { return mine(f.Subject.ContainerID) || addrs[f.Subject.Addr] }
	case "address":
		a, _ := netip.ParseAddr(name) // the tree has refused another one
		return func(f *localapi.Finding) bool {
			return f.Subject.Addr == a.Unmap() || f.Subject.Prefix.IsValid() && f.Subject.Prefix.Contains(a.Unmap())
		}
	case "pool":
		return func(f *localapi.Finding) bool { return f.Subject.Pool == name }
	}
	return func(*localapi.Finding) bool { return true }
}

// subjectOf returns the name of the one argument that names a subject.
func subjectOf(args url.Values) (subject string, err error) {
	for _, name := range []string{"pod", "container", "address", "node", "pool"} {
		if !args.Has(name) {
			continue
		}
		if subject != "" {
			return "", fmt.Errorf("%s and %s are given: want one of them", subject, name)
		}
		subject = name
	}
	switch {
	case subject == "":
		return "", errors.New("no subject is given: want pod, container, address, node or pool")
	case subject != "node" && args.Get(subject) == "":
		return "", fmt.Errorf("%s is empty", subject)
	case args.Has("at") && subject != "address":
		return "", fmt.Errorf("at=%s goes with address, not with %s", args.Get("at"), subject)
	}
	return subject, nil
}

func badArgument(format string, args ...any) error {
	return &localapi.StatusError{Status: http.StatusBadRequest, Err: fmt.Errorf(format, args...)}
}

func (p *RESTAPI) tree(ctx context.Context, n *explain.Node, subject string, args url.Values) (*explain.Tree, error) {
	name := args.Get(subject)
	switch subject {
	case "pod":
		namespace, pod, ok := strings.Cut(name, "/")
		if !ok || namespace == "" || pod == "" {
			return nil, badArgument("pod %q is not of the form namespace/name", name)
		}
		past, err := p.past(ctx, ledger.HistoryQuery{
			Pod:   ledger.Pod{Namespace: namespace, Name: pod},
			Limit: pastLimit,
		}, controller.RecordFilter{Pod: name})
		return explain.Pod(n, ledger.Pod{Namespace: namespace, Name: pod}, past), err
	case "container":
		past, err := p.past(ctx, ledger.HistoryQuery{ContainerID: name, Limit: pastLimit},
			controller.RecordFilter{Container: name})
		return explain.Container(n, name, past), err
	case "address":
		a, err := netip.ParseAddr(name)
		if err != nil || a.Zone() != "" {
			return nil, badArgument("address %q is not an IP address", name)
		}
		at := time.Time{}
		if s := args.Get("at"); s != "" {
			if at, err = time.Parse(time.RFC3339Nano, s); err != nil {
				return nil, badArgument("at %q is not a time: write it as %s", s, time.RFC3339)
			}
		}
		if !n.Has(a.Unmap()) {
			n.Peers = p.peers(ctx)
		}
		past, err := p.past(
			ctx,
			ledger.HistoryQuery{Addr: a.Unmap()},
			controller.RecordFilter{Address: a.Unmap().String()},
		)
		return explain.Address(n, a.Unmap(), at, past), err
	case "pool":
		return explain.Pool(n, name), nil
	}
	if name != "" && name != n.Name {
		return nil, &localapi.StatusError{
			Status: http.StatusNotFound,
			Err: fmt.Errorf(
				"this is the agent of node %s, not of node %q: run \"kubectl cadastre explain node %s\"",
				n.Name,
				name,
				name,
			),
		}
	}
	return explain.ThisNode(n), nil
}

// storeLimit is the longest time that an explanation waits for the cluster store.
const storeLimit = 2 * time.Second

// peers returns the other nodes of the cluster, none if the cluster store does not answer soon.
func (p *RESTAPI) peers(ctx context.Context) (all []explain.Peer) {
	if p.Cluster == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, storeLimit)
	defer cancel()
	nodes, err := p.Cluster.Nodes(ctx)
	if err != nil {
		return nil
	}
	for _, x := range nodes {
		if x.Self || x.Released {
			continue
		}
		peer := explain.Peer{Name: x.Name, ID: x.ID}
		if x.LastSeen != nil {
			peer.Seen = *x.LastSeen
		}
		for _, text := range x.Addresses {
			if a, err := netip.ParsePrefix(text); err == nil {
				peer.Addr = a.Addr()
				break
			}
		}
		for _, text := range x.PodCIDRs {
			if block, err := netip.ParsePrefix(text); err == nil {
				peer.Blocks = append(peer.Blocks, block)
			}
		}
		for _, use := range x.Pools {
			for _, b := range use.Blocks {
				if block, err := netip.ParsePrefix(b.Block); err == nil {
					peer.Blocks = append(peer.Blocks, block)
				}
			}
		}
		all = append(all, peer)
	}
	return all
}

// pastLimit limits the entries of a subject's history.
const pastLimit = 200

// past reads what is recorded about a subject.
func (p *RESTAPI) past(ctx context.Context, q ledger.HistoryQuery, f controller.RecordFilter) (*explain.Past, error) {
	past := &explain.Past{}
	if p.Loop != nil {
		records, _ := p.Loop.Events(0)
		for i := range records {
			if f.Selects(&records[i]) {
				past.Events = append(past.Events, records[i])
			}
		}
	}
	var err error
	past.History, err = p.Ledger.History(ctx, q)
	if err == nil {
		past.Oldest, err = p.Ledger.HistoryBegin(ctx)
	}
	if errors.Is(err, ledger.ErrNoHistory) {
		err = nil
	}
	return past, err
}

// node returns the views of this moment. zone is the offset of the time zone of the
// texts; "" is that of the agent.
func (p *RESTAPI) node(zone string) (*explain.Node, error) {
	s := p.Agent.Status()
	n := &explain.Node{
		Now:        p.now(),
		Name:       s.NodeName,
		ID:         s.NodeID,
		IDProblem:  s.NodeIDProblem,
		NotReady:   s.ReadyError,
		Suspended:  s.Suspended,
		PodBlocks:  s.PodBlocks,
		Pools:      p.Ledger.Policies(),
		Blocks:     p.Ledger.Stats(),
		Leases:     p.Ledger.Leases(),
		Exclusions: p.Ledger.Exclusions(),
		Kubernetes: s.KVDB == string(contivconf.KVDBKubernetes),
		StateDir:   s.StateDir,
	}
	if s.Interfaces != nil {
		n.Shortage = s.Interfaces.Shortage
	}
	if s.HostPorts != nil && len(s.HostPorts.Versions) == 0 {
		n.NoHostPorts = s.HostPorts.Reason
	}
	if s.ConfigProblem != "" {
		n.Problems = append(n.Problems, s.ConfigProblem)
	}
	for _, c := range s.Claims {
		if prefix, err := netip.ParsePrefix(c.Prefix); err == nil {
			n.Claims = append(n.Claims, explain.Claim{Prefix: prefix, Held: c.Held, Reason: c.Reason, Since: c.Since})
		}
	}
	if zone == "" {
		return n, nil
	}
	at, err := time.Parse("-07:00", zone)
	if err != nil {
		return nil, fmt.Errorf("zone %q is not an offset from UTC: want one such as +02:00", zone)
	}
	n.Now = n.Now.In(at.Location())
	return n, nil
}
