// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/internal/testkit/otlptest"
)

// tracedLab is a node whose agent traces to a collector in the same network namespace.
type tracedLab struct {
	*lab
	collector *otlptest.Receiver
}

// newTracedLab starts the collector and the agent. conf are further keys of the section
// cadastre, and of traces.
func newTracedLab(t *testing.T, traces string) *tracedLab {
	t.Helper()
	if err := netlab.Try(); err != nil {
		t.Skipf("NOT RUN: this process can make no network namespaces: %v", err)
	}
	l := &tracedLab{lab: prepareLab(t)}
	l.Expect(l.host.Do(func() error {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err == nil {
			l.collector = otlptest.New(listener)
		}
		return err
	})).To(Succeed())
	t.Cleanup(l.collector.Close)
	l.configure(fmt.Sprintf(", traces: {endpoint: %q%s}", l.collector.URL(), traces))
	l.start()
	return l
}

// ofTrace returns the spans of the one trace that has a span with an attribute.
func (l *tracedLab) ofTrace(key, value string, complete func([]otlptest.Span) bool) (spans []otlptest.Span) {
	l.t.Helper()
	l.Eventually(func(g Gomega) {
		all, err := l.collector.Spans()
		g.Expect(err).NotTo(HaveOccurred())
		i := slices.IndexFunc(all, func(s otlptest.Span) bool { return s.Attributes[key] == value })
		g.Expect(i).To(BeNumerically(">=", 0), "%d spans", len(all))
		spans = slices.DeleteFunc(slices.Clone(all), func(s otlptest.Span) bool { return s.Trace != all[i].Trace })
		g.Expect(complete(spans)).To(BeTrue(), names(spans))
	}, patience, pace).Should(Succeed())
	return spans
}

// hasRoot reports whether the span of the plugin's process has come. It comes last.
func hasRoot(spans []otlptest.Span) bool {
	return slices.ContainsFunc(spans, func(s otlptest.Span) bool { return s.Parent == "" })
}

func names(spans []otlptest.Span) string {
	var text strings.Builder
	for _, s := range spans {
		fmt.Fprintf(&text, "%s %s in %q %v %v\n", s.Name, s.ID, s.Parent, s.Attributes, s.Failure)
	}
	return text.String()
}

// expectTree checks that spans are one tree below the process of the plugin, with each span
// within the time of its parent.
func (l *tracedLab) expectTree(spans []otlptest.Span) {
	l.t.Helper()
	byID := map[string]otlptest.Span{}
	roots := 0
	for _, s := range spans {
		l.Expect(byID).NotTo(HaveKey(s.ID), s.Name)
		byID[s.ID] = s
	}
	for _, s := range spans {
		l.Expect(s.Ended).NotTo(BeTemporally("<", s.Began), s.Name)
		if s.Parent == "" {
			roots++
			l.Expect(s.Name).To(HavePrefix("cadastre-cni "))
			continue
		}
		parent, ok := byID[s.Parent]
		l.Expect(ok).To(BeTrue(), "the parent of %q is missing:\n%s", s.Name, names(spans))
		l.Expect(s.Began).NotTo(BeTemporally("<", parent.Began), "%s in %s", s.Name, parent.Name)
		l.Expect(s.Ended).NotTo(BeTemporally(">", parent.Ended), "%s in %s", s.Name, parent.Name)
	}
	l.Expect(roots).To(Equal(1), names(spans))
}

// pathOf returns the names of a span and of those above it, from the root.
func pathOf(spans []otlptest.Span, of otlptest.Span) string {
	path := of.Name
	for of.Parent != "" {
		i := slices.IndexFunc(spans, func(s otlptest.Span) bool { return s.ID == of.Parent })
		if i < 0 {
			return "? > " + path
		}
		of = spans[i]
		path = of.Name + " > " + path
	}
	return path
}

func pathsOf(spans []otlptest.Span) (paths []string) {
	for _, s := range spans {
		paths = append(paths, pathOf(spans, s))
	}
	return paths
}

func named(spans []otlptest.Span, name string) (found []otlptest.Span) {
	for _, s := range spans {
		if s.Name == name {
			found = append(found, s)
		}
	}
	return found
}

func TestAnADDIsOneTrace(t *testing.T) {
	l := newTracedLab(t, "")
	r := l.runtime()
	pod := r.add("web-0")

	spans := l.ofTrace("k8s.pod.name", "web-0", hasRoot)
	l.expectTree(spans)
	const event = "cadastre-cni ADD > socket > agent ADD > event Add Pod"
	l.Expect(pathsOf(spans)).To(ContainElements(
		"cadastre-cni ADD",
		"cadastre-cni ADD > socket",
		"cadastre-cni ADD > socket > agent ADD",
		"cadastre-cni ADD > socket > agent ADD > queue",
		event,
		event+" > handler podmanager",
		event+" > handler ipam",
		event+" > handler ipnet",
		event+" > commit",
		event+" > southbound",
		event+" > southbound > create linux wire",
	), names(spans))
	request := named(spans, "agent ADD")[0]
	l.Expect(request.Attributes).To(And(
		HaveKeyWithValue("cadastre.node", "a"),
		HaveKeyWithValue("cadastre.pool", "default"),
		HaveKeyWithValue("cadastre.addresses", pod.addr(true).String()+" "+pod.addr(false).String()),
		HaveKeyWithValue("cadastre.outcome", "done"),
		HaveKeyWithValue("cadastre.network", "cadastre"),
		HaveKeyWithValue("container.id", "web-0"),
		HaveKeyWithValue("k8s.namespace.name", "default"),
	))
	l.Expect(request.Resource).To(And(HaveKeyWithValue("service.name", "cadastre-agent"), HaveKeyWithValue("k8s.node.name", "a")))
	for _, s := range spans {
		l.Expect(s.Failed).To(BeFalse(), s.Name)
	}

	l.Expect(r.del(pod)).To(Succeed())
	del := l.ofTrace("cadastre.command", "DEL", hasRoot)
	l.expectTree(del)
	l.Expect(pathsOf(del)).To(ContainElement("cadastre-cni DEL > socket > agent DEL > event Delete Pod > southbound > delete linux wire"))
}

