// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"log/slog"
	"net/netip"
	"path"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// decisions keeps the last decisions of this process for the page: what the controllers
// log, each with its outcome. Any goroutine may call it.
type decisions struct {
	now func() time.Time

	mu      sync.Mutex
	kept    []decision // with ascending numbers
	next    uint64
	changed chan struct{} // closed by the next one
}

// decision is a record as the page shows it, and what it is about.
type decision struct {
	controller.Record
	nodes    []string
	prefixes []netip.Prefix
}

// decisionsMost limits the decisions that are kept.
const decisionsMost = 1000

func newDecisions(now func() time.Time) *decisions {
	return &decisions{now: now, next: 1, changed: make(chan struct{})}
}

// add keeps a decision, whose number it sets.
func (d *decisions) add(r decision) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r.SeqNum = d.next
	d.next++
	if len(d.kept) == decisionsMost {
		d.kept = slices.Delete(d.kept, 0, decisionsMost/10)
	}
	d.kept = append(d.kept, r)
	close(d.changed)
	d.changed = make(chan struct{})
}

// since returns the decisions from a number on, and a channel that is closed by the next
// one.
func (d *decisions) since(number uint64) ([]decision, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i, _ := slices.BinarySearchFunc(d.kept, number, func(r decision, n uint64) int {
		return int(min(max(int64(r.SeqNum)-int64(n), -1), 1))
	})
	return slices.Clone(d.kept[i:]), d.changed
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

// about returns the last decisions, at most limit of them, that concern a node or have an
// address in a prefix.
func (d *decisions) about(node string, prefix netip.Prefix, limit int) (found []controller.Record) {
	all, _ := d.since(0)
	for i := len(all) - 1; i >= 0 && len(found) < limit; i-- {
		if all[i].concerns(node, prefix) {
			found = append(found, all[i].Record)
		}
	}
	slices.Reverse(found)
	return found
}

func (d *decision) concerns(node string, prefix netip.Prefix) bool {
	return slices.Contains(d.nodes, node) || prefix.IsValid() && slices.ContainsFunc(d.prefixes, prefix.Overlaps)
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
		h.to.add(h.decisionOf(line))
	}
	if !h.Handler.Enabled(ctx, line.Level) {
		return nil
	}
	return h.Handler.Handle(ctx, line)
}

// decisionOf returns a line as the page shows events: the attributes are its description,
// but for an error, which is the outcome.
func (h *decisionLog) decisionOf(line slog.Record) decision {
	d := decision{Record: controller.Record{Name: line.Message, ProcessingStart: line.Time, ProcessingEnd: line.Time}}
	by := controller.HandlerRecord{Handler: packageOf(line.PC)}
	var texts []string
	note := func(a slog.Attr) bool {
		value := a.Value.Resolve()
		text := value.String()
		switch a.Key {
		case "error", "err":
			by.Error = text
			return true
		case "controller":
			by.Handler = text
		}
		texts = append(texts, a.Key+"="+text)
		d.note(a.Key, value.Any())
		return true
	}
	for _, a := range h.attrs {
		note(a)
	}
	line.Attrs(note)
	d.Description = strings.Join(texts, " ")
	for _, p := range d.prefixes {
		d.Subject.Addresses = append(d.Subject.Addresses, p.String())
	}
	switch {
	case by.Error != "":
		d.Error = by.Error
	case line.Level >= slog.LevelWarn:
		d.Note = strings.ToLower(line.Level.String())
	default:
		by.Change = "done"
	}
	d.Handlers = []controller.HandlerRecord{by}
	return d
}

// note takes the nodes and prefixes of an attribute: its value has their type.
func (d *decision) note(key string, value any) {
	switch value := value.(type) {
	case string:
		if key == "node" {
			d.nodes = append(d.nodes, value)
		}
	case []string:
		if key == "nodes" {
			d.nodes = append(d.nodes, value...)
		}
	case netip.Prefix:
		if value.IsValid() {
			d.prefixes = append(d.prefixes, value)
		}
	case []netip.Prefix:
		d.prefixes = append(d.prefixes, value...)
	case netip.Addr:
		if value.IsValid() {
			d.prefixes = append(d.prefixes, netip.PrefixFrom(value, value.BitLen()))
		}
	}
}

// packageOf returns the last part of the import path of a program counter's package: the
// name of a controller.
func packageOf(pc uintptr) string {
	frame, _ := goruntime.CallersFrames([]uintptr{pc}).Next()
	name, _, _ := strings.Cut(path.Base(frame.Function), ".")
	return name
}
