// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package podmanager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

var errCancelled = errors.New("cancelled by a DEL of the same attachment")

// ErrAway is returned while the agent is starting or stopping. For the caller this is the
// same as an agent that is away.
var ErrAway = errors.New("the agent is starting or stopping")

// Serve answers one CNI request, in the order of Accept if ctx is of a connection. After an
// ADD, Delivered must be called with the outcome of the delivery. An error either wraps
// ErrAway or is a *cni.Error.
func (p *PodManager) Serve(ctx context.Context, req cni.Request) (cni.Reply, error) {
	began := p.Now()
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	c, left := p.callerOf(ctx)
	defer left()
	reply, err := p.serve(ctx, c, req)
	if errors.Is(err, controller.ErrClosedController) || errors.Is(err, controller.ErrEventLoopIsAborting) {
		return cni.Reply{}, fmt.Errorf("%s: %w", req.Command, ErrAway)
	}
	served := Served{Command: req.Command, Took: p.Now().Sub(began)}
	if err == nil {
		describe(ctx, req, reply, nil)
		p.observe(served)
		return reply, nil
	}
	cerr := p.toCNI(req, err)
	served.Code = cerr.Code
	describe(ctx, req, cni.Reply{}, cerr)
	p.observe(served)
	p.refuse(req, err, cerr)
	return cni.Reply{}, cerr
}

func (p *PodManager) observe(s Served) {
	if p.Observe != nil {
		p.Observe(s)
	}
}

func (p *PodManager) serve(ctx context.Context, c caller, req cni.Request) (cni.Reply, error) {
	if ctx.Err() != nil {
		return cni.Reply{}, fmt.Errorf("%s: %w", req.Command, context.Cause(ctx))
	}
	key := ledger.Key{Network: req.Network, ContainerID: req.ContainerID, IfName: req.IfName}
	attachment := req.Command != "GC" && req.Command != "STATUS"
	if req.Network == "" || attachment && (key.ContainerID == "" || key.IfName == "") {
		return cni.Reply{}, cni.Errorf(cni.CodeInvalidConfig,
			"%s: network, containerID and ifName must not be empty", req.Command)
	}
	switch req.Command {
	case "ADD":
		if err := req.CheckNames(); err != nil {
			return cni.Reply{}, err
		}
		return p.add(ctx, c, key, req)
	case "DEL":
		return cni.Reply{}, p.del(ctx, c, key)
	case "CHECK":
		return cni.Reply{}, p.check(ctx, key, req)
	case "GC":
		return cni.Reply{}, p.gc(ctx, req)
	case "STATUS":
		return cni.Reply{}, p.status(req)
	}
	return cni.Reply{}, cni.Errorf(cni.CodeInvalidConfig,
		"command %q is not one of ADD, DEL, CHECK, GC, STATUS", req.Command)
}

// firstResync is the longest that an ADD waits for the first resync. cadastre-cni
// waits for an answer for a minute.
const firstResync = 15 * time.Second

func (p *PodManager) add(ctx context.Context, c caller, key ledger.Key, req cni.Request) (cni.Reply, error) {
	if req.Main {
		if err := p.makesWires(); err != nil {
			return cni.Reply{}, err
		}
	}
	if err := p.applyIntent(ctx, intentOf(key), c.ticket); err != nil {
		return cni.Reply{}, err
	}
	wanted, err := parseWanted(req.Wanted)
	if err != nil {
		return cni.Reply{}, err
	}
	if unsynced, _ := p.BeforeResync(
		func() error { return nil },
	); unsynced { // answer with the reason before the caller gives up
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, min(p.Timeout/4, firstResync))
		defer cancel()
	}
	expires, _ := ctx.Deadline()
	ev := &AddPod{
		Pod:     kv.PodID{Namespace: req.Pod.Namespace, Name: req.Pod.Name},
		UID:     req.Pod.UID,
		Key:     key,
		Netns:   req.Netns,
		NetNSID: p.identify(req.Netns),
		Wired:   req.Main,
		MAC:     req.MAC,
		Pool:    cmp.Or(req.Pool, cni.DefaultPool),
		Wanted:  wanted,
		Expires: expires,
		Ticket:  c.ticket,
		span:    recorded(ctx),
		gone:    c.gone,
		done:    make(chan error, 1),
		ended:   p.addEnded,
	}
	p.seq.beginAdd(key)
	p.seq.leave(c.ticket) // its request is here
	if err := p.pushAdd(ctx, ev); err != nil {
		if p.seq.addDone(key, ev.Ticket, false, false) {
			p.orphans.put(ev) // the lease of an earlier ADD
		}
		return cni.Reply{}, err
	}
	select {
	case err = <-ev.done:
	case <-ctx.Done():
		if ev.state.CompareAndSwap(waiting, abandoned) {
			return cni.Reply{}, fmt.Errorf("ADD %s: not answered in time: %w", key, context.Cause(ctx))
		}
		err = <-ev.done
	}
	if err != nil {
		return cni.Reply{}, err
	}
	if ev.Fresh {
		p.Log.Info("leased", ledger.Decision{
			Pool:      ev.Pool,
			Addresses: ev.addrs(),
			Pod:       ledger.Pod{Namespace: ev.Pod.Namespace, Name: ev.Pod.Name},
			Key:       key,
		}.Attributes()...)
	}
	if p.Reclaims != nil {
		p.Reclaims.Claimed(key)
	}
	reply := replyTo(ev, req.Routes)
	reply.Claim, reply.Ticket = ev.Generation, ev.Ticket
	switch {
	case req.Main && ev.Wire == nil: // a handler is missing
		err = cni.Errorf(cni.CodeInternal, "ADD %s: no handler of the event has described the interface", key)
		p.Delivered(req, reply, err)
		return cni.Reply{}, err
	case req.Main:
		interfaces(&reply, ev.Wire, key, ev.Addresses)
	}
	return reply, nil
}

