// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package apistoretest

// Fault is the fault of one request; the zero Fault is none.
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

// Fail answers with an internal error and does nothing.
func Fail() Fault { return Fault{kind: fail} }

// Tear executes the request and answers with an internal error.
func Tear() Fault { return Fault{kind: tear} }

// Drop executes the request and breaks the connection.
func Drop() Fault { return Fault{kind: drop} }

// Refuse answers like a ValidatingAdmissionPolicy that denies the request, and does
// nothing.
func Refuse() Fault { return Fault{kind: refuse} }

// Hold executes the request when release is closed, also if its client has gone.
func Hold(release <-chan struct{}) Fault { return Fault{kind: hold, hold: release} }

// Plan returns the fault of the n-th request (the first is 1). The verb is "get",
// "list", "watch", "create", "update", "patch" or "delete". Calls do not overlap.
type Plan func(verb, resource string, n int) Fault

// On returns a plan with one fault, for the k-th request of a verb.
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

// Always returns a plan with a fault for every request of a verb.
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

// Count returns the number of requests since Plan.
func (s *Server) Count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count
}

// choose counts a request and returns its fault; down: the request gets no answer.
func (s *Server) choose(verb, resource string) (f Fault, down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	for _, plan := range s.plans { // each is called: it may count
		if g := plan(verb, resource, s.count); f.kind == 0 {
			f = g
		}
	}
	return f, s.down || s.closed
}
