// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// stream is the media type of server-sent events.
const stream = "text/event-stream"

// events writes one record a line; with follow it goes on until the caller
// leaves or the agent stops, and then what has happened by that time is written. A
// caller that accepts server-sent events gets these, and goes on after its Last-Event-ID.
func (p *RESTAPI) events(w http.ResponseWriter, r *http.Request) {
	seq, follow, filter, err := eventArguments(r)
	if err != nil {
		writeError(w, http.StatusBadRequest, err)
		return
	}
	latest, err := latestArgument(r)
	if err != nil {
		writeError(w, http.StatusBadRequest, err)
		return
	}
	started := p.Agent.Status().Started.UTC()
	write := func(rec *controller.Record) error { return json.NewEncoder(w).Encode(rec) }
	media := "application/x-ndjson"
	if strings.Contains(r.Header.Get("Accept"), stream) {
		media = stream
		write = func(rec *controller.Record) error { return writeEvent(w, started, rec) }
		if last := r.Header.Get("Last-Event-ID"); last != "" {
			seq = after(last, started)
		}
	}
	w.Header().Set("Content-Type", media)
	w.Header().Set(localapi.EventsStarted, started.Format(time.RFC3339Nano))
	flush := http.NewResponseController(w)
	stop, _ := r.Context().Value(stopping{}).(<-chan struct{})
	for last := !follow; ; {
		records, more := p.Loop.Events(seq)
		if latest > 0 && len(records) > latest {
			records = records[len(records)-latest:]
		}
		for i := range records {
			if rec := &records[i]; filter.Selects(rec) && write(rec) != nil {
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

// latestArgument returns the number of records that are enough at once, 0 for all.
func latestArgument(r *http.Request) (int, error) {
	s := r.URL.Query().Get("last")
	if s == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("last: %q is not a number above 0", s)
	}
	return n, nil
}

// writeEvent writes a record as a server-sent event. Numbers count within one run of the
// agent, so the event's ID has the start of the run too.
func writeEvent(w io.Writer, started time.Time, rec *controller.Record) error {
	data, err := json.Marshal(rec)
	if err == nil {
		_, err = fmt.Fprintf(w, "id: %d-%d\ndata: %s\n\n", started.UnixNano(), rec.SeqNum, data)
	}
	return err
}

// after returns the number that follows the one of an event's ID, 0 if the event is of
// another run of the agent.
func after(id string, started time.Time) uint64 {
	run, number, _ := strings.Cut(id, "-")
	seq, err := strconv.ParseUint(number, 10, 64)
	if err != nil || run != strconv.FormatInt(started.UnixNano(), 10) {
		return 0
	}
	return seq + 1
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