func (p *PodManager) pushAdd(ctx context.Context, ev *AddPod) error {
	if ev.left() {
		return fmt.Errorf("ADD %s: %w", ev.Key, errGone)
	}
	return p.EventLoop.PushEventWait(ctx, ev)
}

// Delivered records whether the reply to an ADD reached its caller; err is that of the
// delivery. If it did not, the lease is released, unless another ADD of the attachment
// delivered it that no DEL followed.
func (p *PodManager) Delivered(req cni.Request, reply cni.Reply, err error) {
	if req.Command != "ADD" || reply.Ticket == 0 {
		return
	}
	key := ledger.Key{Network: req.Network, ContainerID: req.ContainerID, IfName: req.IfName}
	if err == nil {
		p.seq.delivered(key, reply.Ticket)
		return
	}
	if p.seq.undelivered(key, reply.Ticket) {
		p.orphans.put(&AddPod{Key: key})
	}
}

func parseWanted(texts []string) ([]netip.Addr, error) {
	var wanted []netip.Addr
	for _, s := range texts {
		a, err := netip.ParseAddr(s)
		if err != nil || a.Zone() != "" {
			return nil, cni.Errorf(cni.CodeInvalidConfig, "requested address %q is not an IP address", s)
		}
		if a = a.Unmap(); !slices.Contains(wanted, a) {
			wanted = append(wanted, a)
		}
	}
	return wanted, nil
}

func replyTo(ev *AddPod, routes []cni.Route) cni.Reply {
	var r cni.Reply
	for i, a := range ev.Addresses {
		ip := cni.IP{Address: a.String()}
		if i < len(ev.Gateways) && ev.Gateways[i].IsValid() {
			ip.Gateway = ev.Gateways[i].String()
		}
		r.IPs = append(r.IPs, ip)
	}
	if routes != nil {
		r.Routes = routes
		return r
	}
	for _, x := range ev.Routes {
		r.Routes = append(r.Routes, cni.Route{Dst: x.Dst.String(), GW: x.GW.String()})
	}
	return r
}

func (p *PodManager) del(ctx context.Context, c caller, key ledger.Key) error {
	if c.gone() {
		return fmt.Errorf("DEL %s: %w", key, errGone)
	}
	if err := p.remove(ctx, key, c.ticket); err != nil {
		return err
	}
	// An intent of an earlier DEL has nothing left to do.
	return intentOf(key).Remove(p.IntentDir)
}

func intentOf(key ledger.Key) cni.Intent {
	return cni.Intent{Network: key.Network, ContainerID: key.ContainerID, IfName: key.IfName}
}

// remove ends every attachment of key whose ADD was accepted before this ticket.
func (p *PodManager) remove(ctx context.Context, key ledger.Key, ticket time.Duration) error {
	p.seq.beginDel(key, ticket)
	return p.push(ctx, &DeletePod{
		Key:    key,
		Reason: "CNI DEL",
		wanted: func() bool { return p.seq.mayFree(key, ticket) },
		ended:  func() { p.seq.delDone(key) },
	})
}

// releaseEarly releases the lease of ev before the first resync, which may wait for the
// cluster store: the southbound has no values of it yet.
func (p *PodManager) releaseEarly(ctx context.Context, ev *DeletePod) error {
	if ev.Void() {
		return nil
	}
	freed, err := p.Ledger.Release(ctx, ledger.Selector{Key: ev.Key, Generation: ev.Generation, Reason: ev.Reason})
	if err != nil {
		return err
	}
	ev.Release(freed)
	return nil
}

// push pushes a DeletePod and waits for it.
func (p *PodManager) push(ctx context.Context, ev *DeletePod) error {
	if done, err := p.BeforeResync(func() error { return p.releaseEarly(ctx, ev) }); done {
		p.tidy(ev.Key)
		if ev.ended != nil {
			ev.ended()
		}
		p.logReleased(ev, err)
		return err
	}
	ev.Expires, _ = ctx.Deadline()
	if ev.Expires.IsZero() {
		ev.Expires = p.Now().Add(p.Timeout)
	}
	ev.span = recorded(ctx)
	ev.done = make(chan error, 1)
	ev.tidy = func() { p.tidy(ev.Key) }
	if err := p.EventLoop.PushEventWait(ctx, ev); err != nil {
		if ev.ended != nil {
			ev.ended() // Done will not be called
		}
		return err
	}
	select {
	case err := <-ev.done:
		p.logReleased(ev, err)
		return err
	case <-ctx.Done():
		return fmt.Errorf("DEL %s: not answered in time: %w", ev.Key, context.Cause(ctx))
	}
}

