// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// A claim comes to be held while the queue of the event loop is full. The loop
// learns of it nevertheless: no later event would have it open the block.
func TestAChangeOfClaimsIsNotLostToAFullQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		conf := controller.DefaultConfig()
		conf.QueueSize = 1
		loop := controller.New(conf, controller.Deps{Log: slog.New(slog.DiscardHandler)})
		var told atomic.Int32
		c := &Claimers{ClaimersDeps: ClaimersDeps{Log: slog.New(slog.DiscardHandler), EventLoop: loop, Changed: func() { told.Add(1) }}}
		g.Expect(loop.PushEvent(&nodesync.NodeIDChange{})).To(Succeed())
		c.changed()
		g.Expect(told.Load()).To(BeEquivalentTo(1))
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		go func() { done <- loop.Run(ctx) }()
		g.Expect(loop.PushEvent(&controller.DBResync{})).To(Succeed())
		time.Sleep(2 * fullQueueRetry)
		synctest.Wait()
		var names []string
		records, _ := loop.Events(0)
		for _, r := range records {
			names = append(names, r.Name)
		}
		g.Expect(names).To(ContainElement((&nodesync.ClaimChange{}).GetName()))
		c.changed()
		cancel()
		g.Expect(<-done).To(Succeed())
		c.changed() // ends with the loop
	})
}
