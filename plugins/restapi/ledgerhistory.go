// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// Limits of the entries of an answer: an agent has the memory for a page, and not for the
// whole history in several answers at once.
const (
	historyLimit = 1000 // without the argument limit
	historyMost  = 10_000
)

// ledgerHistory answers with the recorded changes that the arguments select.
func (p *RESTAPI) ledgerHistory(w http.ResponseWriter, r *http.Request) {
	q, err := ledgerQuery(r.URL.Query())
	if err != nil {
		writeError(w, http.StatusBadRequest, err)
		return
	}
	entries, err := p.Ledger.History(r.Context(), q)
	if errors.Is(err, ledger.ErrNoHistory) {
		writeError(w, http.StatusNotImplemented, err)
		return
	}
	if err != nil {
		writeError(w, http.StatusInternalServerError, err)
		return
	}
	all := make([]localapi.HistoryEntry, 0, len(entries))
	for i := range entries {
		all = append(all, entryOf(&entries[i]))
	}
	writeJSON(w, http.StatusOK, all)
}

func ledgerQuery(args url.Values) (q ledger.HistoryQuery, err error) {
	q.Pool, q.ContainerID, q.Limit = args.Get("pool"), args.Get("container"), historyLimit
	if s := args.Get("address"); s != "" {
		if q.Addr, err = netip.ParseAddr(s); err != nil {
			return q, fmt.Errorf("history: address %q is not an IP address", s)
		}
		q.Addr = q.Addr.Unmap()
	}
	if s := args.Get("pod"); s != "" {
		namespace, name, ok := strings.Cut(s, "/")
		if !ok || namespace == "" || name == "" {
			return q, fmt.Errorf("history: pod %q is not of the form namespace/name", s)
		}
		q.Pod = ledger.Pod{Namespace: namespace, Name: name}
	}
	for name, to := range map[string]*time.Time{"since": &q.Since, "until": &q.Until} {
		if s := args.Get(name); s != "" {
			if *to, err = time.Parse(time.RFC3339Nano, s); err != nil {
				return q, fmt.Errorf("history: %s %q is not a time: write it as %s", name, s, time.RFC3339)
			}
		}
	}
	if s := args.Get("before"); s != "" {
		if q.Before, err = strconv.ParseUint(s, 10, 64); err != nil {
			return q, fmt.Errorf("history: before %q is not the number of an entry", s)
		}
	}
	if s := args.Get("limit"); s != "" {
		if q.Limit, err = strconv.Atoi(s); err != nil || q.Limit < 1 {
			return q, fmt.Errorf("history: limit %q is not a number above 0", s)
		}
		if q.Limit > historyMost {
			return q, fmt.Errorf(
				"history: limit %d is above %d: ask for further pages with before",
				q.Limit,
				historyMost,
			)
		}
	}
	return q, nil
}

// entryOf returns an entry as the API shows it.
func entryOf(e *ledger.HistoryEntry) localapi.HistoryEntry {
	out := localapi.HistoryEntry{
		Number:       e.Number,
		Time:         e.Time,
		Action:       e.Action.String(),
		Pool:         e.Pool,
		Purpose:      e.Purpose.String(),
		Network:      e.Key.Network,
		ContainerID:  e.Key.ContainerID,
		IfName:       e.Key.IfName,
		PodNamespace: e.Pod.Namespace,
		PodName:      e.Pod.Name,
		PodUID:       e.Pod.UID,
		NetNS:        e.NetNS,
		Generation:   e.Generation,
		EventName:    e.EventName,
		Reason:       e.Reason,
	}
	if e.Addr.IsValid() {
		out.IP = e.Addr.String()
	}
	if e.Block.IsValid() {
		out.Block = e.Block.String()
	}
	if !e.Since.IsZero() {
		since := e.Since
		out.Since = &since
	}
	if e.After > 0 {
		out.After = e.After.String()
	}
	if e.EventName != "" {
		number := e.Event
		out.Event = &number
	}
	return out
}