func (p *PodManager) logReleased(ev *DeletePod, err error) {
	if err == nil && len(ev.Freed) > 0 {
		p.Log.Info("released", ledger.Decision{
			Pool:      ev.pool,
			Addresses: ev.Freed,
			Pod:       ledger.Pod{Namespace: ev.Pod.Namespace, Name: ev.Pod.Name},
			Key:       ev.Key,
			Reason:    ev.Reason,
		}.Attributes()...)
	}
}

// gc passes the leases of a network whose attachments are not listed on to be reclaimed.
// It skips an attachment whose ADD is in progress.
func (p *PodManager) gc(ctx context.Context, req cni.Request) error {
	if req.Attachments == nil {
		return nil
	}
	valid := map[cni.Attachment]bool{}
	for _, a := range req.Attachments {
		valid[a] = true
	}
	if req.Main && p.Wires != nil {
		defer p.Wires.Collect()
	}
	var unlisted []ledger.Lease
	for _, l := range p.Ledger.Leases() {
		k := l.Key
		if k.Network != req.Network || l.Purpose != ledger.ForPod || !l.InUse() || k.OfAPI() {
			continue
		}
		if !valid[cni.Attachment{ContainerID: k.ContainerID, IfName: k.IfName}] && !p.seq.adding(k) {
			unlisted = append(unlisted, l)
		}
	}
	var waits []string
	if p.Reclaims == nil {
		for _, l := range unlisted {
			waits = append(waits, l.Addr.String()+": this agent reclaims nothing: it has no witnesses")
		}
	} else {
		var err error
		if waits, err = p.Reclaims.Unlisted(ctx, req.Network, unlisted); err != nil {
			return fmt.Errorf("GC of network %s: %w", req.Network, err)
		}
	}
	if len(waits) > 0 {
		p.Log.Info("GC: attachments are not listed", "network", req.Network, "waiting", waits)
	}
	return nil
}

// status returns the reason why ADD cannot be served. It writes nothing.
func (p *PodManager) status(req cni.Request) error {
	pool := cmp.Or(req.Pool, cni.DefaultPool)
	unavailable := func(format string, args ...any) error {
		return cni.Errorf(cni.CodeNotAvailable, "ADD cannot be served: "+format, args...)
	}
	if pool != cni.DefaultPool && (p.IsPodPool == nil || !p.IsPodPool(pool)) {
		return unavailable("pool %q is not for pods", pool)
	}
	if p.Ready != nil {
		if err := p.Ready(); err != nil {
			return unavailable("%v", err)
		}
	}
	if why := p.Ledger.Suspended(); why != "" {
		return unavailable("%s", why)
	}
	if req.Main {
		if err := p.makesWires(); err != nil {
			return unavailable("%v", err)
		}
		if err := p.Wires.Ready(); err != nil {
			return unavailable("%v", err)
		}
	}
	left := map[ledger.Family]bool{}
	for _, s := range p.Ledger.Stats() {
		if s.Pool == pool && s.State == ledger.Active {
			left[s.Family] = left[s.Family] || s.Free > 0 || s.Cooling > 0
		}
	}
	if len(left) == 0 {
		return unavailable("pool %q has no address block", pool)
	}
	for _, f := range []ledger.Family{ledger.IPv4, ledger.IPv6} {
		if some, has := left[f]; has && !some {
			return unavailable("no address of family %s is free in pool %q", f, pool)
		}
	}
	return nil
}

// toCNI returns the CNI error of an error. For an ADD it has the sentence of Explain; for
// one that the runtime repeats it adds the reason why the node is not ready.
func (p *PodManager) toCNI(req cni.Request, err error) *cni.Error {
	if cerr, ok := errors.AsType[*cni.Error](err); ok {
		return cerr
	}
	code := codeOf(err)
	msg, _, _ := strings.Cut(err.Error(), "\n")
	if req.Command == "ADD" && p.Explain != nil {
		msg = cmp.Or(p.Explain(req, err), msg)
	}
	if req.Command == "ADD" && code == cni.CodeTryAgain && p.Ready != nil {
		if why := p.Ready(); why != nil && !strings.Contains(msg, why.Error()) {
			msg = fmt.Sprintf("%s; the node is not ready: %v", msg, why)
		}
	}
	return &cni.Error{Code: code, Msg: msg}
}

// Delete ends the attachment of a lease, unless the attachment has a newer lease. The
// history records the reason of the lease.
func (p *PodManager) Delete(ctx context.Context, l ledger.Lease) error {
	return p.push(ctx, &DeletePod{Key: l.Key, Generation: l.Generation, Reason: l.Reason})
}
