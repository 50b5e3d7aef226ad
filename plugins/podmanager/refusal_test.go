// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package podmanager_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/logbuffer"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/podmanager"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// reporting is an agent whose reports the test reads.
type reporting struct {
	*agent
	text     logbuffer.Buffer
	refusals []podmanager.Refusal
	clock    time.Time
}

func newReporting(t *testing.T, conf string) *reporting {
	r := &reporting{agent: newAgent(t, conf), clock: time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)}
	r.Log = slog.New(slog.NewTextHandler(&r.text, nil))
	r.Now = func() time.Time { return r.clock }
	r.Refused = func(x podmanager.Refusal) { r.refusals = append(r.refusals, x) }
	return r
}

// refuse sends the ADD of a pod from a new sandbox, as the kubelet does, and returns its
// refusal.
func (r *reporting) refuse(pod, uid, sandbox string) string {
	req := request("ADD", sandbox)
	req.Pod = cni.Pod{Namespace: "ns", Name: pod, UID: uid}
	_, err := r.serve(req)
	r.g.Expect(err).To(HaveOccurred())
	return err.Error()
}

func (r *reporting) lines() int { return strings.Count(r.text.String(), "CNI request refused") }

func (r *reporting) fill() {
	for i := range 4 {
		r.add(fmt.Sprint("filler-", i))
	}
}

// The kubelet retries a refused pod every few seconds, each time with another sandbox.
func TestARefusedPodIsReportedOnceInTenMinutes(t *testing.T) {
	r := newReporting(t, small)
	g := r.g
	r.fill()
	first := r.refuse("web", "u1", "s-0")
	for i := range 100 {
		r.clock = r.clock.Add(5 * time.Second)
		r.refuse("web", "u1", fmt.Sprint("s-", i))
	}
	g.Expect(r.refusals).To(Equal([]podmanager.Refusal{{
		Pod: pod("web"), UID: "u1", Reason: podmanager.NoAddress, Text: first, At: r.clock.Add(-500 * time.Second), Total: 1,
	}}))
	g.Expect(r.lines()).To(Equal(1))

	r.clock = r.clock.Add(podmanager.RefusalPeriod)
	r.refuse("web", "u1", "s")
	g.Expect(r.refusals).To(HaveLen(2))
	g.Expect(r.refusals[1].Total).To(Equal(102))
	g.Expect(r.lines()).To(Equal(2))
	g.Expect(r.text.String()).To(ContainSubstring("repetitions=100"))

	r.clock = r.clock.Add(-time.Hour)
	r.refuse("web", "u1", "s")
	g.Expect(r.refusals).To(HaveLen(3), "a clock that was set back does not silence the agent for an hour")
}

func TestEachPodAndReasonIsReported(t *testing.T) {
	r := newReporting(t, small)
	g := r.g
	r.fill()
	r.refuse("web", "u1", "s1")
	r.refuse("web", "u2", "s2") // a StatefulSet creates a pod again under its name
	r.refuse("db", "", "s3")
	r.refuse("db", "", "s4")
	wanted := request("ADD", "s5")
	wanted.Pod, wanted.Wanted = cni.Pod{Namespace: "ns", Name: "db"}, []string{"10.1.0.42"}
	_, err := r.serve(wanted)
	g.Expect(err).To(HaveOccurred())
	unnamed := request("ADD", "s6")
	unnamed.Pod = cni.Pod{}
	_, err = r.serve(unnamed)
	g.Expect(err).To(HaveOccurred())

	var got []string
	for _, x := range r.refusals {
		got = append(got, fmt.Sprint(x.Pod.Name, " ", x.UID, " ", x.Reason))
	}
	g.Expect(got).To(Equal([]string{"web u1 NoAddress", "web u2 NoAddress", "db  NoAddress", "db  AddressRefused"}))
	g.Expect(r.lines()).To(Equal(5), "a container without a pod is in the log only")
}

// The end of an ADD with its own DEL or its caller does not concern the pod.
func TestACancelledAddIsNotReportedOnThePod(t *testing.T) {
	r := newReporting(t, plain)
	r.loop.full = true
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := r.Serve(ctx, request("ADD", "c1"))
	r.g.Expect(err).To(HaveOccurred())
	r.g.Expect(r.refusals).To(BeEmpty())
	r.g.Expect(r.lines()).To(Equal(1))
}

func TestTheSentenceOfExplainIsTheCNIError(t *testing.T) {
	r := newReporting(t, small)
	g := r.g
	r.fill()
	const sentence = "no address: pool default is full (4 of 4 are held)"
	r.Explain = func(req cni.Request, err error) string {
		if req.Pod.Name == "db" || !errors.Is(err, ledger.ErrExhausted) {
			return ""
		}
		return sentence
	}
	g.Expect(r.refuse("web", "u1", "s1")).To(Equal(sentence))
	g.Expect(r.refusals[0].Text).To(Equal(sentence))
	g.Expect(r.text.String()).To(ContainSubstring(sentence))
	g.Expect(r.refuse("db", "u2", "s2")).To(ContainSubstring("no IP address is free"), "a failure without a sentence keeps its own text")
}

// The memory of refusals is bounded: pods under new names do not fill it.
func TestManyRefusedPods(t *testing.T) {
	r := newReporting(t, small)
	r.fill()
	for i := range 3000 {
		r.clock = r.clock.Add(time.Millisecond)
		r.refuse("web", fmt.Sprint("u", i), fmt.Sprint("s", i))
	}
	r.g.Expect(r.refusals).To(HaveLen(3000))
	r.refuse("web", "u2999", "s")
	r.g.Expect(r.refusals).To(HaveLen(3000), "the newest is known")
	r.refuse("web", "u0", "s")
	r.g.Expect(r.refusals).To(HaveLen(3001), "the oldest was forgotten")
}
