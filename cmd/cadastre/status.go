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
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

func (a *app) statusCmd() *cobra.Command {
	var live, ready bool
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
	cmd.MarkFlagsMutuallyExclusive("live", "ready")
	return cmd
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
	return a.print(s, func(wide bool) string { return a.statusText(s, wide) })
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

func (a *app) statusText(s localapi.Status, wide bool) string {
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
	g.Add("ready", yesOr(s.Ready, s.ReadyError))
	if s.Suspended != "" {
		g.Add("suspended", "no new address is allocated: "+s.Suspended)
	}
	if s.ConfigProblem != "" {
		g.Add("problem", s.ConfigProblem)
	}
	g.Add("event loop", loopText(s, now, wide))
	if s.DatabaseError != "" {
		g.Add("database", s.DatabaseError)
	}
	g.Add("store", s.KVDB+", state in "+s.StateDir)
	if text := clusterText(s); text != "" {
		g.Add("cluster", text)
	}
	g.Add("pod blocks", "from "+s.PodBlocks)
	for _, text := range interfaceTexts(s.Interfaces) {
		g.Add("interfaces", text)
	}
	if text := dataplaneText(s); text != "" {
		g.Add("data plane", text)
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
		text += columns.Clean(blockText(b, wide)) + "\n"
	}
	if len(s.Blocks) == 0 {
		text += "no blocks\n"
	}
	return text
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
	if s.NodeIDProblem != "" {
		text += ", which may not be its own: " + s.NodeIDProblem
	}
	return text
}

// clusterText describes the cluster store; "" if the agent has none but its own
// database and says nothing of it.
func clusterText(s localapi.Status) string {
	var text string
	switch {
	case s.KVDBConnected:
		text = "connected"
	case s.KVDBError != "":
		text = "not connected: " + s.KVDBError
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
