// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"bytes"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func verifying(c *Config) { c.EnableVerification = true }

// verifications are the records of that event.
func (r *rig) verifications() []Record {
	rs, _ := r.Events(0)
	return slices.DeleteFunc(rs, func(r Record) bool { return r.Name != "Verification Resync" })
}

// names are those of all events that were processed.
func (r *rig) names() string {
	rs, _ := r.Events(0)
	var all []string
	for _, r := range rs {
		all = append(all, r.Name)
	}
	return strings.Join(all, ", ")
}

func TestVerificationIsOffByDefault(t *testing.T) {
	loop(t, nil, func(g Gomega, r *rig) {
		r.sync()
		r.push(&event{name: "x"})
		g.Expect(r.names()).To(Equal("Database Resync, x"))
	})
}

func TestEveryCleanEventIsVerified(t *testing.T) {
	loop(t, verifying, func(g Gomega, r *rig) {
		state := values{}
		r.a.resync = func(txn ResyncOperations) error {
			for k, m := range state {
				txn.Put(k, m)
			}
			return nil
		}
		r.a.update["x"] = func(txn UpdateOperations) error {
			state["k"] = wrapperspb.String("1")
			txn.Put("k", wrapperspb.String("1"))
			return nil
		}
		r.sync()
		r.push(&event{name: "x"})
		r.push(&ExternalConfigChange{Source: "s", Values: values{"k": wrapperspb.String("2")}})
		g.Expect(r.names()).To(Equal("Database Resync, Verification Resync, x, Verification Resync, External Config Change, Verification Resync"))
		for i, v := range r.verifications() {
			g.Expect(v.Verification).To(BeEmpty())
			g.Expect(v.Method).To(Equal(UpstreamResync))
			g.Expect(v.IsFollowUp).To(BeTrue())
			g.Expect(v.FollowUpTo).To(BeNumerically("==", 2*i))
			g.Expect(v.Txn).To(BeEmpty(), "what changes nothing is not sent")
		}
		g.Expect(r.Status().VerificationFailures).To(BeZero())
		g.Expect(r.sink.Commits()).To(Equal(3))
	})
}

func TestVerificationFindsUpdateThatDisagreesWithResync(t *testing.T) {
	var text bytes.Buffer
	loopWith(t, verifying, func(d *Deps) { d.Log = slog.New(slog.NewTextHandler(&text, nil)) }, func(g Gomega, r *rig) {
		long := strings.Repeat("long", 1000)
		full := false
		r.a.resync = func(txn ResyncOperations) error {
			if full {
				txn.Put("added", wrapperspb.String("by resync"))
				txn.Put("changed", wrapperspb.String(long))
				txn.Put("same", wrapperspb.Bool(true))
			}
			return nil
		}
		r.a.update["x"] = func(txn UpdateOperations) error {
			full = true
			txn.Put("changed", wrapperspb.Bool(true))
			txn.Put("removed", wrapperspb.String("by update"))
			txn.Put("same", wrapperspb.Bool(true))
			return nil
		}
		r.sync()
		x := &event{name: "x"}
		r.push(x)
		g.Expect(x.done()).To(Equal([]error{nil}), "the event itself has not failed")
		v := r.verifications()[1]
		g.Expect(v.Verification).To(HaveLen(3))
		g.Expect(v.Verification[0]).To(MatchRegexp(`^added added: StringValue\{value: *"by resync"\}$`))
		g.Expect(v.Verification[1]).To(And(HavePrefix("changed changed: from BoolValue{value:"), ContainSubstring("} to StringValue{value:"), HaveSuffix("..."), HaveLen(len(v.Verification[1]))))
		g.Expect(len(v.Verification[1])).To(BeNumerically("<", 500))
		g.Expect(v.Verification[2]).To(HavePrefix(`removed removed: StringValue{value:`))
		g.Expect(v.Error).To(BeEmpty(), "it has done its work")
		g.Expect(v.Txn).To(Equal([]string{"put added", "put changed", "put same"}))
		g.Expect(text.String()).To(And(ContainSubstring("level=ERROR"), ContainSubstring("after=2")))
		g.Expect(r.Status().VerificationFailures).To(BeNumerically("==", 1))
		g.Expect(r.wanted.messages()).To(And(HaveLen(3), HaveKey("added")), "what it has found is applied")
		g.Expect(r.sink.dumped()).To(And(HaveLen(3), HaveKey("added")))
		r.push(&event{name: "y"})
		g.Expect(r.verifications()[2].Verification).To(BeEmpty(), "and found once")
		g.Expect(r.Status().VerificationFailures).To(BeNumerically("==", 1))
	})
}

