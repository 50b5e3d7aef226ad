// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package apistoretest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// stream is one watch that is served.
type stream struct {
	w     http.ResponseWriter
	r     *request
	match func(object) bool
	at    int64 // what was looked at

	epoch, cycle, expired, marks int
	bookmarks                    bool
}

// event is one as JSON has it.
type event struct {
	Type   watch.EventType `json:"type"`
	Object any             `json:"object"`
}

// watch serves a watch until it ends.
func (s *Server) watch(w http.ResponseWriter, r *request) {
	st, err := s.begin(w, r)
	if err != nil {
		answer(w, nil, err)
		return
	}
	seconds, _ := strconv.Atoi(r.URL.Query().Get("timeoutSeconds"))
	if seconds == 0 {
		seconds = 1800
	}
	ctx, cancel := context.WithTimeout(r.Context(), time.Duration(seconds)*time.Second)
	defer cancel()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	for {
		events, end, changed := s.next(st)
		for _, e := range events {
			if err := json.NewEncoder(w).Encode(e); err != nil {
				return
			}
		}
		if f, ok := w.(http.Flusher); ok {
			f.Flush()
		}
		switch end {
		case cut:
			hangUp(w)
			return
		case clean:
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// begin returns the stream of a watch request.
func (s *Server) begin(w http.ResponseWriter, r *request) (*stream, error) {
	match, err := r.matcher()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	q := r.URL.Query()
	st := &stream{
		w: w, r: r, match: match, at: s.rev, epoch: s.epoch, cycle: s.cycle, expired: s.expired, marks: s.bookmarks,
		bookmarks: q.Get("allowWatchBookmarks") == "true",
	}
	v := q.Get("resourceVersion")
	if v == "" || v == "0" {
		return nil, apierrors.NewBadRequest(
			"a watch without a resourceVersion begins with what there is, which this server does not do",
		)
	}
	if st.at, err = strconv.ParseInt(v, 10, 64); err != nil {
		return nil, apierrors.NewBadRequest("resourceVersion: " + err.Error())
	}
	if st.at < s.compacted {
		return nil, expiredError(st.at)
	}
	return st, nil
}

// ending is the way in which a watch ends.
type ending int

const (
	open ending = iota
	clean
	cut
)

// next returns the events to send now, and a channel that is closed at the next change.
func (s *Server) next(st *stream) (events []event, end ending, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.down || st.epoch != s.epoch {
		return nil, cut, nil
	}
	if st.expired != s.expired {
		status := expiredError(st.at).Status()
		status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		return []event{{watch.Error, status}}, clean, nil
	}
	for _, c := range s.log {
		if c.rev <= st.at || !strings.HasPrefix(c.at, st.r.path()) {
			continue
		}
		if e, ok := st.event(c); ok {
			events = append(events, e)
		}
	}
	st.at = max(st.at, s.rev)
	if st.marks != s.bookmarks && st.bookmarks {
		o := object{"metadata": object{"resourceVersion": fmt.Sprint(st.at)}}
		st.r.head(o)
		events = append(events, event{watch.Bookmark, o})
	}
	st.marks = s.bookmarks
	if st.cycle != s.cycle {
		return events, clean, nil
	}
	return events, open, s.changed
}

// event returns the event of a change for a watch with a selector.
func (st *stream) event(c change) (event, bool) {
	was, is := c.prev != nil && st.match(c.prev), c.now != nil && st.match(c.now)
	switch {
	case was && is:
		return event{watch.Modified, c.now}, true
	case is:
		return event{watch.Added, c.now}, true
	case was && c.now == nil:
		return event{watch.Deleted, c.prev}, true
	case was:
		left := shallow(c.prev)
		m := shallow(meta(left))
		m["resourceVersion"] = fmt.Sprint(c.rev)
		left["metadata"] = m
		return event{watch.Deleted, left}, true
	}
	return event{}, false
}

func shallow(o object) object {
	out := object{}
	for key, x := range o {
		out[key] = x
	}
	return out
}
