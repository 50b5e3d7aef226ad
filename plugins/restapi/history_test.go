// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/restapi"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// deed is an update that a handler of its own does, or fails to.
type deed struct {
	name string
	err  error
	done chan error
}

func (d *deed) GetName() string                    { return d.name }
func (d *deed) String() string                     { return d.name }
func (d *deed) Method() controller.EventMethodType { return controller.Update }
func (d *deed) IsBlocking() bool                   { return true }
func (d *deed) Done(err error)                     { d.done <- err }
func (d *deed) TransactionType() controller.UpdateTransactionType {
	return controller.BestEffortIgnoreErrors
}
func (d *deed) Direction() controller.UpdateDirectionType { return controller.Forward }

type doer struct{}

func (doer) String() string                     { return "doer" }
func (doer) HandlesEvent(controller.Event) bool { return true }
func (doer) Resync(controller.Event, controller.KubeStateData, int, controller.ResyncOperations) error {
	return nil
}
func (doer) Update(ev controller.Event, _ controller.UpdateOperations) (string, error) {
	if d, ok := ev.(*deed); ok {
		return "did " + d.name, d.err
	}
	return "", nil
}
func (doer) Revert(controller.Event) error { return nil }

// history is the API of a real loop that has processed five events: number 0 at
// second 1000, each other ten seconds after the one before. Number 3 has failed.
func history(t *testing.T) http.Handler {
	t.Helper()
	g := NewWithT(t)
	var second atomic.Int64
	second.Store(1000)
	conf := controller.DefaultConfig()
	loop := controller.New(conf, controller.Deps{Handlers: []controller.EventHandler{doer{}}, Now: func() time.Time { return time.Unix(second.Load(), 5).UTC() }})
	c, stop := context.WithCancel(ctx())
	ended := make(chan error, 1)
	go func() { ended <- loop.Run(c) }()
	done := make(chan error, 1)
	g.Expect(loop.PushEvent(&controller.DBResync{OnDone: func(err error) { done <- err }})).To(Succeed())
	g.Expect(<-done).To(Succeed())
	for i := 1; i < 5; i++ {
		second.Add(10)
		d := &deed{name: fmt.Sprintf("deed %d", i), done: done}
		if i == 3 {
			d.err = fmt.Errorf("it went wrong: %w", errInjected)
		}
		g.Expect(loop.PushEvent(d)).To(Succeed())
		<-done
	}
	g.Eventually(func() uint64 { return loop.Status().Processed }, 5*time.Second).Should(BeNumerically("==", 5))
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return newAgent(t).with(func(d *restapi.Deps) { d.Loop = loop })
}

func TestEventHistory(t *testing.T) {
	h := history(t)
	for query, want := range map[string]string{
		"": "0 1 2 3 4", "since=1020": "2 3 4", "until=1010": "0 1", "since=1010&until=1020": "1 2", "since=1011&until=1019": "", "since=5000": "",
		"from=1&to=3": "1 2 3", "from=4&to=99": "4", "from=99&to=100": "", "first=2": "0 1", "first=99": "0 1 2 3 4", "first=0": "", "last=2": "3 4", "last=0": "",
		"since=1020&until=1020&from=0&to=1&first=1&last=1": "2", "from=1&to=2&first=1&last=1": "1 2", "first=1&last=1": "0",
		"since=1020&from=1": "2 3 4", "seq-num=2": "one 2", "seq-num=4&since=1000&from=0&to=1&first=1&last=1": "one 4",
	} {
		t.Run(query, func(t *testing.T) {
			g := NewWithT(t)
			code, body := ask(h, "GET", localapi.PathEventHistory+"?"+query, "")
			g.Expect(code).To(Equal(200), body)
			type numbered struct{ SeqNum uint64 }
			var got string
			if strings.HasPrefix(want, "one") {
				var one numbered
				g.Expect(json.Unmarshal([]byte(body), &one)).To(Succeed())
				got = fmt.Sprint("one ", one.SeqNum)
			} else {
				var all []numbered
				g.Expect(json.Unmarshal([]byte(body), &all)).To(Succeed())
				g.Expect(all).NotTo(BeNil(), "an empty list is not null")
				for _, r := range all {
					got += fmt.Sprint(" ", r.SeqNum)
				}
				got = strings.TrimSpace(got)
			}
			g.Expect(got).To(Equal(want))
		})
	}
}

