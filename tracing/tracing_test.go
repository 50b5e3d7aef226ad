// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package tracing_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/cadastre/cadastre/internal/testkit/logbuffer"
	"github.com/cadastre/cadastre/internal/testkit/otlptest"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
	"github.com/cadastre/cadastre/tracing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a Tracer with its collector and its log.
type rig struct {
	*WithT
	collector *otlptest.Receiver
	tracer    *tracing.Tracer
	log       logbuffer.Buffer
}

func newRig(t *testing.T, opt tracing.Options) *rig {
	t.Helper()
	r := &rig{WithT: NewWithT(t)}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	r.Expect(err).NotTo(HaveOccurred())
	r.collector = otlptest.New(l)
	t.Cleanup(r.collector.Close)
	opt.Endpoint, opt.Log, opt.Every = r.collector.URL(), slog.New(slog.NewTextHandler(&r.log, nil)), time.Millisecond
	r.tracer, err = tracing.New(opt)
	r.Expect(err).NotTo(HaveOccurred())
	return r
}

// request makes one span, and reports whether it is exported.
func (r *rig) request(traceparent string) bool {
	at := time.Unix(1700000000, 0)
	_, span := r.tracer.Request(context.Background(), "a request", traceparent, at)
	span.End(trace.WithTimestamp(at.Add(time.Second)))
	return span.SpanContext().IsSampled()
}

func (r *rig) spans() []otlptest.Span {
	all, err := r.collector.Spans()
	r.Expect(err).NotTo(HaveOccurred())
	return all
}

func Example() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	collector := otlptest.New(l)
	defer collector.Close()
	tracer, err := tracing.New(tracing.Options{Endpoint: collector.URL(), Sampling: 1, Node: "node-a"})
	if err != nil {
		fmt.Println(err)
		return
	}
	sender := "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00" // the header of a request
	_, span := tracer.Request(context.Background(), "agent ADD", sender, time.Now())
	span.End()
	fmt.Println(tracer.Shutdown(context.Background()))
	all, _ := collector.Spans()
	fmt.Println(all[0].Name, "in", all[0].Trace, "below", all[0].Parent, "of", all[0].Resource["k8s.node.name"])
	// Output:
	// <nil>
	// agent ADD in 4bf92f3577b34da6a3ce929d0e0e4736 below 00f067aa0ba902b7 of node-a
}

func TestSampling(t *testing.T) {
	const count = 2000
	for _, part := range []float64{0, 0.25, 1} {
		r := newRig(t, tracing.Options{Sampling: part})
		sampled := 0
		for i := range count {
			// The low half of the ID decides: it is spread evenly.
			if r.request(fmt.Sprintf("00-0000000000000001%016x-00f067aa0ba902b7-00", uint64(i)*(1<<64/count))) {
				sampled++
			}
		}
		r.Expect(sampled).To(BeNumerically("~", part*count, 1))
		r.Expect(r.request("00-4bf92f3577b34da6ffffffffffffffff-00f067aa0ba902b7-01")).To(BeTrue(), "its sender records it")
		if own := r.request("not a traceparent"); part == 0 || part == 1 { // a trace of its own has a random ID
			r.Expect(own).To(Equal(part == 1))
		}
		r.Expect(r.tracer.Shutdown(t.Context())).To(Succeed())
	}
}

func TestAProcessHasTheIDsThatItNames(t *testing.T) {
	r := newRig(t, tracing.Options{Sampling: 0, Node: "n"})
	at := time.Unix(1700000000, 5)
	p := cni.Process{
		Trace: [16]byte{15: 1}, ID: [8]byte{7: 2}, Exchange: [8]byte{7: 3}, Command: "ADD", Exit: 1, Error: "it is full",
		Began: at, Asked: at.Add(1), Answered: at.Add(2), Ended: at.Add(3),
	}
	r.tracer.Process(p)
	r.Expect(r.tracer.Shutdown(t.Context())).To(Succeed())
	all := r.spans()
	r.Expect(all).To(HaveLen(2))
	r.Expect(all[0]).To(And(HaveField("ID", "0000000000000003"), HaveField("Parent", "0000000000000002"), HaveField("Name", "socket"), HaveField("Failed", false)))
	r.Expect(all[1]).To(And(HaveField("ID", "0000000000000002"), HaveField("Parent", ""), HaveField("Failed", true), HaveField("Failure", "it is full")))
	for _, s := range all {
		r.Expect(s.Trace).To(Equal(strings.Repeat("0", 31) + "1"))
	}
	r.Expect([]time.Time{all[1].Began, all[0].Began, all[0].Ended, all[1].Ended}).To(Equal([]time.Time{p.Began, p.Asked, p.Answered, p.Ended}))
}

func TestNoCallWaitsForTheCollector(t *testing.T) {
	r := newRig(t, tracing.Options{Sampling: 1})
	r.collector.Hold()
	for range 20_000 { // more than may wait
		r.request("")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	r.Expect(r.tracer.Shutdown(ctx)).To(MatchError(context.DeadlineExceeded))
	r.Expect(r.spans()).To(BeEmpty())
	r.collector.Release() // the exporter's goroutine ends now
}

func TestAFailureIsLoggedOnceUntilItEnds(t *testing.T) {
	r := newRig(t, tracing.Options{Sampling: 1})
	const lost, again = "the collector does not take spans", "the collector takes spans again"
	for round := range 2 {
		r.collector.Answer(400)
		for range 3 {
			asked := r.collector.Requests()
			r.request("")
			r.Eventually(r.collector.Requests, time.Minute, time.Millisecond).Should(BeNumerically(">", asked))
		}
		r.collector.Answer(0)
		r.Eventually(func() int {
			r.request("")
			return strings.Count(r.log.String(), again)
		}, time.Minute, time.Millisecond).Should(Equal(round + 1))
		r.Expect(strings.Count(r.log.String(), lost)).To(Equal(round + 1))
	}
	r.Expect(r.log.String()).To(ContainSubstring("level=WARN msg=\"" + lost))
	r.Expect(r.tracer.Shutdown(t.Context())).To(Succeed())
}

func TestAnEndpointIsAURL(t *testing.T) {
	g := NewWithT(t)
	for _, bad := range []string{"", "127.0.0.1:4318", "/v1/traces", "http://\x00"} {
		_, err := tracing.New(tracing.Options{Endpoint: bad})
		g.Expect(err).To(MatchError(ContainSubstring("want")), "%q", bad)
	}
}
