// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// streamsMost limits the event streams that are open at the same time: probes and metrics
// need connections, too.
const streamsMost = connections / 4

// eventStreams serves the decisions of this process.
type eventStreams struct {
	decisions *decisions
	started   time.Time
	stop      <-chan struct{} // closed when the listener ends
	open      atomic.Int64
}

// ServeHTTP answers with the last decisions as server-sent events, and with follow goes on
// until the caller leaves or the operator stops. The path and its arguments are those of
// the agent's API.
func (s *eventStreams) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer s.open.Add(-1)
	if s.open.Add(1) > streamsMost {
		status := http.StatusServiceUnavailable
		http.Error(w, fmt.Sprintf("%d event streams are open: close a page", streamsMost), status)
		return
	}
	args := r.URL.Query()
	seq := s.after(r.Header.Get("Last-Event-ID"))
	latest, err := strconv.Atoi(args.Get("last"))
	if args.Has("last") && (err != nil || latest < 1) {
		http.Error(w, fmt.Sprintf("last: %q is not a number above 0", args.Get("last")), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set(localapi.EventsStarted, s.started.Format(time.RFC3339Nano))
	flush := http.NewResponseController(w)
	for {
		records, more := s.decisions.since(seq)
		if latest > 0 && len(records) > latest {
			records = records[len(records)-latest:]
		}
		for i := range records {
			data, err := json.Marshal(&records[i])
			if err != nil {
				continue
			}
			id := records[i].SeqNum
			if _, err := fmt.Fprintf(w, "id: %d-%d\ndata: %s\n\n", s.started.UnixNano(), id, data); err != nil {
				return
			}
			seq = id + 1
		}
		if flush.Flush() != nil || args.Get("follow") != "true" {
			return
		}
		select {
		case <-more:
		case <-s.stop:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// after returns the number that follows the one of an event's ID, 0 if the event is of
// another process.
func (s *eventStreams) after(id string) uint64 {
	run, number, _ := strings.Cut(id, "-")
	seq, err := strconv.ParseUint(number, 10, 64)
	if err != nil || run != strconv.FormatInt(s.started.UnixNano(), 10) {
		return 0
	}
	return seq + 1
}
