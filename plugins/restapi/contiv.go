// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// historyArguments are those of PathEventHistory.
const historyArguments = "seq-num, since, until, from, to, first, last"

// history answers with the records that the arguments select, the oldest
// first; with the one itself where seq-num names it.
func (p *RESTAPI) history(w http.ResponseWriter, r *http.Request) {
	q, err := historyQuery(r)
	if err != nil {
		writeError(w, http.StatusBadRequest, err)
		return
	}
	records, err := p.Loop.Query(q)
	switch {
	case errors.Is(err, controller.ErrNoRecord):
		writeError(w, http.StatusNotFound, err)
		return
	case err != nil:
		writeError(w, statusOf(err, http.StatusInternalServerError), err)
		return
	}
	all := make([]localapi.ContivRecord, 0, len(records))
	for _, rec := range records {
		all = append(all, contivRecord(rec))
	}
	slices.SortStableFunc(all, func(a, b localapi.ContivRecord) int { return cmp.Compare(a.SeqNum, b.SeqNum) })
	if q.SeqNum != nil && len(all) == 1 {
		writeJSON(w, http.StatusOK, all[0])
		return
	}
	writeJSON(w, http.StatusOK, all)
}

// contivRecord returns a record in the form that Contiv-VPP's clients decode.
func contivRecord(r controller.Record) localapi.ContivRecord {
	out := localapi.ContivRecord{
		Record:      r,
		Method:      int(r.Method),
		Handlers:    make([]localapi.ContivHandler, 0, len(r.Handlers)),
		TxnErrorStr: r.TxnError,
		TxnValues:   present(r.Txn),
	}
	for _, h := range r.Handlers {
		out.Handlers = append(out.Handlers, localapi.ContivHandler{HandlerRecord: h, ErrorStr: h.Error})
	}
	return out
}

// historyQuery refuses also the arguments that the history does not know: a
// misspelt one would select everything.
func historyQuery(r *http.Request) (controller.HistoryQuery, error) {
	args, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return controller.HistoryQuery{}, fmt.Errorf("event history: arguments %q: %w", r.URL.RawQuery, err)
	}
	for _, name := range slices.Sorted(maps.Keys(args)) {
		if !slices.Contains(strings.Split(historyArguments, ", "), name) {
			return controller.HistoryQuery{}, &controller.QueryError{
				Argument: name,
				Value:    strings.Join(args[name], ","),
				Want:     "there is no such argument, only " + historyArguments,
			}
		}
	}
	return controller.ParseHistoryQuery(args)
}

// dispatchTimeout bounds the time until the loop has been asked for a resync.
const dispatchTimeout = 5 * time.Second

// dispatch asks for a resync and does not wait for it.
func (p *RESTAPI) dispatch(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), dispatchTimeout)
	defer cancel()
	err := p.State.Dispatch(ctx)
	switch {
	case errors.Is(err, controller.ErrClosedController):
		writeError(w, http.StatusServiceUnavailable, err)
		return
	case err != nil:
		writeError(w, statusOf(err, http.StatusConflict), err)
		return
	}
	writeJSON(w, http.StatusOK, localapi.Dispatched)
}

func (p *RESTAPI) contivIPAM(w http.ResponseWriter, _ *http.Request) {
	data, err := p.Cluster.IPAM()
	if err != nil {
		writeError(w, statusOf(err, http.StatusServiceUnavailable), err)
		return
	}
	writeJSON(w, http.StatusOK, data)
}

func (p *RESTAPI) allocations(w http.ResponseWriter, _ *http.Request) {
	first := ledger.IPv4
	if p.Cluster != nil {
		if data, err := p.Cluster.IPAM(); err == nil && data.PodSubnetThisNode.Addr().Is6() {
			first = ledger.IPv6
		}
	}
	writeJSON(w, http.StatusOK, allocationsOf(p.Ledger.Leases(), first))
}

// attachment is the addresses of one claim, those of the first family first.
type attachment struct {
	key   ledger.Key
	pool  string
	gen   uint64
	addrs []netip.Addr
}

