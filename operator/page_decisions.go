// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"path"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// decisions keeps the last decisions of this process for the page: the lines that the
// controllers log, and the Events that they write to the API server, each with its
// outcome. Any goroutine may call it.
type decisions struct {
	now func() time.Time

	mu      sync.Mutex
	records []controller.Record // with ascending numbers
	next    uint64
	changed chan struct{} // closed by the next record
}

// decisionsMost limits the decisions that are kept.
const decisionsMost = 1000

func newDecisions(now func() time.Time) *decisions {
	return &decisions{now: now, next: 1, changed: make(chan struct{})}
}

// add keeps a decision, whose number it sets.
func (d *decisions) add(r controller.Record) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r.SeqNum = d.next
	d.next++
	if len(d.records) == decisionsMost {
		d.records = slices.Delete(d.records, 0, decisionsMost/10)
	}
	d.records = append(d.records, r)
	close(d.changed)
	d.changed = make(chan struct{})
}

// since returns the decisions from a number on, and a channel that is closed by the next
// one.
func (d *decisions) since(number uint64) ([]controller.Record, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i, _ := slices.BinarySearchFunc(d.records, number, func(r controller.Record, n uint64) int {
		return int(min(max(int64(r.SeqNum)-int64(n), -1), 1))
	})
	return slices.Clone(d.records[i:]), d.changed
}

// lastHour counts the decisions of the last hour by minute, and by their text, the newest first.
func (d *decisions) lastHour() localapi.MapChanges {
	until := d.now().UTC()
	out := localapi.MapChanges{
		Until:    until,
		Minutes:  make([]localapi.MapMinute, localapi.MapMinutes),
		Recent:   []localapi.HistoryEntry{},
		Recorded: true,
	}
	all, _ := d.since(0)
	places := map[[2]string]int{}
	for i := len(all) - 1; i >= 0; i-- {
		r := &all[i]
		minute := localapi.MapMinutes - 1 - int(until.Sub(r.ProcessingStart)/time.Minute)
		if minute < 0 {
			return out
		}
		out.Minutes[min(minute, localapi.MapMinutes-1)].Other++
		name := [2]string{r.Handlers[0].Handler, r.Name}
		at, known := places[name]
		if !known {
			at = len(out.Decisions)
			places[name] = at
			out.Decisions = append(
				out.Decisions,
				localapi.MapDecision{By: name[0], Name: name[1], Last: r.ProcessingStart},
			)
		}
		out.Decisions[at].Count++
		if r.Error != "" {
			out.Decisions[at].Failed++
		}
	}
	out.Cut = len(all) > 0 && all[0].SeqNum > 1
	return out
}

// about returns the last decisions, at most limit of them, that name a node or have an
// address in a prefix.
func (d *decisions) about(node string, prefix netip.Prefix, limit int) (found []controller.Record) {
	all, _ := d.since(0)
	for i := len(all) - 1; i >= 0 && len(found) < limit; i-- {
		if concerns(&all[i], node, prefix) {
			found = append(found, all[i])
		}
	}
	slices.Reverse(found)
	return found
}

func concerns(r *controller.Record, node string, prefix netip.Prefix) bool {
	if node != "" && slices.Contains(words(r.Description), node) {
		return true
	}
	return prefix.IsValid() && slices.ContainsFunc(r.Subject.Addresses, func(text string) bool {
		p, err := netip.ParsePrefix(text)
		return err == nil && p.Overlaps(prefix)
	})
}

// words splits the values of a description.
func words(text string) []string {
	return strings.FieldsFunc(text, func(c rune) bool { return strings.ContainsRune(" ,;=[]\"", c) })
}

// wrap returns a handler of log records that keeps those of the controllers as well.
func (d *decisions) wrap(next slog.Handler) slog.Handler { return &decisionLog{Handler: next, to: d} }

// decisionLog is a slog.Handler that passes all records on.
type decisionLog struct {
	slog.Handler
	to    *decisions
	attrs []slog.Attr
}

// WithAttrs implements slog.Handler.
func (h *decisionLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &decisionLog{h.Handler.WithAttrs(attrs), h.to, slices.Concat(h.attrs, attrs)}
}

// WithGroup implements slog.Handler. The page shows no groups.
func (h *decisionLog) WithGroup(name string) slog.Handler {
	return &decisionLog{h.Handler.WithGroup(name), h.to, h.attrs}
}

