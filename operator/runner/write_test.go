// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package runner_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/operator/runner"
)

var (
	errConflict = errors.New("conflict")
	errOther    = errors.New("other")
)

func TestWrite(t *testing.T) {
	for _, c := range []struct {
		name  string
		sends []error // result of each Send
		reads []error // result of each Read
		fence []error // result of each call of the fence
		from  int     // the version that the caller has
		retry func(error) bool
		want  int
		err   error
		calls string
	}{
		{name: "done from the start", from: 9, want: 9, calls: ""},
		{name: "first attempt", sends: []error{nil}, from: 1, want: 101, calls: "fence send1 "},
		{name: "a failed write is read back", sends: []error{errOther, nil}, from: 1, want: 102, calls: "fence send1 read fence send2 "},
		{name: "applied all the same", sends: []error{errOther}, from: 8, want: 9, calls: "fence send8 read "},
		{
			name: "the last attempt is read back", sends: []error{errOther, errOther, errOther}, from: 1, want: 4, err: errOther,
			calls: "fence send1 read fence send2 read fence send3 read ",
		},
		{name: "cannot be read back", sends: []error{errOther}, reads: []error{errConflict}, from: 1, want: 1, err: errConflict, calls: "fence send1 read "},
		{name: "deposed", fence: []error{runner.ErrDeposed}, from: 1, want: 1, err: runner.ErrDeposed, calls: "fence "},
		{name: "deposed after a conflict", sends: []error{errOther}, fence: []error{nil, runner.ErrDeposed}, from: 1, want: 2, err: runner.ErrDeposed, calls: "fence send1 read fence "},
		{name: "an error without retry", sends: []error{errOther}, retry: isConflict, from: 1, want: 1, err: errOther, calls: "fence send1 "},
		{
			name: "an error with retry", sends: []error{errConflict, errConflict, errConflict}, retry: isConflict, from: 1, want: 3, err: errConflict,
			calls: "fence send1 read fence send2 read fence send3 ",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, calls, version := NewWithT(t), "", c.from
			next := func(results *[]error) (err error) {
				if len(*results) > 0 {
					err, *results = (*results)[0], (*results)[1:]
				}
				return err
			}
			got, err := runner.Write[int]{
				Fence: func(context.Context) error { calls += "fence "; return next(&c.fence) },
				Done:  func(v int) bool { return v == 9 },
				Send: func(_ context.Context, v int) (int, error) {
					calls += fmt.Sprintf("send%d ", v)
					return v + 100, next(&c.sends)
				},
				Read: func(context.Context) (int, error) {
					calls += "read "
					version++
					return version, next(&c.reads)
				},
				Retry:    c.retry,
				Attempts: 3,
			}.Do(t.Context(), c.from)
			if c.err == nil {
				g.Expect(err).NotTo(HaveOccurred())
			} else {
				g.Expect(err).To(MatchError(c.err))
			}
			g.Expect(got).To(Equal(c.want))
			g.Expect(calls).To(Equal(c.calls))
		})
	}
	t.Run("an ended context", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := runner.Write[int]{}.Do(ctx, 1)
		NewWithT(t).Expect(err).To(MatchError(context.Canceled))
	})
}

func isConflict(err error) bool { return errors.Is(err, errConflict) }
