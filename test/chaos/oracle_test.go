// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"
)

// step is a whole request, or, with a book, a restart.
type step struct {
	key     Key
	verb    Verb
	out     Outcome
	begin   bool // only Begin
	book    Book
	waiting []Key
}

func key(id string) Key { return Key{"net", id, "eth0"} }

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func fate(f Fate) Outcome { return Outcome{Fate: f} }

func told(id, a string) step       { return step{key: key(id), verb: Add, out: Told(addr(a))} }
func add(id string, f Fate) step   { return step{key: key(id), verb: Add, out: fate(f)} }
func del(id string, f Fate) step   { return step{key: key(id), verb: Del, out: fate(f)} }
func check(id string, f Fate) step { return step{key: key(id), verb: Check, out: fate(f)} }

// restart is a death of the agent and what the book says after it: "a=10.0.0.1".
func restart(idAddr ...string) step {
	book := Book{}
	for _, s := range idAddr {
		book = append(book, holding{key(s[:1]), addr(s[2:])})
	}
	return step{book: book}
}

// runSteps returns the error of the last step; all earlier ones must succeed.
func runSteps(g *WithT, steps []step) error {
	o := NewOracle()
	var last error
	for i, s := range steps {
		g.Expect(last).NotTo(HaveOccurred(), "before step %d", i)
		switch {
		case s.book != nil:
			o.died()
			last = o.Check(s.book, func(k Key) bool {
				for _, w := range s.waiting {
					if w == k {
						return true
					}
				}
				return false
			})
		case s.begin:
			o.Begin(s.key, s.verb)
		default:
			o.Begin(s.key, s.verb)
			last = o.End(s.key, s.verb, s.out)
		}
	}
	return last
}

func TestOracleAcceptsWhatMayBe(t *testing.T) {
	for name, steps := range map[string][]step{
		"what was told is kept":                               {told("a", "10.0.0.1"), told("b", "10.0.0.2"), restart("a=10.0.0.1", "b=10.0.0.2")},
		"a repeated ADD answers the same":                     {told("a", "10.0.0.1"), told("a", "10.0.0.1")},
		"a DEL frees":                                         {told("a", "10.0.0.1"), del("a", Answered), restart()},
		"a DEL of nothing":                                    {del("a", Answered), restart()},
		"another gets what was freed":                         {told("a", "10.0.0.1"), del("a", Answered), told("b", "10.0.0.1"), restart("b=10.0.0.1")},
		"another gets what is being freed":                    {told("a", "10.0.0.1"), {key: key("a"), verb: Del, begin: true}, told("b", "10.0.0.1")},
		"a lost ADD is done":                                  {add("a", Lost), restart("a=10.0.0.1"), told("a", "10.0.0.1")},
		"a lost ADD is not done":                              {add("a", Lost), restart(), told("a", "10.0.0.7")},
		"a lost DEL is done":                                  {told("a", "10.0.0.1"), del("a", Lost), restart()},
		"a lost DEL is not done":                              {told("a", "10.0.0.1"), del("a", Lost), restart("a=10.0.0.1")},
		"a lost DEL and a lost ADD":                           {told("a", "10.0.0.1"), del("a", Lost), add("a", Lost), restart("a=10.0.0.9")},
		"an abandoned ADD is done after DEL":                  {add("a", Abandoned), del("a", Answered), restart("a=10.0.0.1")},
		"an abandoned ADD is taken back":                      {add("a", Abandoned), restart()},
		"a repeated ADD that was given up":                    {told("a", "10.0.0.1"), add("a", Abandoned), told("a", "10.0.0.1"), restart("a=10.0.0.1")},
		"a repeat that was given up is done after a lost DEL": {told("a", "10.0.0.1"), add("a", Abandoned), del("a", Lost), restart("a=10.0.0.2")},
		"a refused ADD changes nothing":                       {add("a", Refused), restart()},
		"one that was not sent, too":                          {told("a", "10.0.0.1"), del("a", NotSent), restart("a=10.0.0.1")},
		"a DEL waits while the agent is away":                 {told("a", "10.0.0.1"), del("a", Answered), {book: Book{{key("a"), addr("10.0.0.1")}}, waiting: []Key{key("a")}}, restart()},
		"CHECK":                                               {check("a", Refused), told("a", "10.0.0.1"), check("a", Answered), del("a", Answered), check("a", Refused)},
		"CHECK of what is not known":                          {add("a", Lost), check("a", Answered), check("a", Refused)},
		"two families":                                        {{key: key("a"), verb: Add, out: Told(addr("fd00::1"), addr("10.0.0.1"))}, restart("a=fd00::1", "a=10.0.0.1")},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(runSteps(g, steps)).To(Succeed())
		})
	}
}

