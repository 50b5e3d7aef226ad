// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package background

import (
	"context"
	"errors"
	"testing"

	. "github.com/onsi/gomega"
)

func TestAFunctionThatEndsFailsTheAgent(t *testing.T) {
	g := NewWithT(t)
	failed := make(chan error, 2)
	group := New(func(err error) { failed <- err })
	group.Go("worker", func(context.Context) error { return errors.New("broken") })
	g.Expect(<-failed).To(MatchError("worker: broken"))
	group.Go("worker", func(context.Context) error { return nil })
	g.Expect(<-failed).To(MatchError("worker: it returned before it was stopped"))
	group.Stop()
}

func TestStopAwaitsTheFunctions(t *testing.T) {
	g := NewWithT(t)
	failed := make(chan error, 1)
	group := New(func(err error) { failed <- err })
	ended := false
	group.Go("worker", func(ctx context.Context) error {
		<-ctx.Done()
		ended = true
		return nil
	})
	group.Stop()
	g.Expect(ended).To(BeTrue())
	g.Expect(failed).To(BeEmpty())
	var none *Group
	none.Stop()
}
