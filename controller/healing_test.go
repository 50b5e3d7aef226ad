// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// healings are the times of the healing resyncs after errors, counted from began.
func (r *rig) healings(began time.Time) (at []time.Duration) {
	rs, _ := r.Events(0)
	for _, rec := range rs {
		if strings.HasPrefix(rec.Description, "Healing Resync (after error)") {
			at = append(at, rec.ProcessingStart.Sub(began))
		}
	}
	return at
}

func TestHealingIsTriedLaterAndLaterUpToTheLimit(t *testing.T) {
	for _, x := range []struct {
		first, limit time.Duration
		want         []time.Duration
	}{
		{5 * time.Second, 15 * time.Second, []time.Duration{5, 15, 30, 45}},
		{5 * time.Second, 5 * time.Minute, []time.Duration{5, 15, 35, 75}},
		{5 * time.Second, time.Second, []time.Duration{5, 10, 15, 20}}, // never sooner than the first
		{5 * time.Second, 0, []time.Duration{5, 10, 15, 20}},
	} {
		t.Run(fmt.Sprint(x.first, x.limit), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				r := start(g, func(c *Config) {
					c.DelayAfterErrorHealing, c.HealingBackoffLimit, c.MaxHealingAttempts = x.first, x.limit, len(x.want)
				})
				r.sync()
				began := time.Now()
				r.b.resync = func(ResyncOperations) error { return errors.New("no") }
				r.b.update["fails"] = failing(errors.New("no"))
				r.push(&event{name: "fails"})
				g.Expect(<-r.result).To(MatchError(And(ContainSubstring(fmt.Sprint(len(x.want), " healing resyncs in a row")), ContainSubstring("no"))))
				for i := range x.want {
					x.want[i] *= time.Second
				}
				g.Expect(r.healings(began)).To(Equal(x.want))
			})
		})
	}
}

func TestAHealingThatSucceedsBeginsTheCountAnew(t *testing.T) {
	loop(t, func(c *Config) { c.MaxHealingAttempts = 3 }, func(g Gomega, r *rig) {
		r.sync()
		began := time.Now()
		left := 0
		r.b.resync = func(ResyncOperations) error {
			if left > 0 {
				left--
				return errors.New("no")
			}
			return nil
		}
		r.b.update["fails"] = failing(errors.New("no"))
		for range 2 {
			left = 2
			r.push(&event{name: "fails"})
			r.wait(100 * time.Second)
			g.Expect(r.Status().Healthy).To(BeTrue())
		}
		g.Expect(r.healings(began)).To(Equal([]time.Duration{5 * time.Second, 15 * time.Second, 35 * time.Second, 105 * time.Second, 115 * time.Second, 135 * time.Second}))
	})
}

// A foreign route must not keep pods from their addresses, nor end the agent.
func TestSingleValuesThatFailStopNobody(t *testing.T) {
	loop(t, func(c *Config) { c.MaxHealingAttempts = 3 }, func(g Gomega, r *rig) {
		r.b.resync = func(txn ResyncOperations) error {
			txn.Put("route/10.1.7.0/24", wrapperspb.String("via node 7"))
			return nil
		}
		r.sink.Fault = func(txn Transaction) error {
			return fmt.Errorf("commit: %w", ValueErrors{"route/10.1.7.0/24": errors.New("a foreign route")})
		}
		r.push(&DBResync{Revision: 1})
		r.wait(time.Second)
		g.Expect(r.Status()).To(And(HaveField("Resynced", true), HaveField("Healthy", false), HaveField("LastError", ContainSubstring("a foreign route"))))
		r.push(&event{name: "an update"})
		r.wait(time.Hour)
		g.Expect(r.Status().Fatal).To(BeEmpty())
		rs, _ := r.Events(0)
		g.Expect(rs).To(ContainElement(HaveField("Name", "an update")))
		r.sink.Fault = nil
		r.wait(time.Hour)
		g.Expect(r.Status().Healthy).To(BeTrue())
	})
}

func TestOneHealingIsScheduledAtATime(t *testing.T) {
	loop(t, nil, func(g Gomega, r *rig) {
		r.sync()
		began := time.Now()
		r.b.update["1"], r.b.update["2"] = failing(errors.New("first")), failing(errors.New("second"))
		r.push(&event{name: "1"})
		r.wait(3 * time.Second)
		r.push(&event{name: "2"})
		g.Expect(r.Status().LastError).To(ContainSubstring("second"))
		r.wait(time.Hour)
		g.Expect(r.healings(began)).To(Equal([]time.Duration{5 * time.Second}))
		rs, _ := r.Events(0)
		g.Expect(rs[len(rs)-1].Description).To(And(ContainSubstring("second"), ContainSubstring("attempt: 1")))
	})
}

func TestAResyncBetweenMakesTheHealingUnnecessary(t *testing.T) {
	loop(t, nil, func(g Gomega, r *rig) {
		r.sync()
		began := time.Now()
		r.b.update["fails"] = failing(errors.New("no"))
		r.push(&event{name: "fails"})
		r.push(&ExternalConfigResync{Source: "x"})
		g.Expect(r.Status().Healthy).To(BeTrue())
		r.wait(time.Hour)
		g.Expect(r.healings(began)).To(BeEmpty())
	})
}