// main is true for what Contiv-VPP calls the main interface of a pod.
func (a *attachment) main() bool { return a.pool == cni.DefaultPool && a.key.IfName == "eth0" }

// name is the interface as Contiv-VPP writes it.
func (a *attachment) name() string { return strings.TrimSuffix(a.key.IfName+"/"+a.key.Network, "/") }

// allocationsOf are the addresses that pods hold, by the pods' names.
func allocationsOf(leases []ledger.Lease, first ledger.Family) localapi.ContivAllocations {
	pods := map[localapi.ContivPodID]map[string]*attachment{}
	for _, l := range leases {
		if l.Purpose != ledger.ForPod || !l.InUse() || l.Pod.Name == "" {
			continue
		}
		id := localapi.ContivPodID{Name: l.Pod.Name, Namespace: l.Pod.Namespace}
		if pods[id] == nil {
			pods[id] = map[string]*attachment{}
		}
		addLease(pods[id], l)
	}
	all := localapi.ContivAllocations{Pods: []localapi.ContivAllocation{}}
	for id, attachments := range pods {
		all.Pods = append(all.Pods, allocationOf(id, attachments, first))
	}
	slices.SortFunc(all.Pods, func(a, b localapi.ContivAllocation) int {
		return cmp.Or(
			strings.Compare(a.PodID.Namespace, b.PodID.Namespace),
			strings.Compare(a.PodID.Name, b.PodID.Name),
		)
	})
	return all
}

// addLease adds a lease to what a pod has. Of two sandboxes the newer one is
// the pod's; the other one is only not gone yet.
func addLease(attachments map[string]*attachment, l ledger.Lease) {
	a := &attachment{key: l.Key, pool: l.Pool, gen: l.Generation}
	name := a.name()
	if a.main() {
		name = "" // whatever the network is called
	}
	if known := attachments[name]; known != nil {
		if known.gen > a.gen {
			return
		}
		if known.gen == a.gen {
			a = known
		}
	}
	a.addrs = append(a.addrs, l.Addr)
	attachments[name] = a
}

func allocationOf(
	id localapi.ContivPodID,
	attachments map[string]*attachment,
	first ledger.Family,
) localapi.ContivAllocation {
	out := localapi.ContivAllocation{PodID: id, CustomIfIPs: map[string]netip.Addr{}}
	for name, a := range attachments {
		slices.SortFunc(a.addrs, func(x, y netip.Addr) int {
			return cmp.Or(cmp.Compare(rank(x, first), rank(y, first)), x.Compare(y))
		})
		switch name {
		case "":
			out.MainIP = a.addrs[0]
			if len(a.addrs) > 1 {
				out.MainIPs = a.addrs
			}
		default:
			out.CustomIfIPs[name] = a.addrs[0]
			if len(a.addrs) > 1 {
				if out.CustomIfAllIPs == nil {
					out.CustomIfAllIPs = map[string][]netip.Addr{}
				}
				out.CustomIfAllIPs[name] = a.addrs
			}
		}
	}
	return out
}

// rank orders the families.
func rank(a netip.Addr, first ledger.Family) int {
	if ledger.FamilyOf(a) == first {
		return 0
	}
	return 1
}

// statusOf is the status that an error asks for, or otherwise.
func statusOf(err error, otherwise int) int {
	var s *localapi.StatusError
	if errors.As(err, &s) && s.Status >= 400 && s.Status <= 599 {
		return s.Status
	}
	return otherwise
}

// present is a list that is not null in JSON.
func present[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// offered is h, or an answer that says that this agent was not given what it takes.
func offered(given bool, h http.HandlerFunc) http.HandlerFunc {
	if given {
		return h
	}
	return func(w http.ResponseWriter, r *http.Request) {
		writeError(
			w,
			http.StatusNotImplemented,
			fmt.Errorf("%s %s: this agent does not offer it", r.Method, r.URL.Path),
		)
	}
}