// What cannot be answered is refused with the argument, its value, and what would be right.
func TestEventHistoryRefuses(t *testing.T) {
	h := history(t)
	for query, want := range map[string][]string{
		"seq-num=-1": {"seq-num", "-1", "0 or more"}, "seq-num=x": {"seq-num", "x", "0 or more"}, "seq-num=": {"seq-num", "0 or more"},
		"seq-num=1&seq-num=2": {"seq-num", "1,2", "once"}, "since=-5": {"since", "-5", "seconds"}, "since=2026-01-01": {"since", "2026-01-01", "seconds"},
		"until=1.5": {"until", "1.5", "seconds"}, "since=1030&until=1010": {"since", "1030", "until=1010"}, "from=1": {"from", "1", "to="}, "to=1": {"to", "1", "from="},
		"from=2&to=1": {"from", "2", "to=1"}, "from=-1&to=1": {"from", "-1", "0 or more"}, "first=-1": {"first", "-1", "0 or more"}, "first=ten": {"first", "ten", "0 or more"},
		"last=-1": {"last", "-1", "0 or more"}, "last=99999999999999999999": {"last", "99999999999999999999", "0 or more"},
		"seqnum=2": {"seqnum=2", "seq-num"}, "last=1&order=desc": {"order=desc", "no such argument", "first, last"}, "first=1&last=x": {"last", "x"}, "first=%zz": {"%zz"}, "first=1;last=1": {"first=1;last=1"},
	} {
		t.Run(query, func(t *testing.T) {
			g := NewWithT(t)
			code, body := ask(h, "GET", localapi.PathEventHistory+"?"+query, "")
			g.Expect(code).To(Equal(http.StatusBadRequest), body)
			for _, part := range want {
				g.Expect(reason(g, body)).To(ContainSubstring(part))
			}
		})
	}
	g := NewWithT(t)
	code, body := ask(h, "GET", localapi.PathEventHistory+"?seq-num=99", "")
	g.Expect(code).To(Equal(http.StatusNotFound))
	g.Expect(reason(g, body)).To(ContainSubstring("99"))
	code, _ = ask(h, "POST", localapi.PathEventHistory, "")
	g.Expect(code).To(Equal(http.StatusMethodNotAllowed))
}

// Errors are texts beside null, methods are numbers, times are RFC 3339, lists are lists.
func TestRecordsInJSON(t *testing.T) {
	g := NewWithT(t)
	_, body := ask(history(t), "GET", localapi.PathEventHistory, "")
	g.Expect(body).NotTo(ContainSubstring("{}"))
	var all []map[string]any
	g.Expect(json.Unmarshal([]byte(body), &all)).To(Succeed())
	g.Expect(all[0]).To(And(HaveKeyWithValue("Method", 0.0), HaveKeyWithValue("Name", "Database Resync"), HaveKeyWithValue("ProcessingStart", "1970-01-01T00:16:40.000000005Z")))
	g.Expect(all[3]).To(And(HaveKeyWithValue("Method", 3.0), HaveKeyWithValue("Error", ContainSubstring("it went wrong: injected")),
		HaveKeyWithValue("Handlers", ConsistOf(And(HaveKeyWithValue("Handler", "doer"), HaveKeyWithValue("ErrorStr", ContainSubstring("it went wrong: injected")))))))
	g.Expect(all[4]).To(And(HaveKeyWithValue("Handlers", ConsistOf(HaveKeyWithValue("Change", "did deed 4"))), Not(HaveKey("Error"))))
}

// The order is the handler's promise, whatever it is given; so is what becomes of errors.
func TestEventHistoryOfAnything(t *testing.T) {
	g := NewWithT(t)
	var err error
	var asked controller.HistoryQuery
	h := newAgent(t).with(func(d *restapi.Deps) {
		d.Loop = loop{query: func(q controller.HistoryQuery) ([]controller.Record, error) {
			asked = q
			return []controller.Record{{SeqNum: 3}, {SeqNum: 1}, {SeqNum: 2}}, err
		}}
	})
	code, body := ask(h, "GET", localapi.PathEventHistory+"?"+url.Values{"last": {"3"}}.Encode(), "")
	g.Expect(code).To(Equal(200))
	g.Expect(body).To(MatchRegexp(`"SeqNum":1,.*"SeqNum":2,.*"SeqNum":3,`))
	g.Expect(*asked.Last).To(Equal(3))
	g.Expect(body).To(ContainSubstring(`"Handlers":[]`))
	err = errInjected
	code, body = ask(h, "GET", localapi.PathEventHistory, "")
	g.Expect(code).To(Equal(http.StatusInternalServerError))
	g.Expect(reason(g, body)).To(Equal("injected"))
}
