// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// HistoryQuery selects records of the history. What is nil does not select. If
// several are given, the first of these counts: SeqNum; Since and Until; From
// and To; First; Last. Without any all records are selected.
type HistoryQuery struct {
	SeqNum       *uint64
	Since, Until *int64  // processed at any time within these seconds (Unix), both inclusive; either alone will do
	From, To     *uint64 // sequence numbers, both inclusive; both are needed
	First, Last  *int    // so many, the oldest or the newest
}

// What the arguments have to be.
const (
	wantSeq    = "a sequence number is needed, 0 or more"
	wantSecond = "a time in whole seconds since 1970 is needed, 0 or more"
	wantCount  = "a number of events is needed, 0 or more"
)

// QueryError is a query that cannot be answered.
type QueryError struct {
	Argument string
	Value    string
	Want     string // what would be right
}

func (e *QueryError) Error() string {
	return fmt.Sprintf("event history: %s=%s: %s", e.Argument, e.Value, e.Want)
}

// ParseHistoryQuery reads the arguments seq-num, since, until, from, to, first and last.
// It knows no others, and does not look at them.
func ParseHistoryQuery(args url.Values) (HistoryQuery, error) {
	var q HistoryQuery
	err := cmp.Or(
		argument(args, "seq-num", wantSeq, &q.SeqNum, parseSeq),
		argument(
			args,
			"since",
			wantSecond,
			&q.Since,
			parseSecond,
		),
		argument(args, "until", wantSecond, &q.Until, parseSecond),
		argument(args, "from", wantSeq, &q.From, parseSeq),
		argument(args, "to", wantSeq, &q.To, parseSeq),
		argument(
			args,
			"first",
			wantCount,
			&q.First,
			strconv.Atoi,
		),
		argument(args, "last", wantCount, &q.Last, strconv.Atoi),
	)
	if err == nil {
		err = q.check()
	}
	if err != nil {
		return HistoryQuery{}, err
	}
	return q, nil
}

func argument[T any](args url.Values, name, want string, into **T, parse func(string) (T, error)) error {
	given := args[name]
	switch len(given) {
	case 0:
		return nil
	case 1:
	default:
		return &QueryError{name, strings.Join(given, ","), "it must be given once"}
	}
	n, err := parse(given[0])
	if err != nil {
		return &QueryError{name, given[0], want}
	}
	*into = &n
	return nil
}

func parseSeq(s string) (uint64, error) { return strconv.ParseUint(s, 10, 64) }

func parseSecond(s string) (int64, error) { return strconv.ParseInt(s, 10, 64) }

// check finds numbers that are wrong wherever they are, and contradictions in
// what counts.
func (q HistoryQuery) check() error {
	err := cmp.Or(
		notNegative("since", wantSecond, q.Since), notNegative("until", wantSecond, q.Until),
		notNegative("first", wantCount, q.First), notNegative("last", wantCount, q.Last),
	)
	switch {
	case err != nil:
		return err
	case q.SeqNum != nil:
	case q.Since != nil || q.Until != nil:
		if q.Since != nil && q.Until != nil && *q.Since > *q.Until {
			return &QueryError{"since", fmt.Sprint(*q.Since), fmt.Sprintf("it must not be after until=%d", *q.Until)}
		}
	case q.From != nil && q.To == nil:
		return &QueryError{"from", fmt.Sprint(*q.From), "to=, the last sequence number, is needed with it"}
	case q.From == nil && q.To != nil:
		return &QueryError{"to", fmt.Sprint(*q.To), "from=, the first sequence number, is needed with it"}
	case q.From != nil && *q.From > *q.To:
		return &QueryError{"from", fmt.Sprint(*q.From), fmt.Sprintf("it must not be after to=%d", *q.To)}
	}
	return nil
}

func notNegative[T int | int64](name, want string, n *T) error {
	if n != nil && *n < 0 {
		return &QueryError{name, fmt.Sprint(*n), want}
	}
	return nil
}

// selects reports whether a record is among those that the query is about. First and
// last are not its matter.
func (q HistoryQuery) selects(r *Record) bool {
	switch {
	case q.SeqNum != nil:
		return r.SeqNum == *q.SeqNum
	case q.Since != nil || q.Until != nil:
		return (q.Since == nil || r.ProcessingEnd.Unix() >= *q.Since) &&
			(q.Until == nil || r.ProcessingStart.Unix() <= *q.Until)
	case q.From != nil:
		return *q.From <= r.SeqNum && r.SeqNum <= *q.To
	}
	return true
}

// Query are the records of the history that q selects, in order. A SeqNum that
// the history does not have is ErrNoRecord; a bad query is a QueryError.
func (c *Controller) Query(q HistoryQuery) ([]Record, error) {
	if err := q.check(); err != nil {
		return nil, err
	}
	c.history.mu.Lock()
	rs := c.history.filter(q.selects)
	c.history.mu.Unlock()
	switch {
	case q.SeqNum != nil:
		if len(rs) == 0 {
			return nil, fmt.Errorf("event history: seq-num=%d: %w", *q.SeqNum, ErrNoRecord)
		}
	case q.Since != nil || q.Until != nil || q.From != nil:
	case q.First != nil:
		rs = rs[:min(*q.First, len(rs))]
	case q.Last != nil:
		rs = rs[max(0, len(rs)-*q.Last):]
	}
	return rs, nil
}
