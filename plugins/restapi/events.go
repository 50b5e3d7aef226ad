// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// events writes one record a line; with follow it goes on until the caller
// leaves or the agent stops, and then what has happened by that time is written.
func (p *RESTAPI) events(w http.ResponseWriter, r *http.Request) {
	seq, follow, filter, err := eventArguments(r)
	if err != nil {
		writeError(w, http.StatusBadRequest, err)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set(localapi.EventsStarted, p.Agent.Status().Started.UTC().Format(time.RFC3339Nano))
	flush := http.NewResponseController(w)
	stop, _ := r.Context().Value(stopping{}).(<-chan struct{})
	enc := json.NewEncoder(w)
	for last := !follow; ; {
		records, more := p.Loop.Events(seq)
		for i := range records {
			if rec := &records[i]; filter.Selects(rec) && enc.Encode(rec) != nil {
				return
			}
			seq = records[i].SeqNum + 1
		}
		if last || flush.Flush() != nil {
			return
		}
		select {
		case <-more:
		case <-stop:
			last = true
		case <-r.Context().Done():
			return
		}
	}
}

func eventArguments(r *http.Request) (seq uint64, follow bool, filter controller.RecordFilter, err error) {
	args := r.URL.Query()
	if s := args.Get("since"); s != "" {
		if seq, err = strconv.ParseUint(s, 10, 64); err != nil {
			return 0, false, filter, fmt.Errorf("since: %q is not a sequence number", s)
		}
	}
	for name, to := range map[string]*bool{"follow": &follow, "failed": &filter.Failed} {
		s := args.Get(name)
		if s == "" {
			continue
		}
		if *to, err = strconv.ParseBool(s); err != nil {
			return 0, false, filter, fmt.Errorf("%s: %q is neither true nor false", name, s)
		}
	}
	if s := args.Get("address"); s != "" {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return 0, false, filter, fmt.Errorf("address: %q is not an IP address", s)
		}
		filter.Address = a.Unmap().String()
	}
	filter.Pod, filter.Container = args.Get("pod"), args.Get("container")
	return seq, follow, filter, nil
}
