// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cadastre/cadastre/internal/columns"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

func (a *app) statusCmd() *cobra.Command {
	var live, ready, wait bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show how the agent is, and how full its blocks are",
		Long: `status shows how the agent is, and how full its blocks are. With --live or
--ready it prints nothing but what is wrong, and the exit code is 0 where nothing
is, 1 where something is, 3 where no agent answers.`,
		Example: `  cadastre status
  cadastre status --ready && echo serving`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, _ []string) error {
			if wait {
				if err := a.awaitReady(ctx, timeout); err != nil {
					return err
				}
			}
			switch {
			case live:
				return a.probe(ctx, "live", localapi.PathHealthz)
			case ready:
				return a.probe(ctx, "ready", localapi.PathReadyz)
			}
			return a.status(ctx)
		}),
	}
	cmd.Flags().BoolVar(&live, "live", false, "only tell whether the agent is alive")
	cmd.Flags().BoolVar(&ready, "ready", false, "only tell whether the agent can serve pods")
	cmd.Flags().BoolVar(&wait, "wait", false, "first wait until the agent can serve pods")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "with --wait: fail after this `TIME`")
	completeValues(cmd, "timeout")
	cmd.MarkFlagsMutuallyExclusive("live", "ready")
	return cmd
}

// awaitReady waits until the agent can serve pods. An agent that does not run yet is waited for,
// too.
func (a *app) awaitReady(ctx context.Context, timeout time.Duration) error {
	const often = 200 * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var last error
	for {
		err := a.client().get(ctx, localapi.PathReadyz, nil)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		if a.pause(ctx, often) != nil || ctx.Err() != nil {
			return fmt.Errorf("status: the agent is not ready within %s: %w", timeout, last)
		}
	}
}

// probe asks what a kubelet would ask.
func (a *app) probe(ctx context.Context, what, path string) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	err := a.client().get(ctx, path, nil)
	var refused *refusedError
	if err != nil && !errors.As(err, &refused) {
		return err
	}
	if a.forPeople() {
		if err != nil {
			return fmt.Errorf("the agent is not %s: %w", what, err)
		}
		return nil
	}
	answer := map[string]any{what: err == nil}
	if err != nil {
		answer["reason"] = err.Error()
	}
	if perr := a.print(answer, nil); perr != nil || err == nil {
		return perr
	}
	return &exitError{code: exitFailed}
}

func (a *app) status(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var s localapi.Status
	if err := a.client().get(ctx, localapi.PathStatus, &s); err != nil {
		return fmt.Errorf("status: %w", err)
	}
	return a.print(s, func(wide bool) string {
		return a.statusText(s, a.differences(ctx), wide)
	})
}

// differences returns the number of findings of the last comparison, 0 if there is none. A
// witness that does not answer holds up no status.
func (a *app) differences(ctx context.Context) int {
	ctx, cancel := context.WithTimeout(ctx, 2*dialTimeout)
	defer cancel()
	var m localapi.MapFindings
	if a.client().get(ctx, localapi.PathMapFindings, &m) != nil || m.Report == nil {
		return 0
	}
	return m.Report.Differences()
}

// dataplaneText returns what the agent makes of the network, "" if it makes nothing.
func dataplaneText(s localapi.Status) string {
	switch {
	case s.Dataplane != "" && s.Dataplane != "none":
		return s.Dataplane + ", transport " + s.Transport + "; NetworkPolicies are not enforced"
	case s.Transport != "" && s.Transport != "none":
		return "none, transport " + s.Transport
	}
	return ""
}

