// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"fmt"
	"net/url"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// tenEvents is a history of the events 0 to 9. Event n begins at 1000 + 10n, ten
// seconds after the one before it, and takes three and a half.
func tenEvents() *Controller {
	cfg := DefaultConfig()
	cfg.PermanentlyRecordedInitPeriod = 35 * time.Second
	c := New(cfg, Deps{Now: func() time.Time { return time.Unix(1000, 0) }})
	for n := range 10 {
		began := time.Unix(1000+10*int64(n), 500_000_000)
		c.history.add(&Record{SeqNum: uint64(n), ProcessingStart: began, ProcessingEnd: began.Add(3500 * time.Millisecond)})
	}
	return c
}

func TestQueries(t *testing.T) {
	c := tenEvents()
	for args, want := range map[string]string{
		"":                               "[0 1 2 3 4 5 6 7 8 9]",
		"other=x":                        "[0 1 2 3 4 5 6 7 8 9]",
		"seq-num=0":                      "[0]",
		"seq-num=9":                      "[9]",
		"since=1080":                     "[8 9]",
		"since=1084":                     "[8 9]", // 8 ends within this second
		"since=1085":                     "[9]",
		"since=0":                        "[0 1 2 3 4 5 6 7 8 9]",
		"since=9223372036854775807":      "[]",
		"until=1010":                     "[0 1]", // 1 begins within this second
		"until=1009":                     "[0]",
		"until=999":                      "[]",
		"since=1030&until=1050":          "[3 4 5]",
		"since=1033&until=1033":          "[3]", // under way then
		"since=1037&until=1038":          "[]",
		"from=3&to=5":                    "[3 4 5]",
		"from=5&to=5":                    "[5]",
		"from=8&to=18446744073709551615": "[8 9]",
		"from=20&to=30":                  "[]",
		"first=3":                        "[0 1 2]",
		"first=0":                        "[]",
		"first=100":                      "[0 1 2 3 4 5 6 7 8 9]",
		"last=3":                         "[7 8 9]",
		"last=0":                         "[]",
		"last=100":                       "[0 1 2 3 4 5 6 7 8 9]",

		"seq-num=4&since=1080&until=1000&from=1&to=2&first=1&last=1": "[4]",
		"since=1080&from=1&to=2&first=1&last=1":                      "[8 9]",
		"until=1000&from=2&first=1":                                  "[0]",
		"from=1&to=2&first=1&last=1":                                 "[1 2]",
		"first=1&last=2":                                             "[0]",
	} {
		t.Run(args, func(t *testing.T) {
			g := NewWithT(t)
			values, err := url.ParseQuery(args)
			g.Expect(err).NotTo(HaveOccurred())
			q, err := ParseHistoryQuery(values)
			g.Expect(err).NotTo(HaveOccurred())
			rs, err := c.Query(q)
			g.Expect(err).NotTo(HaveOccurred())
			seqs := []uint64{}
			for _, r := range rs {
				seqs = append(seqs, r.SeqNum)
			}
			g.Expect(fmt.Sprint(seqs)).To(Equal(want))
		})
	}
}

func TestBadQueriesSayWhatWouldBeRight(t *testing.T) {
	for args, want := range map[string]QueryError{
		"seq-num=-1":                   {"seq-num", "-1", wantSeq},
		"seq-num=x":                    {"seq-num", "x", wantSeq},
		"seq-num=":                     {"seq-num", "", wantSeq},
		"seq-num=18446744073709551616": {"seq-num", "18446744073709551616", wantSeq},
		"since=-5":                     {"since", "-5", wantSecond},
		"since=1.5":                    {"since", "1.5", wantSecond},
		"until=-5":                     {"until", "-5", wantSecond},
		"until=now":                    {"until", "now", wantSecond},
		"since=10&until=9":             {"since", "10", "it must not be after until=9"},
		"from=-1&to=3":                 {"from", "-1", wantSeq},
		"from=1&to=-3":                 {"to", "-3", wantSeq},
		"from=1":                       {"from", "1", "to=, the last sequence number, is needed with it"},
		"to=1":                         {"to", "1", "from=, the first sequence number, is needed with it"},
		"to=1&last=5":                  {"to", "1", "from=, the first sequence number, is needed with it"},
		"from=5&to=4":                  {"from", "5", "it must not be after to=4"},
		"first=-3":                     {"first", "-3", wantCount},
		"last=-3":                      {"last", "-3", wantCount},
		"last=many":                    {"last", "many", wantCount},
		"seq-num=1&last=-3":            {"last", "-3", wantCount}, // also where it does not count
		"first=1&first=2":              {"first", "1,2", "it must be given once"},
	} {
		t.Run(args, func(t *testing.T) {
			g := NewWithT(t)
			values, err := url.ParseQuery(args)
			g.Expect(err).NotTo(HaveOccurred())
			q, err := ParseHistoryQuery(values)
			var bad *QueryError
			g.Expect(errors.As(err, &bad)).To(BeTrue())
			g.Expect(*bad).To(Equal(want))
			g.Expect(err).To(MatchError(ContainSubstring(want.Argument + "=" + want.Value + ": " + want.Want)))
			g.Expect(q).To(Equal(HistoryQuery{}))
		})
	}
}

func TestAQueryIsCheckedHoweverItWasMade(t *testing.T) {
	g := NewWithT(t)
	minus, from, seq := -1, uint64(3), uint64(10)
	c := tenEvents()
	var bad *QueryError
	_, err := c.Query(HistoryQuery{Last: &minus})
	g.Expect(errors.As(err, &bad)).To(BeTrue())
	_, err = c.Query(HistoryQuery{From: &from})
	g.Expect(errors.As(err, &bad)).To(BeTrue())
	_, err = c.Query(HistoryQuery{SeqNum: &seq})
	g.Expect(err).To(MatchError(ErrNoRecord))
	g.Expect(err).To(MatchError("event history: seq-num=10: no record of this event"))
}

func TestTheHistoryOfALoopIsQueried(t *testing.T) {
	loop(t, nil, func(g Gomega, r *rig) {
		r.sync()
		r.push(&event{name: "x"})
		last := 1
		rs, err := r.Query(HistoryQuery{Last: &last})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(rs).To(HaveLen(1))
		g.Expect(rs[0].Name).To(Equal("x"))
	})
	loop(t, func(c *Config) { c.RecordEventHistory = false }, func(g Gomega, r *rig) {
		r.sync()
		g.Expect(r.Query(HistoryQuery{})).To(BeEmpty())
		_, err := r.Query(HistoryQuery{SeqNum: new(uint64)})
		g.Expect(err).To(MatchError(ErrNoRecord))
	})
}
