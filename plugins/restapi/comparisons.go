// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi

import (
	"context"
	"sync"
	"time"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// Times of the comparisons that the page, explanations and top share. A comparison reads all
// witnesses twice.
const (
	findingsAge  = 30 * time.Second // a younger one is shown again
	findingsOld  = 10 * time.Minute // up to this age one is shown while the next one takes long
	compareSoon  = 3 * time.Second  // what a caller waits who has an old one
	compareLimit = 10 * time.Second // the longest time that an explanation waits
	compareMost  = time.Minute      // the longest time of a comparison
)

// comparisons holds the last comparison, and runs one at a time, whatever becomes of the
// request that needed it. Its methods may be called by any goroutine.
type comparisons struct {
	mu      sync.Mutex
	at      time.Time // of last; zero: none yet
	last    localapi.MapFindings
	running chan struct{} // closes when the comparison under way has ended; nil: none is
	work    sync.WaitGroup
}

// recentFindings returns a comparison that is not older than half a minute. It returns an
// older one if the next one takes long, and one with an error in it if there is none and
// ctx ends.
func (p *RESTAPI) recentFindings(ctx context.Context) localapi.MapFindings {
	f := &p.findings
	f.mu.Lock()
	now := p.now()
	if !f.at.IsZero() && now.Sub(f.at) <= findingsAge {
		defer f.mu.Unlock()
		return f.last
	}
	if f.running == nil {
		p.startComparison(ctx)
	}
	running, old := f.running, f.last
	wait := compareSoon
	if f.at.IsZero() || now.Sub(f.at) > findingsOld {
		old, wait = localapi.MapFindings{Error: "the comparison has not ended yet"}, compareMost
	}
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	select {
	case <-running:
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.last
	case <-ctx.Done():
		return old
	}
}

// startComparison begins a comparison; the caller holds mu. It outlives the request, since
// other callers wait for it, but not the agent.
func (p *RESTAPI) startComparison(request context.Context) {
	f := &p.findings
	done := make(chan struct{})
	f.running = done
	ctx, cancel := context.WithTimeout(context.WithoutCancel(request), compareMost)
	if stops, ok := request.Value(stopping{}).(<-chan struct{}); ok {
		f.work.Go(func() {
			select {
			case <-stops:
				cancel()
			case <-done:
			}
		})
	}
	f.work.Go(func() {
		defer cancel()
		found := p.compare(ctx)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.last, f.at = found, p.now()
		f.running = nil
		close(done)
	})
}

// keepFindings has the next callers of recentFindings see a report.
func (p *RESTAPI) keepFindings(report localapi.CheckReport) {
	f := &p.findings
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last.Report, f.last.Error, f.at = &report, "", p.now()
}

func (p *RESTAPI) compare(ctx context.Context) (out localapi.MapFindings) {
	report, err := p.checks().Check(ctx)
	if err != nil {
		out.Error = err.Error()
	} else {
		out.Report = &report
	}
	if p.Cluster != nil {
		if c, err := p.Cluster.ClusterCheck(ctx); err == nil {
			out.Cluster = &c
		}
	}
	return out
}