func (a *app) statusText(s localapi.Status, differences int, wide bool) string {
	now := a.now()
	var g columns.Rows
	g.Add("node", nodeText(s, wide))
	g.Add(
		"agent",
		fmt.Sprintf(
			"%s, running for %s, since %s",
			s.Version,
			age(now, s.Started),
			s.Started.In(now.Location()).Format(time.DateTime),
		),
	)
	if wide {
		g.Add("instance", s.Instance)
	}
	g.Add("live", yesOr(s.Live, s.LiveError))
	ready := yesOr(s.Ready, s.ReadyError)
	if s.Suspended != "" && s.ReadyError == s.Suspended { // said once, in the next line
		ready = "no"
	}
	g.Add("ready", ready)
	if s.Suspended != "" {
		g.Add("suspended", "no new address is allocated: "+s.Suspended)
	}
	if s.ConfigProblem != "" {
		g.Add("problem", s.ConfigProblem)
	}
	if differences > 0 {
		g.Add("findings", fmt.Sprintf("%d: cadastre check", differences))
	}
	g.Add("event loop", loopText(s, now, wide))
	if s.DatabaseError != "" {
		g.Add("database", s.DatabaseError)
	}
	g.Add("store", s.KVDB+", state in "+s.StateDir)
	if text := clusterText(s, now); text != "" {
		g.Add("cluster", text)
	}
	g.Add("pod blocks", "from "+s.PodBlocks)
	for _, text := range interfaceTexts(s.Interfaces) {
		g.Add("interfaces", text)
	}
	if text := dataplaneText(s); text != "" {
		g.Add("data plane", text)
	}
	if text := hostPortsText(s.HostPorts); text != "" {
		g.Add("host ports", text)
	}
	for _, c := range s.Claims {
		g.Add("claim", claimText(c, now))
	}
	if s.Waiting > 0 {
		g.Add("waiting", plural(s.Waiting, "DEL", "DELs")+" that found no agent")
	}
	if s.Rebooted > 0 {
		g.Add("reboot", "ended "+plural(s.Rebooted, "lease", "leases"))
	}
	for _, text := range southboundTexts(s.Southbound, now, wide) {
		g.Add("network", text)
	}
	for _, w := range s.Witnesses {
		g.Add("witness", witnessText(w, now, wide))
	}
	for _, full := range fullPools(s.Blocks) {
		g.Add("full", full)
	}
	for _, note := range s.Notes {
		g.Add("note", note)
	}
	text := g.String()
	for _, b := range s.Blocks {
		if b.Pool == ipam.HostPool && s.Dataplane == string(contivconf.DataplaneLinux) && !wide {
			continue // only VPP has that link
		}
		text += columns.Clean(blockText(b, wide)) + "\n"
	}
	if len(s.Blocks) == 0 {
		text += "no blocks\n"
	}
	return text
}

// hostPortsText tells whether pods get host ports, "" if the agent writes no CNI list.
func hostPortsText(h *localapi.HostPorts) string {
	switch {
	case h == nil:
		return ""
	case len(h.Versions) == 0:
		return "none: the CNI list has no portmap: " + h.Reason
	case h.Reason != "":
		return "by portmap; " + h.Reason + ": " + strings.Join(h.Versions, ", ")
	}
	return "by portmap of the versions " + strings.Join(h.Versions, ", ")
}

// claimText describes a claim, and what a pending one waits for.
func claimText(c localapi.Claim, now time.Time) string {
	what := c.Prefix
	if c.Network == "nodes" {
		what = "node address " + strings.TrimSuffix(strings.TrimSuffix(c.Prefix, "/32"), "/128")
	}
	if c.Held {
		return what + " is held"
	}
	if c.Reason == "" {
		return what + " is asked for"
	}
	return fmt.Sprintf("%s is waited for since %s: %s", what, age(now, c.Since), c.Reason)
}

func nodeText(s localapi.Status, wide bool) string {
	if s.NodeID == 0 {
		return s.NodeName + ", which has no node ID yet"
	}
	text := fmt.Sprintf("%s, ID %d", s.NodeName, s.NodeID)
	if wide && s.NodeIDGeneration > 0 {
		text += fmt.Sprintf(" of generation %d", s.NodeIDGeneration)
	}
	switch {
	case s.NodeIDProblem == "":
	case strings.Contains(s.Suspended, s.NodeIDProblem): // said once, as the reason of that
		text += ", which may not be its own"
	default:
		text += ", which may not be its own: " + s.NodeIDProblem
	}
	return text
}

// clusterText describes the cluster store; "" if the agent has none but its own
// database and says nothing of it.
func clusterText(s localapi.Status, now time.Time) string {
	var text string
	switch {
	case s.KVDBConnected:
		text = "connected"
	case s.KVDBError != "":
		text = "not connected" + sinceText(s, now) + ": " + s.KVDBError
	case s.StateFrom != "" || s.KVDB != "bolt":
		text = "not connected"
	default:
		return ""
	}
	switch s.StateFrom {
	case "remote":
		text += fmt.Sprintf("; its state of revision %d", s.KVDBRevision)
	case "mirror":
		text += fmt.Sprintf("; this node's copy of its state of revision %d", s.KVDBRevision)
	case "":
		text += "; no state yet"
	}
	return text
}