// Enabled implements slog.Handler: decisions are kept whatever the log shows.
func (h *decisionLog) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo || h.Handler.Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (h *decisionLog) Handle(ctx context.Context, line slog.Record) error {
	if line.Level >= slog.LevelInfo {
		h.to.add(h.recordOf(line))
	}
	if !h.Handler.Enabled(ctx, line.Level) {
		return nil
	}
	return h.Handler.Handle(ctx, line)
}

// recordOf returns a line as the page shows events: the attributes are its description,
// but for an error, which is the outcome.
func (h *decisionLog) recordOf(line slog.Record) controller.Record {
	r := controller.Record{Name: line.Message, ProcessingStart: line.Time, ProcessingEnd: line.Time}
	by := controller.HandlerRecord{Handler: packageOf(line.PC)}
	var texts []string
	note := func(a slog.Attr) bool {
		text := a.Value.Resolve().String()
		switch a.Key {
		case "error", "err":
			by.Error = text
			return true
		case "controller":
			by.Handler = text
		}
		texts = append(texts, a.Key+"="+text)
		for _, word := range words(text) {
			if p, err := netip.ParsePrefix(word); err == nil {
				r.Subject.Addresses = append(r.Subject.Addresses, p.String())
			}
		}
		return true
	}
	for _, a := range h.attrs {
		note(a)
	}
	line.Attrs(note)
	r.Description = strings.Join(texts, " ")
	switch {
	case by.Error != "":
		r.Error = by.Error
	case line.Level >= slog.LevelWarn:
		r.Note = strings.ToLower(line.Level.String())
	default:
		by.Change = "done"
	}
	r.Handlers = []controller.HandlerRecord{by}
	return r
}

// packageOf returns the last part of the import path of a program counter's package: the
// name of a controller.
func packageOf(pc uintptr) string {
	frame, _ := goruntime.CallersFrames([]uintptr{pc}).Next()
	name, _, _ := strings.Cut(path.Base(frame.Function), ".")
	return name
}

// transport returns a transport that keeps the Events that are written through it.
func (d *decisions) transport(next http.RoundTripper) http.RoundTripper {
	return &eventTransport{next, d}
}

type eventTransport struct {
	next http.RoundTripper
	to   *decisions
}

// RoundTrip implements http.RoundTripper.
func (t *eventTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodPost || path.Base(r.URL.Path) != "events" || r.GetBody == nil {
		return t.next.RoundTrip(r)
	}
	record := t.to.eventOf(r)
	answer, err := t.next.RoundTrip(r)
	if record == nil {
		return answer, err
	}
	by := &record.Handlers[0]
	switch {
	case err != nil:
		by.Error = err.Error()
	case answer.StatusCode == http.StatusConflict:
		by.Change = "it is there already"
	case answer.StatusCode >= http.StatusBadRequest:
		by.Error = "the API server answers " + answer.Status
	default:
		by.Change = "written"
	}
	record.Error, record.ProcessingEnd = by.Error, t.to.now()
	t.to.add(*record)
	return answer, err
}

// eventMost limits the size of an Event that is read.
const eventMost = 1 << 20

// eventOf returns the record of an Event in the body of a request, nil if there is none.
func (d *decisions) eventOf(r *http.Request) *controller.Record {
	copied, err := r.GetBody()
	if err != nil {
		return nil
	}
	defer func() { _ = copied.Close() }()
	body, err := io.ReadAll(io.LimitReader(copied, eventMost))
	if err != nil {
		return nil
	}
	o, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return nil
	}
	var about corev1.ObjectReference
	var kind, reason, message string
	switch e := o.(type) {
	case *corev1.Event:
		about, kind, reason, message = e.InvolvedObject, e.Type, e.Reason, e.Message
	case *eventsv1.Event:
		about, kind, reason, message = e.Regarding, e.Type, e.Reason, e.Note
	default:
		return nil
	}
	return &controller.Record{
		Name:            "Event " + reason,
		Description:     fmt.Sprintf("%s %s=%s %s", kind, about.Kind, about.Name, message),
		ProcessingStart: d.now(),
		Handlers:        []controller.HandlerRecord{{Handler: "API server"}},
	}
}