// staging is a committer that says what is staged.
type staging struct {
	staged
	texts []string
	wild  bool
}

func (s *staging) Staged() []string {
	if s.wild {
		panic("staged")
	}
	return s.texts
}

func TestWhatAVerificationStagesIsFoundAndCommitted(t *testing.T) {
	s := &staging{}
	loopWith(t, verifying, func(d *Deps) { d.Committers = []Committer{&staged{}, s} }, func(g Gomega, r *rig) {
		r.sync()
		r.b.resync = func(ResyncOperations) error { s.texts = []string{"lease 10.1.1.2"}; return nil }
		commits := s.commits
		r.push(&event{name: "x"})
		g.Expect(r.verifications()[1].Verification).To(Equal([]string{"staged: lease 10.1.1.2"}))
		g.Expect(s.commits).To(Equal(commits+2), "of the event and of the verification")
		g.Expect(s.undos).To(BeZero())
		g.Expect(r.Status().VerificationFailures).To(BeNumerically("==", 1))
		s.wild = true
		r.push(&event{name: "y"})
		g.Expect(r.verifications()[2].Verification).To(ConsistOf(HavePrefix("staged: panic: staged")))
	})
}

func TestAVerificationWaitsForTheLastFollowUp(t *testing.T) {
	loop(t, verifying, func(g Gomega, r *rig) {
		r.sync()
		r.a.update["x"] = func(txn UpdateOperations) error {
			g.Expect(txn.FollowUp(&event{name: "f"})).To(Succeed())
			return txn.FollowUp(&event{name: "g"})
		}
		r.a.update["f"] = func(txn UpdateOperations) error { return txn.FollowUp(&event{name: "h"}) }
		gate := make(chan struct{})
		r.a.update["gate"] = func(UpdateOperations) error { <-gate; return nil }
		r.push(&event{name: "gate"})
		r.push(&event{name: "x"})
		r.push(&event{name: "y"})
		close(gate)
		synctest.Wait()
		g.Expect(r.names()).To(Equal("Database Resync, Verification Resync, gate, Verification Resync, x, f, g, h, Verification Resync, y, Verification Resync"))
		g.Expect(r.verifications()[2].FollowUpTo).To(BeNumerically("==", 7), "h")
	})
}

func TestFollowUpsOfAVerificationAreFoundAndProcessedButNotVerified(t *testing.T) {
	loop(t, verifying, func(g Gomega, r *rig) {
		r.a.resync = func(txn ResyncOperations) error { return txn.FollowUp(&event{name: "f"}) }
		r.a.update["f"] = func(txn UpdateOperations) error { return txn.FollowUp(&event{name: "g"}) }
		r.push(&DBResync{})
		g.Expect(r.names()).To(Equal("Database Resync, f, g, Verification Resync, f, g"), "or it would never end")
		g.Expect(r.verifications()[0].Verification).To(Equal([]string{"follow-up: f"}))
		g.Expect(r.Status().VerificationFailures).To(BeNumerically("==", 1))
		r.push(&event{name: "x"})
		g.Expect(r.names()).To(HaveSuffix(", x, Verification Resync, f, g"))
	})
}

func TestWhatIsNotVerified(t *testing.T) {
	loop(t, func(c *Config) { c.EnableVerification, c.EnablePeriodicHealing = true, true }, func(g Gomega, r *rig) {
		r.push(&DBResync{Revision: 7})
		verified := len(r.verifications())
		r.b.update["fails"] = failing(errors.New("no"))
		r.push(&event{name: "fails", txn: BestEffortIgnoreErrors})
		r.push(&event{name: "fails", txn: RevertOnFailure})
		late := &event{name: "late", deadline: time.Now().Add(-time.Second)}
		r.push(expiring{late})
		r.push(&KubeStateChange{Resource: "pod", Key: "k", Revision: 7, New: wrapperspb.Bool(true)})
		r.push(&event{name: "fails"})
		r.wait(6 * time.Second) // heals
		r.wait(time.Minute)     // periodic healing
		g.Expect(r.names()).To(HaveSuffix(", fails, fails, late, Kubernetes State Change, fails, Healing Resync, Healing Resync, Healing Resync"))
		g.Expect(r.verifications()).To(HaveLen(verified))
		r.push(&event{name: "x"})
		g.Expect(r.verifications()).To(HaveLen(verified + 1))
		r.stop()
		g.Expect(r.names()).To(HaveSuffix(", Verification Resync, Shutdown"))
		r.result <- nil // for the rig, which stops it again
	})
}