func TestWhateverFailsIsHealed(t *testing.T) {
	no := errors.New("no")
	for name, ev := range map[string]Event{
		"update": &event{name: "fails"}, "external change": &ExternalConfigChange{Source: "x"},
		"external resync": &ExternalConfigResync{Source: "x"}, "resync": &DBResync{},
	} {
		for _, where := range []string{"handler", "staged", "sink", "abort"} {
			t.Run(name+" "+where, func(t *testing.T) {
				loop(t, nil, func(g Gomega, r *rig) {
					r.sync()
					began, want := time.Now(), 5*time.Second
					fails := no
					switch where {
					case "staged":
						r.staged.fail, fails = no, nil
					case "sink":
						r.sink.Fault, fails = func(Transaction) error { return no }, nil
						r.a.update[ev.GetName()] = put("k")
					case "abort":
						fails = NewAbortEventError(no)
						if ev.Method() == Update {
							want = 0 // at once: the event was stopped half way
						}
					}
					once := true
					r.b.update[ev.GetName()] = failing(fails)
					r.b.resync = func(ResyncOperations) error {
						if once && ev.Method() != Update {
							once = false
							return fails
						}
						r.staged.fail, r.sink.Fault = nil, nil
						return nil
					}
					if ev.Method() != Update && fails == nil {
						r.b.resync = func(ResyncOperations) error {
							if !once {
								r.staged.fail, r.sink.Fault = nil, nil
							}
							once = false
							return nil
						}
					}
					r.push(ev)
					r.wait(time.Minute)
					g.Expect(r.healings(began)).To(Equal([]time.Duration{want}))
					g.Expect(r.Status().Healthy).To(BeTrue())
				})
			})
		}
	}
}

func TestAPeriodicHealingThatFailsIsFollowedByAFullOne(t *testing.T) {
	loop(t, func(c *Config) { c.EnablePeriodicHealing, c.PeriodicHealingInterval = true, time.Minute }, func(g Gomega, r *rig) {
		r.sync()
		began := time.Now()
		r.sink.Fault = func(Transaction) error { return errors.New("no line") }
		r.wait(61 * time.Second)
		g.Expect(r.Status().LastError).To(ContainSubstring("no line"))
		r.sink.Fault = nil
		r.wait(5 * time.Second)
		g.Expect(r.healings(began)).To(Equal([]time.Duration{65 * time.Second}))
		g.Expect(r.last()).To(Equal("c resync 3"), "the periodic one counts, too")
	})
}

func TestThePeriodOfHealingHasABottom(t *testing.T) {
	loop(t, func(c *Config) { c.EnablePeriodicHealing, c.PeriodicHealingInterval = true, 0 }, func(g Gomega, r *rig) {
		r.sync()
		r.wait(10*time.Second + time.Millisecond)
		g.Expect(r.sink.Commits()).To(Equal(11))
	})
}

func TestTheSinkIsToldHowToRetry(t *testing.T) {
	w := &wire{}
	loopWith(t, func(c *Config) {
		c.EnableRetry, c.DelayRetry, c.MaxRetryAttempts, c.EnableExpBackoffRetry = true, 7*time.Second, 9, true
	}, func(d *Deps) { d.Sink = w }, func(g Gomega, r *rig) {
		r.sync()
		g.Expect(w.txns[0].Retry).To(Equal(Retry{Enabled: true, Delay: 7 * time.Second, MaxAttempts: 9, ExponentialBackoff: true}))
	})
	w = &wire{}
	loopWith(t, func(c *Config) { c.EnableRetry, c.EnableExpBackoffRetry = false, false }, func(d *Deps) { d.Sink = w }, func(g Gomega, r *rig) {
		r.sync()
		g.Expect(w.txns[0].Retry).To(Equal(Retry{Delay: time.Second, MaxAttempts: 3}))
	})
}

func TestWithoutHistoryNothingIsRecordedButObserved(t *testing.T) {
	var seen []Record
	loopWith(t, func(c *Config) { c.RecordEventHistory = false }, func(d *Deps) { d.Observe = func(r *Record) { seen = append(seen, *r) } }, func(g Gomega, r *rig) {
		r.a.update["x"] = func(txn UpdateOperations) error { txn.Put("k", wrapperspb.Bool(true)); return nil }
		r.sync()
		r.push(&event{name: "x"})
		r.push(&event{name: "y"})
		g.Expect(r.Query(HistoryQuery{})).To(BeEmpty())
		g.Expect(seen).To(HaveLen(3))
		g.Expect(seen[1].Handlers).To(HaveLen(3))
		g.Expect(seen[1].Handlers[0].Change).To(Equal("tried"), "the next event has not overwritten it")
		g.Expect(seen[1].Description).To(Equal("x"))
		g.Expect(seen[1].Txn).To(Equal([]string{"put k"}))
	})
}

// TestEveryKeyOfTheConfigurationIsUsed looks for cfg.KEY in the sources.
func TestEveryKeyOfTheConfigurationIsUsed(t *testing.T) {
	g := NewWithT(t)
	used := map[string]bool{}
	files, err := os.ReadDir(".")
	g.Expect(err).NotTo(HaveOccurred())
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") || f.Name() == "config.go" {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), f.Name(), nil, parser.SkipObjectResolution)
		g.Expect(err).NotTo(HaveOccurred())
		ast.Inspect(parsed, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			switch x := sel.X.(type) {
			case *ast.Ident:
				used[sel.Sel.Name] = used[sel.Sel.Name] || x.Name == "cfg"
			case *ast.SelectorExpr:
				used[sel.Sel.Name] = used[sel.Sel.Name] || x.Sel.Name == "cfg"
			}
			return true
		})
	}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Config]()) {
		g.Expect(used[f.Name]).To(BeTrue(), f.Name)
	}
}