func TestOracleRejectsWhatMustNotBe(t *testing.T) {
	for name, c := range map[string]struct {
		says  string
		steps []step
	}{
		"a lease is lost":                              {"holds nothing", []step{told("a", "10.0.0.1"), restart()}},
		"a lease moves":                                {"it was told", []step{told("a", "10.0.0.1"), restart("a=10.0.0.2")}},
		"a repeated ADD answers another":               {"but it holds", []step{told("a", "10.0.0.1"), told("a", "10.0.0.2")}},
		"two are told the same":                        {"which net/a/eth0 holds", []step{told("a", "10.0.0.1"), told("b", "10.0.0.1")}},
		"two hold the same":                            {"is held by", []step{add("a", Lost), add("b", Lost), restart("a=10.0.0.1", "b=10.0.0.1")}},
		"told what a restart has shown":                {"which net/a/eth0 holds", []step{add("a", Lost), restart("a=10.0.0.1"), told("b", "10.0.0.1")}},
		"a DEL is forgotten":                           {"given back", []step{told("a", "10.0.0.1"), del("a", Answered), restart("a=10.0.0.1")}},
		"a DEL that waited is forgotten":               {"given back", []step{told("a", "10.0.0.1"), del("a", Answered), {book: Book{{key("a"), addr("10.0.0.1")}}, waiting: []Key{key("a")}}, restart("a=10.0.0.1")}},
		"something without a request":                  {"never asked", []step{restart("a=10.0.0.1")}},
		"held after nothing was done":                  {"given back", []step{add("a", NotSent), restart("a=10.0.0.1")}},
		"held after a refusal":                         {"given back", []step{add("a", Refused), restart("a=10.0.0.1")}},
		"an abandoned repeat frees":                    {"holds nothing", []step{told("a", "10.0.0.1"), add("a", Abandoned), restart()}},
		"a dead agent does a repeat that was given up": {"it was told", []step{told("a", "10.0.0.1"), add("a", Abandoned), restart("a=10.0.0.1"), del("a", Lost), restart("a=10.0.0.2")}},
		"a lost DEL brings another address":            {"it was told", []step{told("a", "10.0.0.1"), del("a", Lost), restart("a=10.0.0.2")}},
		"a dead agent does what was abandoned":         {"given back", []step{add("a", Abandoned), restart(), restart("a=10.0.0.1")}},
		"a held one is refused":                        {"was refused", []step{told("a", "10.0.0.1"), add("a", Refused)}},
		"CHECK does not see it":                        {"was refused", []step{told("a", "10.0.0.1"), check("a", Refused)}},
		"CHECK sees a ghost":                           {"holds nothing", []step{told("a", "10.0.0.1"), del("a", Answered), check("a", Answered)}},
		"one family is lost":                           {"it was told", []step{{key: key("a"), verb: Add, out: Told(addr("fd00::1"), addr("10.0.0.1"))}, restart("a=10.0.0.1")}},
		"a checked lease vanishes":                     {"holds nothing", []step{add("a", Lost), restart("a=10.0.0.1"), restart()}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(runSteps(g, c.steps)).To(MatchError(ContainSubstring(c.says)))
		})
	}
}

func TestCertainLeasesAreStillHeld(t *testing.T) {
	book := Book{{key("a"), addr("10.1.1.2")}}
	for _, c := range []struct {
		name  string
		steps []step
		want  Book
	}{
		{"answered", []step{told("a", "10.1.1.2")}, book},
		{"released", []step{told("a", "10.1.1.2"), del("a", Answered)}, nil},
		{"a lost DEL", []step{told("a", "10.1.1.2"), del("a", Lost)}, nil},
		{"another address since", []step{told("a", "10.1.1.2"), del("a", Answered), told("a", "10.1.2.2")}, nil},
		{"unknown", nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			o := NewOracle()
			for _, s := range c.steps {
				o.Begin(s.key, s.verb)
				g.Expect(o.End(s.key, s.verb, s.out)).To(Succeed())
			}
			g.Expect(o.Certain(book)).To(Equal(c.want))
			o.Begin(key("a"), Del)
			g.Expect(o.Certain(book)).To(BeEmpty(), "a DEL under way may free it")
		})
	}
}
