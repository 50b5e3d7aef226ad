// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package apistoretest

// Fault is what happens to one request; the zero Fault is nothing.
type Fault struct {
	kind fault
	hold <-chan struct{}
}

type fault int

const (
	fail fault = iota + 1
	tear
	drop
	hold
	refuse
)

// Fail answers with an internal error, and nothing is done.
func Fail() Fault { return Fault{kind: fail} }

// Tear does what was asked and answers with an internal error.
func Tear() Fault { return Fault{kind: tear} }

// Drop does what was asked and breaks the connection.
func Drop() Fault { return Fault{kind: drop} }

// Refuse answers as a ValidatingAdmissionPolicy that denies the request, and
// nothing is done.
func Refuse() Fault { return Fault{kind: refuse} }

// Hold waits until release is closed before it does what was asked; it does so
// too where nobody waits for the answer any more.
func Hold(release <-chan struct{}) Fault { return Fault{kind: hold, hold: release} }

// Plan chooses the fault of the n-th request (the first is 1). What is asked is
// "get", "list", "watch", "create", "update", "patch" or "delete". It is never
// called twice at the same time.
type Plan func(verb, resource string, n int) Fault

// On is a plan with one fault, for the k-th request of a verb.
func On(verb string, k int, f Fault) Plan {
	seen := 0
	return func(asked, _ string, _ int) Fault {
		if asked != verb {
			return Fault{}
		}
		if seen++; seen == k {
			return f
		}
		return Fault{}
	}
}

// Always is a plan with a fault for every request of a verb.
func Always(verb string, f Fault) Plan {
	return func(asked, _ string, _ int) Fault {
		if asked == verb {
			return f
		}
		return Fault{}
	}
}

// Plan replaces all plans and counts from one again.
func (s *Server) Plan(plans ...Plan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plans, s.count = plans, 0
}

// Count is the number of requests since Plan.
func (s *Server) Count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count
}

// choose counts a request, and tells its fault; down: it is not answered.
func (s *Server) choose(verb, resource string) (f Fault, down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	for _, plan := range s.plans { // all are asked: they may be counting
		if g := plan(verb, resource, s.count); f.kind == 0 {
			f = g
		}
	}
	return f, s.down || s.closed
}
