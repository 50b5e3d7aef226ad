// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package podmanager

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// RefusalPeriod is the least time between two reports about the same pod and reason. The
// kubelet repeats a refused ADD every few seconds, each time with another container.
const RefusalPeriod = 10 * time.Minute

// Refusal describes refused ADDs of one pod.
type Refusal struct {
	Pod    kv.PodID
	UID    string // of the pod; "": the runtime does not tell
	Reason Reason
	Text   string // the sentence that the CNI error has
	At     time.Time
	Total  int // refusals of this pod for this reason
}

// refuse reports a refused request: with a line in the log, and to Refused if it was an
// ADD for a pod. Repetitions are counted only, until RefusalPeriod is over.
func (p *PodManager) refuse(req cni.Request, err error, answer *cni.Error) {
	if req.Command == "STATUS" { // runtimes call STATUS every few seconds
		return
	}
	attachment := cmp.Or(req.Pod.UID, req.Pod.Namespace+"/"+req.Pod.Name)
	if req.Command != "ADD" || req.Pod.Name == "" {
		attachment = req.Network + " " + req.ContainerID + " " + req.IfName
	}
	now, reason := p.Now(), ReasonOf(answer.Code)
	total, unreported, due := p.refusals.note(subject{req.Command, attachment, reason}, now)
	if !due {
		return
	}
	wanted, _ := parseWanted(req.Wanted) // the error of a bad one is that of the answer
	p.Log.Warn("CNI request refused", append(ledger.Decision{
		Pool:      cmp.Or(req.Pool, cni.DefaultPool),
		Addresses: wanted,
		Pod:       ledger.Pod{Namespace: req.Pod.Namespace, Name: req.Pod.Name},
		Key:       ledger.Key{Network: req.Network, ContainerID: req.ContainerID, IfName: req.IfName},
		Reason:    string(reason),
	}.Attributes(), "command", req.Command, "code", answer.Code, "error", answer.Msg, "repetitions", unreported)...)
	ended := errors.Is(err, errCancelled) || errors.Is(err, context.Canceled) // its caller has gone
	if p.Refused == nil || req.Command != "ADD" || req.Pod.Name == "" || req.Pod.Namespace == "" || ended {
		return
	}
	p.Refused(Refusal{
		Pod:    kv.PodID{Namespace: req.Pod.Namespace, Name: req.Pod.Name},
		UID:    req.Pod.UID,
		Reason: reason,
		Text:   answer.Msg,
		At:     now,
		Total:  total,
	})
}

// subject identifies refusals that are reported together.
type subject struct {
	command, attachment string
	reason              Reason
}

// maxSubjects bounds the memory of refusals. A subject that is forgotten is reported
// again.
const maxSubjects = 1024

// refusals counts refusals by subject. Any goroutine may use it.
type refusals struct {
	mu  sync.Mutex
	all map[subject]*refused
}

type refused struct {
	total, unreported int
	reported          time.Time
}

// note counts a refusal. due tells whether to report it now; unreported is the number of
// refusals since the last report, without this one.
func (r *refusals) note(s subject, now time.Time) (total, unreported int, due bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	x := r.all[s]
	if x == nil {
		r.forget()
		x = &refused{}
		r.all[s] = x
	}
	x.total++
	since := now.Sub(x.reported)
	if x.total > 1 && since >= 0 && since < RefusalPeriod {
		x.unreported++
		return x.total, x.unreported, false
	}
	unreported, x.unreported, x.reported = x.unreported, 0, now
	return x.total, unreported, true
}

// forget makes room for one more subject: the one that was reported first goes.
func (r *refusals) forget() {
	if r.all == nil {
		r.all = map[subject]*refused{}
	}
	if len(r.all) < maxSubjects {
		return
	}
	var oldest subject
	var at time.Time
	for s, x := range r.all {
		if at.IsZero() || x.reported.Before(at) {
			oldest, at = s, x.reported
		}
	}
	delete(r.all, oldest)
}