// sinceText says since when the store is away, and until when the agent allocates.
func sinceText(s localapi.Status, now time.Time) string {
	if s.KVDBAway.IsZero() {
		return ""
	}
	clock := func(t time.Time) string {
		if t = t.In(now.Location()); t.Format(time.DateOnly) == now.Format(time.DateOnly) {
			return t.Format(time.TimeOnly)
		}
		return t.Format(time.DateTime)
	}
	text := fmt.Sprintf(" since %s (%s)", clock(s.KVDBAway), age(now, s.KVDBAway))
	if s.Suspended == "" && s.AllocatesUntil.After(now) {
		text += fmt.Sprintf(", allocates until %s (for %s)", clock(s.AllocatesUntil), age(s.AllocatesUntil, now))
	}
	return text
}

// fullPools describes the pools that have leases and no free address of a family.
func fullPools(blocks []localapi.Block) (all []string) {
	type key struct{ pool, family string }
	sums, order := map[key]localapi.Block{}, []key{}
	for _, b := range blocks {
		if b.State != "active" {
			continue
		}
		k := key{b.Pool, b.Family}
		if _, known := sums[k]; !known {
			order = append(order, k)
		}
		s := sums[k]
		s.Free, s.Held, s.Cooling, s.Quarantined = sum(
			s.Free,
			b.Free,
		), s.Held+b.Held, s.Cooling+b.Cooling, s.Quarantined+b.Quarantined
		sums[k] = s
	}
	for _, k := range order {
		if s := sums[k]; s.Free == 0 && s.Held > 0 {
			all = append(
				all,
				fmt.Sprintf(
					"no %s address is free in pool %s: %d are held, %d cooling, %d quarantined",
					k.family,
					k.pool,
					s.Held,
					s.Cooling,
					s.Quarantined,
				),
			)
		}
	}
	return all
}

func blockText(b localapi.Block, wide bool) string {
	text := fmt.Sprintf("%s %s %s: %d held, %d infra, %d cooling, %d quarantined, %d free of %d",
		b.Pool, b.Block, b.State, b.Held, b.Infra, b.Cooling, b.Quarantined, b.Free, b.Size)
	if wide {
		text += fmt.Sprintf(", %d reserved", b.Reserved)
	}
	return text
}

func yesOr(ok bool, why string) string {
	if ok {
		return "yes"
	}
	return strings.TrimSuffix("no: "+why, ": ")
}

func loopText(s localapi.Status, now time.Time, wide bool) string {
	l := s.Loop
	var text string
	switch {
	case l.Fatal != "":
		text = "failed for good: " + l.Fatal
	case l.Stuck:
		text = fmt.Sprintf("stuck in %s for %s", l.Current, age(now, l.CurrentSince))
	case !l.Running:
		text = "not running"
	case !l.Resynced:
		text = "waiting for its first resync"
	case !l.Healthy:
		text = "healing: " + l.LastError
	default:
		text = "healthy"
	}
	text += fmt.Sprintf("; %s processed, %d queued", plural(l.Processed, "event", "events"), l.Queued)
	if wide {
		text += fmt.Sprintf(", %s", plural(l.FollowUps, "follow-up", "follow-ups"))
		if l.Current != "" {
			text += fmt.Sprintf("; in %s for %s", l.Current, age(now, l.CurrentSince))
		}
	}
	return text
}

// interfaceTexts describes the interfaces of the machine and their addresses.
func interfaceTexts(i *localapi.Interfaces) (texts []string) {
	if i == nil {
		return nil
	}
	if i.Cloud == "" {
		texts = append(texts, fmt.Sprintf("%d known, the cloud has not answered yet", i.Interfaces))
	} else {
		texts = append(
			texts,
			fmt.Sprintf("%d of %d of machine %s of %s", i.Interfaces, i.MaxInterfaces, i.Instance, i.Cloud),
		)
	}
	for _, f := range i.Families {
		texts = append(texts, fmt.Sprintf("%s: %d free, %d assigned, %d cooling of %d",
			f.Family, f.Free, f.Assigned, f.Cooling, f.Total))
	}
	if i.Returning > 0 {
		texts = append(texts, fmt.Sprintf("%d on their way back to the cloud", i.Returning))
	}
	return texts
}
