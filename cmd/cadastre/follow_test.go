// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/restapi"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// agentRun holds the events of one run of an agent, from 0 on.
type agentRun struct {
	started time.Time

	mu      sync.Mutex
	records []controller.Record
	count   uint64 // also of those that are not recorded any more
	more    chan struct{}
}

func newRun(number int) *agentRun {
	return &agentRun{started: noon().Add(time.Duration(number)), more: make(chan struct{})}
}

// happens adds n events. Their names say of which run they are.
func (r *agentRun) happens(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for range n {
		r.records = append(r.records, controller.Record{SeqNum: r.count, Name: r.started.Format("run 05.000000000"), Method: controller.Update})
		r.count++
	}
	close(r.more)
	r.more = make(chan struct{})
}

// forget drops all records.
func (r *agentRun) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.records = nil
}

func (r *agentRun) Events(seq uint64) ([]controller.Record, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []controller.Record
	for _, rec := range r.records {
		if rec.SeqNum >= seq {
			found = append(found, rec)
		}
	}
	return found, r.more
}

// events returns the events that a follower has to print.
func (r *agentRun) events(from, to int) []string {
	var all []string
	for i := from; i < to; i++ {
		all = append(all, fmt.Sprintf("%s #%d", r.started.Format("run 05.000000000"), i))
	}
	return all
}

// Status implements restapi.Agent.
func (r *agentRun) Status() localapi.Status { return localapi.Status{Started: r.started} }

// Query implements restapi.Loop.
func (r *agentRun) Query(controller.HistoryQuery) ([]controller.Record, error) {
	return nil, errors.New("not used")
}

// serve is the agent's real API on a socket, until stop is called.
func (r *agentRun) serve(t *testing.T, socket string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	listening, ended := make(chan struct{}), make(chan error, 1)
	api := restapi.NewPlugin(restapi.Deps{
		Listen:  restapi.Listen{Socket: socket, Opened: func() { close(listening) }},
		Agent:   r,
		Loop:    r,
		Metrics: prometheus.NewRegistry(),
	})
	go func() { ended <- api.Serve(ctx) }()
	select {
	case <-listening:
	case err := <-ended:
		t.Fatal(err)
	}
	return sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// screen holds the output of a program that still runs.
type screen struct {
	mu sync.Mutex
	bytes.Buffer
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Buffer.Write(p)
}

func (s *screen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.String()
}

// events are the printed ones.
func (s *screen) events() []string {
	var all []string
	for line := range strings.Lines(s.text()) {
		var r record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			return append(all, err.Error()+": "+line)
		}
		all = append(all, fmt.Sprintf("%s #%d", r.Name, r.SeqNum))
	}
	return all
}

// following is "cadastre events -f -o json".
type following struct {
	out, errs screen
	interrupt context.CancelFunc
	code      chan int
	pauses    atomic.Int64
}

func follow(t *testing.T, socket string, args ...string) *following {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	f := &following{interrupt: cancel, code: make(chan int, 1)}
	a := newApp(strings.NewReader(""), &f.out, &f.errs, func(string) string { return "" })
	a.pause = func(ctx context.Context, _ time.Duration) error {
		f.pauses.Add(1)
		return sleep(ctx, time.Millisecond)
	}
	go func() {
		f.code <- a.run(ctx, append([]string{"events", "-f", "-o", "json", "--socket", socket}, args...))
	}()
	t.Cleanup(cancel)
	return f
}

// end interrupts it and returns the exit code.
func (f *following) end() int {
	f.interrupt()
	return <-f.code
}

const soon = 5 * time.Minute