func TestNoVerificationWhileHealingIsDue(t *testing.T) {
	loop(t, verifying, func(g Gomega, r *rig) {
		r.sync()
		r.a.update["x"] = func(txn UpdateOperations) error { return txn.FollowUp(&event{name: "fails"}) }
		r.b.update["fails"] = failing(errors.New("no"))
		verified := len(r.verifications())
		r.push(&event{name: "x"})
		r.push(&event{name: "y"})
		g.Expect(r.verifications()).To(HaveLen(verified), "what is wrong is known")
		r.wait(6 * time.Second)
		g.Expect(r.Status().Healthy).To(BeTrue())
		r.push(expiring{&event{name: "late", deadline: time.Now().Add(-time.Second)}})
		g.Expect(r.verifications()).To(HaveLen(verified), "nor after the healing")
		r.push(&event{name: "y"})
		g.Expect(r.verifications()).To(HaveLen(verified + 1))
	})
}

func TestWhatAnIgnoredErrorHasLeftIsNoFinding(t *testing.T) {
	loop(t, verifying, func(g Gomega, r *rig) {
		r.sync()
		r.a.update["x"] = func(txn UpdateOperations) error {
			return txn.FollowUp(&event{name: "fails", txn: BestEffortIgnoreErrors})
		}
		r.b.update["fails"] = failing(errors.New("no"))
		verified := len(r.verifications())
		r.push(&event{name: "x"})
		g.Expect(r.verifications()).To(HaveLen(verified))
	})
}

func TestALoopThatIsStoppedVerifiesNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		r := start(g, verifying)
		r.sync()
		r.a.update["x"] = func(UpdateOperations) error { r.cancel(); return nil }
		r.push(&event{name: "x"})
		g.Expect(<-r.result).To(Succeed())
		g.Expect(r.names()).To(HaveSuffix(", x, Shutdown"))
	})
}

func TestARevertedFollowUpDoesNotHideTheEventBeforeIt(t *testing.T) {
	loop(t, verifying, func(g Gomega, r *rig) {
		r.sync()
		r.a.update["x"] = func(txn UpdateOperations) error {
			txn.Put("k", wrapperspb.Bool(true)) // which its resync does not
			return txn.FollowUp(&event{name: "fails", txn: RevertOnFailure})
		}
		r.b.update["fails"] = failing(errors.New("no"))
		r.push(&event{name: "x"})
		g.Expect(r.Status().VerificationFailures).To(BeNumerically("==", 1))
	})
}

func TestAVerificationThatFailsIsFoundAndHealed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		r := start(g, func(c *Config) { c.EnableVerification, c.MaxHealingAttempts = true, 2 })
		r.sync()
		commits, sent := r.staged.commits, r.sink.Commits()
		r.b.resync = func(ResyncOperations) error { return errors.New("no\nwith details") }
		began := time.Now()
		r.push(&event{name: "x"})
		g.Expect(r.verifications()[1].Verification).To(Equal([]string{"failed: b: Verification Resync: no\nwith details"}))
		g.Expect(r.Status().VerificationFailures).To(BeNumerically("==", 1))
		g.Expect(r.staged.commits).To(Equal(commits+1), "half a resync is none")
		g.Expect(r.sink.Commits()).To(Equal(sent))
		g.Expect(r.Status().Healthy).To(BeFalse())
		g.Expect(<-r.result).To(MatchError(ContainSubstring("2 healing resyncs in a row have failed")))
		g.Expect(time.Since(began)).To(Equal(15 * time.Second))
	})
}

func TestTheSouthboundFailureOfAVerificationIsHealed(t *testing.T) {
	loop(t, verifying, func(g Gomega, r *rig) {
		r.sync()
		r.a.resync = func(txn ResyncOperations) error { txn.Put("k", wrapperspb.Bool(true)); return nil }
		r.sink.Fault = func(Transaction) error { return errors.New("no line") }
		r.push(&event{name: "x"})
		g.Expect(r.Status().Healthy).To(BeFalse())
		r.sink.Fault = nil
		r.wait(6 * time.Second)
		g.Expect(r.Status().Healthy).To(BeTrue())
		g.Expect(r.sink.dumped()).To(HaveKey("k"))
	})
}
