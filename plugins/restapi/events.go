// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// events writes one record a line; with follow it goes on until the caller
// leaves or the agent stops, and then what has happened by that time is written.
func (p *RESTAPI) events(w http.ResponseWriter, r *http.Request) {
	seq, follow, err := eventArguments(r)
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
		for _, rec := range records {
			if enc.Encode(rec) != nil {
				return
			}
			seq = rec.SeqNum + 1
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

func eventArguments(r *http.Request) (seq uint64, follow bool, err error) {
	args := r.URL.Query()
	if s := args.Get("since"); s != "" {
		if seq, err = strconv.ParseUint(s, 10, 64); err != nil {
			return 0, false, fmt.Errorf("since: %q is not a sequence number", s)
		}
	}
	if s := args.Get("follow"); s != "" {
		if follow, err = strconv.ParseBool(s); err != nil {
			return 0, false, fmt.Errorf("follow: %q is neither true nor false", s)
		}
	}
	return seq, follow, nil
}