// shortDir is a directory whose name is short enough for a socket.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "cad")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// The API of one and the same run goes and comes back: nothing is lost or repeated.
func TestFollowAcrossReconnects(t *testing.T) {
	g := NewWithT(t)
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	socket := filepath.Join(shortDir(t), "a")
	r := newRun(1)
	r.happens(3)
	stop := r.serve(t, socket)
	f := follow(t, socket)
	for want := 3; want < 12; want += 3 {
		g.Eventually(f.out.events, soon).Should(Equal(r.events(0, want)))
		r.happens(1) // before it goes,
		stop()
		r.happens(1) // while it is away,
		stop = r.serve(t, socket)
		r.happens(1) // and when it is back
	}
	g.Eventually(f.out.events, soon).Should(Equal(r.events(0, 12)))
	g.Expect(f.end()).To(Equal(0))
	stop()
	g.Expect(f.errs.text()).To(ContainSubstring("cadastre: the agent at " + socket + " is gone, waiting for it\ncadastre: the agent is back\n"))
	g.Expect(f.errs.text()).NotTo(Or(ContainSubstring("restarted"), ContainSubstring("recorded")))
	g.Expect(f.out.events()).To(Equal(r.events(0, 12)))
}

// A restarted agent counts from 0 again, and may already be further than the first.
func TestFollowAcrossRestarts(t *testing.T) {
	for name, second := range map[string]int{"behind the first": 2, "as far": 5, "further": 9, "at its beginning": 0} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
			socket := filepath.Join(shortDir(t), "a")
			one, two := newRun(1), newRun(2)
			one.happens(5)
			stop := one.serve(t, socket)
			f := follow(t, socket, "--since", "3")
			g.Eventually(f.out.events, soon).Should(Equal(one.events(3, 5)))
			stop()
			two.happens(second)
			stop = two.serve(t, socket)
			g.Eventually(f.errs.text, soon).Should(HaveSuffix("cadastre: agent restarted: it counts events anew\n"))
			two.happens(1)
			g.Eventually(f.out.events, soon).Should(Equal(append(one.events(3, 5), two.events(0, second+1)...)))
			g.Expect(f.end()).To(Equal(0))
			stop()
			g.Expect(strings.Count(f.errs.text(), "restarted")).To(Equal(1))
		})
	}
}

// What is lost all the same, because the agent does not record it any more, is said.
func TestFollowSaysWhatIsNotRecorded(t *testing.T) {
	g := NewWithT(t)
	socket := filepath.Join(shortDir(t), "a")
	r := newRun(1)
	r.happens(2)
	stop := r.serve(t, socket)
	f := follow(t, socket)
	g.Eventually(f.out.events, soon).Should(HaveLen(2))
	stop()
	r.happens(5)
	r.forget()
	r.happens(1)
	stop = r.serve(t, socket)
	g.Eventually(f.out.events, soon).Should(Equal(append(r.events(0, 2), r.events(7, 8)...)))
	g.Expect(f.end()).To(Equal(0))
	stop()
	g.Expect(f.errs.text()).To(HaveSuffix("cadastre: events #2 to #6 are not recorded any more\n"))
}

// Interrupting ends it at once, also while there is no agent; one that was never
// there is an error.
func TestFollowIsInterrupted(t *testing.T) {
	g := NewWithT(t)
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	socket := filepath.Join(shortDir(t), "a")
	r := newRun(1)
	r.happens(1)
	stop := r.serve(t, socket)
	idle, away := follow(t, socket), follow(t, socket)
	g.Eventually(idle.out.events, soon).Should(HaveLen(1))
	g.Expect(idle.end()).To(Equal(0))
	g.Eventually(away.out.events, soon).Should(HaveLen(1))
	stop()
	g.Eventually(away.pauses.Load, soon).Should(BeNumerically(">", 5))
	g.Expect(away.end()).To(Equal(0))
	g.Expect(idle.errs.text()).To(BeEmpty())
	g.Expect(away.errs.text()).To(Equal("cadastre: the agent at "+socket+" is gone, waiting for it\n"), "it is said once")
	g.Expect(<-follow(t, socket).code).To(Equal(exitNoAgent))
}

