// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"pgregory.net/rapid"
)

// plain is a message as the model knows it: of one of two kinds, with a scalar
// that may be unset, and a list.
type plain struct {
	other bool
	name  string
	list  string // of letters
}

func (p plain) message() proto.Message {
	if p.other {
		return wrapperspb.String(p.name)
	}
	var list []string
	for _, c := range p.list {
		list = append(list, string(c))
	}
	return file(p.name, list...)
}

func toPlain(m proto.Message) plain {
	if s, ok := m.(*wrapperspb.StringValue); ok {
		return plain{other: true, name: s.Value}
	}
	f := m.(*descriptorpb.FileDescriptorProto)
	p := plain{name: f.GetName()}
	for _, s := range f.Dependency {
		p.list += s
	}
	return p
}

func drawPlain(t *rapid.T) plain {
	p := plain{other: rapid.IntRange(0, 5).Draw(t, "kind") == 0, name: rapid.SampledFrom([]string{"", "v", "w"}).Draw(t, "name")}
	if !p.other {
		p.list = rapid.StringOfN(rapid.RuneFrom([]rune("xy")), 0, 2, -1).Draw(t, "list")
	}
	return p
}

type plains map[string]plain

func (p plains) messages() values {
	vs := values{}
	for k, v := range p {
		vs[k] = v.message()
	}
	return vs
}

// model computes the state that the loop should reach, as plainly as possible.
type model struct {
	internal plains
	sources  map[string]plains
	refused  map[string]int // refusals by key, of the last merge
}

func (m *model) merged() plains {
	all := plains{}
	m.refused = map[string]int{}
	maps.Copy(all, m.internal)
	for _, source := range slices.Sorted(maps.Keys(m.sources)) {
		for k, v := range m.sources[source] {
			was, ok := all[k]
			switch {
			case !ok:
				all[k] = v
			case was.other != v.other:
				m.refused[k]++
			default:
				if v.name != "" {
					was.name = v.name
				}
				was.list += v.list
				all[k] = was
			}
		}
	}
	return all
}

// mergeRun is a loop beside its model.
type mergeRun struct {
	*rig
	t     *rapid.T
	w     *wire
	model model
	last  plains          // what the sink should have had before
	dirty map[string]bool // what has failed there and was not sent since
}

func keysDrawn(t *rapid.T) []string {
	return rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c", "d"}), 0, 3, rapid.ID[string]).Draw(t, "keys")
}

// step pushes one random event, and says which keys handlers put, and which the event touches.
func (m *mergeRun) step() (put, touched []string, resync bool) {
	source := rapid.SampledFrom([]string{"alpha", ExternalDB, "zeta"}).Draw(m.t, "source")
	drawn := plains{}
	keys := keysDrawn(m.t)
	for _, k := range keys {
		drawn[k] = drawPlain(m.t)
	}
	switch rapid.SampledFrom([]string{"handler", "change", "change", "resync", "db", "periodic"}).Draw(m.t, "event") {
	case "handler":
		var gone []string
		for i, k := range keys {
			if rapid.Bool().Draw(m.t, fmt.Sprint("delete ", i)) {
				gone = append(gone, k)
				delete(drawn, k)
			}
		}
		m.a.update["handler"] = func(txn UpdateOperations) error {
			for k := range m.model.internal {
				m.g.Expect(toPlain(txn.Get(k))).To(Equal(m.model.internal[k]), "handlers see what handlers have put")
			}
			for k, v := range drawn {
				txn.Put(k, v.message())
			}
			for _, k := range gone {
				txn.Delete(k)
			}
			return nil
		}
		m.push(&event{name: "handler"})
		put = slices.Collect(maps.Keys(drawn))
		maps.Copy(m.model.internal, drawn)
		for _, k := range gone {
			delete(m.model.internal, k)
		}
		return put, keys, false
	case "change":
		vs := drawn.messages()
		for i, k := range keys {
			if rapid.Bool().Draw(m.t, fmt.Sprint("delete ", i)) {
				vs[k] = nil
				delete(m.model.sources[source], k)
				continue
			}
			if m.model.sources[source] == nil {
				m.model.sources[source] = plains{}
			}
			m.model.sources[source][k] = drawn[k]
		}
		m.push(&ExternalConfigChange{Source: source, Values: vs})
		return nil, keys, false
	case "resync":
		m.model.sources[source] = drawn
		m.push(&ExternalConfigResync{Source: source, ExternalConfig: drawn.messages()})
	case "db":
		m.model.sources[ExternalDB] = drawn
		m.push(&DBResync{ExternalConfig: drawn.messages()})
	default:
		m.wait(31 * time.Second)
	}
	return nil, nil, true
}