func TestARefusedADDCarriesItsError(t *testing.T) {
	l := newTracedLab(t, "")
	r := l.runtime()
	s := r.sandbox("web-1", map[string]any{"ips": []string{"10.1.99.9"}})
	err := r.tryAdd(s)
	l.Expect(err).To(HaveOccurred())

	spans := l.ofTrace("k8s.pod.name", "web-1", hasRoot)
	l.expectTree(spans)
	for _, name := range []string{"cadastre-cni ADD", "agent ADD", "event Add Pod", "handler ipam"} {
		failed := named(spans, name)
		l.Expect(failed).NotTo(BeEmpty(), names(spans))
		l.Expect(failed[0].Failed).To(BeTrue(), name)
		l.Expect(failed[0].Failure).To(ContainSubstring("10.1.99.9"), name)
	}
	l.Expect(err.Error()).To(ContainSubstring(named(spans, "cadastre-cni ADD")[0].Failure))
	l.Expect(named(spans, "agent ADD")[0].Attributes).To(And(
		HaveKeyWithValue("cadastre.outcome", "refused"),
		HaveKeyWithValue("cadastre.reason", "AddressRefused"),
		HaveKeyWithValue("cadastre.addresses", "10.1.99.9"),
	))
	l.Expect(named(spans, "revert podmanager")).To(HaveLen(1), names(spans))
}

func TestManyADDsAtOnceAreTreesOfTheirOwn(t *testing.T) {
	l := newTracedLab(t, "")
	r := l.runtime()
	var pods sync.WaitGroup
	const count = 8
	failures := make([]error, count)
	for i := range count {
		s := r.sandbox(fmt.Sprintf("many-%d", i), nil)
		pods.Go(func() { failures[i] = r.tryAdd(s) })
	}
	pods.Wait()
	l.Expect(failures).To(HaveEach(BeNil()))
	traces := map[string]bool{}
	for i := range count {
		spans := l.ofTrace("k8s.pod.name", fmt.Sprintf("many-%d", i), hasRoot)
		l.expectTree(spans)
		traces[spans[0].Trace] = true
	}
	l.Expect(traces).To(HaveLen(count))
}

func TestACollectorThatIsAwayCostsSpansOnly(t *testing.T) {
	l := newTracedLab(t, "")
	r := l.runtime()
	r.add("before")
	l.ofTrace("k8s.pod.name", "before", hasRoot)

	asked := l.collector.Requests()
	l.collector.Hold() // no ADD may wait for it
	r.add("held")
	l.Eventually(l.collector.Requests, patience, pace).Should(BeNumerically(">", asked))
	held := r.add("held-2")
	l.Expect(r.check(held)).To(Succeed())
	l.collector.Answer(400)
	l.collector.Release()

	lost := func() int {
		text, err := os.ReadFile(filepath.Join(l.dir, "agent.log"))
		l.Expect(err).NotTo(HaveOccurred())
		return strings.Count(string(text), "the collector does not take spans")
	}
	l.Eventually(lost, patience, pace).Should(Equal(1))
	for i := range 3 { // each is exported by a request of its own
		asked := l.collector.Requests()
		r.add(fmt.Sprintf("lost-%d", i))
		l.Eventually(l.collector.Requests, patience, pace).Should(BeNumerically(">", asked))
	}
	l.Expect(lost()).To(Equal(1))

	l.collector.Answer(0)
	pod := r.add("after")
	l.expectTree(l.ofTrace("k8s.pod.name", "after", hasRoot))
	l.Expect(r.check(pod)).To(Succeed())
	l.Expect(lost()).To(Equal(1))
}

func TestTheEndOfTheAgentExportsTheLastSpans(t *testing.T) {
	l := newTracedLab(t, "")
	l.runtime().add("last")
	l.Expect(l.process.Stop(patience)).To(Succeed())
	all, err := l.collector.Spans()
	l.Expect(err).NotTo(HaveOccurred())
	l.Expect(named(all, "agent ADD")).To(HaveLen(1), names(all))
}

func TestNoSampleIsNoExport(t *testing.T) {
	l := newTracedLab(t, ", sampling: 0")
	l.runtime().add("none")
	l.Expect(l.process.Stop(patience)).To(Succeed())
	all, err := l.collector.Spans()
	l.Expect(err).NotTo(HaveOccurred())
	l.Expect(all).To(BeEmpty())
	l.Expect(l.collector.Requests()).To(BeZero())
}