// Nor is an agent waited for that has never answered: who knows what that is.
func TestFollowWithoutAnAnswer(t *testing.T) {
	g := NewWithT(t)
	agent := bareAgent(t)
	agent.mux.HandleFunc(localapi.PathEvents, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	f := follow(t, agent.socket)
	g.Eventually(f.code, soon).Should(Receive(Equal(exitFailed)))
	g.Expect(f.errs.text()).To(ContainSubstring("broke off its answer"))
}

// An agent that does not say when it has started is known by its numbers.
func TestFollowWithoutAStart(t *testing.T) {
	g := NewWithT(t)
	agent := bareAgent(t)
	answers := make(chan string, 3)
	answers <- `{"SeqNum":7,"Name":"one"}` + "\n"
	answers <- `{"SeqNum":8,"Name":"one"}` + "\n" + `{"SeqNum":9,"Na` // broken off
	answers <- `{"SeqNum":2,"Name":"two"}` + "\n"
	agent.mux.HandleFunc(localapi.PathEvents, func(w http.ResponseWriter, r *http.Request) {
		select {
		case body := <-answers:
			_, _ = io.WriteString(w, body)
		default:
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}
	})
	f := follow(t, agent.socket)
	g.Eventually(f.out.events, soon).Should(Equal([]string{"one #7", "one #8", "two #2"}))
	g.Expect(f.end()).To(Equal(0))
	g.Expect(f.errs.text()).To(ContainSubstring("agent restarted"))
}

// An answer that is not an event ends it: another try would bring the same.
func TestFollowNonsense(t *testing.T) {
	for _, body := range []string{"nonsense", "[]\n", `{"Name":"Add Pod"}` + "\n", `{"SeqNum":-1}` + "\n"} {
		g := NewWithT(t)
		agent := bareAgent(t)
		agent.text(localapi.PathEvents, 200, body)
		got := call(t, agent.socket, "", "events", "-f")
		g.Expect(got.code).To(Equal(exitFailed), body)
		g.Expect(got.err).To(ContainSubstring("read the agent's answer"), body)
	}
}

// cutter stands between the program and an agent, and cuts each connection
// after some bytes, wherever that is.
func cutter(t *testing.T, socket, behind string, after func() int64) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				to, err := net.Dial("unix", behind)
				if err != nil {
					return
				}
				all.Go(func() { // ends with the caller, or below
					_, _ = io.Copy(to, c)
					to.Close()
				})
				_, _ = io.CopyN(c, to, after())
				to.Close()
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		all.Wait()
	})
}

// Whatever breaks and whenever: what is printed of a run are its events from
// the first one on, each once, and all of them of the last run.
func TestFollowWhateverBreaks(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			g := NewWithT(t)
			random := rand.New(rand.NewPCG(seed, 1))
			dir := shortDir(t)
			socket, behind := filepath.Join(dir, "front"), filepath.Join(dir, "back")
			cuts := rand.New(rand.NewPCG(seed, 2))
			var mu sync.Mutex
			n := int64(1000) // the first time it must get an answer
			cutter(t, socket, behind, func() int64 {
				mu.Lock()
				defer mu.Unlock()
				after := n
				n = cuts.Int64N(4000)
				return after
			})
			runs := []*agentRun{newRun(1)}
			last := runs[0]
			last.happens(1)
			stop := last.serve(t, behind)
			f := follow(t, socket)
			g.Eventually(f.out.events, soon).ShouldNot(BeEmpty())
			for range 30 {
				switch last.happens(random.IntN(20)); random.IntN(5) {
				case 0:
					stop()
					stop = last.serve(t, behind)
				case 1:
					stop()
					last = newRun(len(runs) + 1)
					runs = append(runs, last)
					stop = last.serve(t, behind)
				case 2:
					seen := len(f.out.events())
					last.happens(1)
					g.Eventually(func() int { return len(f.out.events()) }, soon).Should(BeNumerically(">", seen), f.errs.text)
				}
			}
			last.happens(1)
			whole := last.events(0, int(last.count))
			g.Eventually(f.out.events, soon).Should(ContainElement(whole[len(whole)-1]))
			g.Expect(f.end()).To(Equal(0))
			stop()
			printed := f.out.events()
			for _, r := range runs[:len(runs)-1] {
				n := 0
				for n < len(printed) && strings.HasPrefix(printed[n], r.events(0, 1)[0][:len("run 05.000000000")]) {
					n++
				}
				g.Expect(strings.Join(printed[:n], "\n")).To(Equal(strings.Join(r.events(0, n), "\n")))
				printed = printed[n:]
			}
			g.Expect(printed).To(Equal(whole))
		})
	}
}