// check compares what was sent and what is there with the model.
func (m *mergeRun) check(put, touched []string, resync bool, before int) {
	want := m.model.merged()
	txns := m.w.txns[before:]
	if resync {
		m.g.Expect(txns).NotTo(BeEmpty())
		m.g.Expect(m.w.sent()).To(same(want.messages()), "a resync has all")
		return
	}
	sent := values{}
	for _, txn := range txns {
		m.g.Expect(txn.Method).To(Equal(Update))
		m.g.Expect(slices.IsSortedFunc(txn.Values, func(x, y Value) int { return strings.Compare(x.Key, y.Key) })).To(BeTrue())
		maps.Copy(sent, m.w.sent())
	}
	due := values{}
	for _, k := range touched {
		was, had := m.last[k]
		now, has := want[k]
		if slices.Contains(put, k) || had != has || was != now || m.dirty[k] {
			due[k] = nil
			if has {
				due[k] = now.message()
			}
		}
	}
	m.g.Expect(slices.Sorted(maps.Keys(sent))).To(Equal(slices.Sorted(maps.Keys(due))))
	m.g.Expect(sent).To(same(due))
}

func mergeProperty(t *testing.T, step func(*mergeRun)) {
	synctest.Test(t, func(t *testing.T) {
		// which would ask a bare T for its deadline in real time
		rapid.Check(struct{ *testing.T }{t}, func(t *rapid.T) {
			m := &mergeRun{
				t: t, w: &wire{}, model: model{internal: plains{}, sources: map[string]plains{}}, last: plains{}, dirty: map[string]bool{},
			}
			m.rig = startWith(NewWithT(t), func(c *Config) {
				c.EnablePeriodicHealing, c.MaxHealingAttempts, c.HealingBackoffLimit = true, 100, 10*time.Second
			}, func(d *Deps) { d.Sink = m.w })
			defer m.stop()
			m.a.resync = func(txn ResyncOperations) error {
				for k, v := range m.model.internal {
					txn.Put(k, v.message())
				}
				return nil
			}
			m.sync()
			for range rapid.IntRange(1, 12).Draw(t, "steps") {
				step(m)
			}
		})
	})
}

func TestTheMergeIsThatOfAModel(t *testing.T) {
	mergeProperty(t, func(m *mergeRun) {
		before := len(m.w.txns)
		put, touched, resync := m.step()
		m.check(put, touched, resync, before)
		m.last = m.model.merged()
		m.w.has(m.g, m.last.messages())
		m.g.Expect(m.wanted.messages()).To(same(m.model.internal.messages()))
		rs, _ := m.Events(0)
		refused := 0
		for k, n := range m.model.refused {
			if resync || slices.Contains(touched, k) {
				refused += n
			}
		}
		m.g.Expect(rs[len(rs)-1].Refused).To(HaveLen(refused))
	})
}

func TestTheMergeSurvivesASinkThatFails(t *testing.T) {
	mergeProperty(t, func(m *mergeRun) {
		m.w.fail = nil
		var failed []string
		all := false
		switch rapid.SampledFrom([]string{"no", "no", "keys", "all"}).Draw(m.t, "fault") {
		case "keys":
			failed = keysDrawn(m.t)
		case "all":
			all = true
		}
		m.w.fail = func(txn Transaction) error {
			some := ValueErrors{}
			for _, v := range txn.Values {
				if all || slices.Contains(failed, v.Key) {
					some[v.Key] = errors.New("no")
				}
			}
			switch {
			case all:
				return errors.New("no line")
			case len(some) > 0:
				return some
			}
			return nil
		}
		before := len(m.w.txns)
		put, touched, resync := m.step()
		m.check(put, touched, resync, before)
		now := m.model.merged()
		for _, k := range []string{"a", "b", "c", "d"} {
			_, is := now[k]
			_, was := m.last[k]
			if sent := m.sentSince(before, k); sent || resync {
				m.dirty[k] = sent && slices.Contains(failed, k) || all && (is || was || m.dirty[k])
			}
		}
		m.last, m.w.fail = now, nil
		if rapid.Bool().Draw(m.t, "let it heal") {
			m.wait(32 * time.Second)
			clear(m.dirty)
			m.w.has(m.g, now.messages())
			m.g.Expect(m.Status().Healthy).To(BeTrue())
		}
	})
}

func (m *mergeRun) sentSince(before int, key string) bool {
	return slices.ContainsFunc(m.w.txns[before:], func(txn Transaction) bool {
		return slices.ContainsFunc(txn.Values, func(v Value) bool { return v.Key == key })
	})
}
