// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/version"
	"github.com/cadastre/cadastre/plugins/kubestate/apistore"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
	"github.com/cadastre/cadastre/plugins/restapi"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// live returns an error if the agent should be restarted.
func (a *assembly) live() error {
	s := a.loop.Status()
	switch {
	case s.Fatal != "":
		return errors.New(s.Fatal)
	case s.Stuck:
		return fmt.Errorf("event %q has been processed since %s", s.Current, s.CurrentSince.Format("15:04:05"))
	}
	return nil
}

// ready returns an error while the agent cannot serve ADD.
func (a *assembly) ready() error {
	if err := a.live(); err != nil {
		return err
	}
	s := a.loop.Status()
	switch {
	case !s.Resynced:
		return a.noResync(s)
	case !a.progress.recovered.Load():
		return errors.New("DELs that waited for the agent are being applied")
	case a.ipam.Pending() != "":
		return errors.New(a.ipam.Pending())
	case a.ledger.Suspended() != "":
		return errors.New(a.ledger.Suspended())
	case a.ipnet.Pending() != "":
		return errors.New(a.ipnet.Pending())
	}
	return cmp.Or(a.hasAddress(), a.healthy())
}

// noResync returns an error that names what the first resync waits for.
func (a *assembly) noResync(s controller.Status) error {
	const what = "no resync has succeeded yet"
	k := a.source.Status()
	switch {
	case s.LastError != "":
		return fmt.Errorf("%s: %s", what, s.LastError)
	case k.Error != "":
		return fmt.Errorf(
			"%s: the state of the cluster cannot be read from the store (%s): %s",
			what,
			a.conf.Cadastre.KVDB.Type,
			k.Error,
		)
	case k.From == "":
		return fmt.Errorf(
			"%s: the state of the cluster is being read from the store (%s)",
			what,
			a.conf.Cadastre.KVDB.Type,
		)
	}
	return errors.New(what)
}

// healthy returns the error of the last commit.
func (a *assembly) healthy() error {
	if a.file == nil {
		return nil
	}
	if err := a.file.Health(); err != nil {
		return fmt.Errorf("a commit to the database failed: %w", err)
	}
	return nil
}

// Status describes the agent.
func (a *assembly) Status() localapi.Status {
	s := localapi.Status{
		Version:    version.Current(),
		NodeName:   a.node.Name,
		NodeID:     a.claimers.IDs.ID(),
		Instance:   a.instance,
		Started:    a.started.UTC(),
		Suspended:  a.ledger.Suspended(),
		KVDB:       string(a.conf.Cadastre.KVDB.Type),
		StateDir:   a.node.StateDir,
		ConfigFile: a.node.ConfigFile,
		PodBlocks:  string(a.conf.Cadastre.PodBlocks),
		Dataplane:  string(a.conf.Cadastre.Dataplane),
		Transport:  string(a.conf.Cadastre.Transport),
		Rebooted:   a.ledger.Rebooted(),
		Loop:       a.loop.Status(),
		Live:       true,
		Ready:      true,
		Serving:    a.progress.recovered.Load(),
	}
	k := a.source.Status()
	s.KVDBConnected, s.KVDBError = k.Connected, k.Error
	s.KVDBRevision, s.StateFrom = k.Revision, k.From
	if !k.Away.IsZero() {
		s.KVDBAway, s.AllocatesUntil = k.Away.UTC(), a.allocatesUntil().UTC()
	}
	s.NodeIDGeneration, s.NodeIDProblem = a.claimers.IDs.Held().Generation, a.claimers.IDs.Problem()
	s.ConfigProblem = a.ipam.ConfigDiffers()
	s.Notes = append(append([]string{}, a.ipam.Notes()...), a.ipnet.Notes()...)
	for _, key := range k.Unreadable {
		s.Notes = append(
			s.Notes,
			fmt.Sprintf(
				"the value of %s in the cluster store cannot be read: node ID %d counts as taken, and there is no route to its node",
				key,
				kv.NodeRecordID(key),
			),
		)
	}
	for _, p := range a.ipam.Problems() {
		s.Notes = append(s.Notes, p.Object+": "+p.Text)
	}
	if s.Interfaces = a.interfacesStatus(); s.Interfaces != nil {
		s.Notes = append(s.Notes, a.interfaces.Status().Notes()...)
	}
	s.Notes = append(s.Notes, a.doubtful()...)
	s.Notes = append(s.Notes, a.cniList.notes()...)
	s.HostPorts = a.cniList.hostPorts()
	s.Claims = a.claims()
	if why := a.nodeconfig.Problem(); why != "" {
		s.Notes = append(s.Notes, why)
	}
	if err := a.live(); err != nil {
		s.Live, s.LiveError = false, err.Error()
	}
	if err := a.ready(); err != nil {
		s.Ready, s.ReadyError = false, err.Error()
	}
	if err := a.healthy(); err != nil {
		s.DatabaseError = err.Error()
	}
	intents, _, _ := cni.ReadIntents(
		cni.IntentDir(a.socket()),
		os.Geteuid(),
	) // what cannot be read is logged when it is applied
	s.Waiting = len(intents)
	s.Witnesses = restapi.WitnessesOf(a.reclaim.Reports())
	if made, ok := a.southbound(); ok {
		s.Southbound = southboundOf(made)
		s.Notes = append(s.Notes, made.Notes...)
	}
	s.Blocks = []localapi.Block{}
	for _, b := range a.ledger.Stats() {
		s.Blocks = append(s.Blocks, restapi.BlockOf(b))
	}
	return s
}

// allocatesUntil returns when the node stops allocating if the store stays away, zero for
// a node that has nothing to allocate from.
func (a *assembly) allocatesUntil() time.Time {
	until, claims := a.claimers.IDs.Until(), a.claimers.Prefixes.Until()
	if until.IsZero() || !claims.IsZero() && claims.Before(until) {
		return claims
	}
	return until
}

// doubtful lists the addresses of the configuration that are reserved, or used twice.
func (a *assembly) doubtful() (all []string) {
	for _, e := range slices.Concat(a.conf.Tolerated, a.conf.DerivedTwice()) {
		all = append(all, "contiv.conf: "+e.Error())
	}
	return all
}

// admitAddresses refuses a configuration with reserved addresses on a new node. A node
// that has blocks goes on: its leases are safe, and only a person can move them. An
// address that follows from a node ID too is claimed in the store before it is used.
func (a *assembly) admitAddresses() error {
	if len(a.conf.Tolerated) > 0 && len(a.ledger.Stats()) == 0 {
		var errs []error
		for _, e := range a.conf.Tolerated {
			errs = append(errs, e)
		}
		return fmt.Errorf("configuration %s:\n%w", a.node.ConfigFile, errors.Join(errs...))
	}
	for _, text := range a.doubtful() {
		a.log.Warn("an address of the configuration is in doubt", "problem", text)
	}
	return nil
}

// clusterState returns the gauges of the node's place in the cluster.
func (a *assembly) clusterState() restapi.ClusterState {
	waiting := len(a.claimers.Prefixes.Waiting())
	return restapi.ClusterState{
		KVDBConnected:  a.source.Status().Connected,
		NodeIDConflict: a.claimers.IDs.Problem() != "",
		PoolProblems:   len(a.ipam.Problems()),
		ClaimsHeld:     len(a.claimers.Prefixes.All()) - waiting,
		ClaimsWaiting:  waiting,
		ConfigDiffers:  a.ipam.ConfigDiffers() != "",
	}
}

// clusterViews shows and changes the cluster for the local API.
type clusterViews struct{ *restapi.ClusterViews }

func (a *assembly) clusterViews() clusterViews {
	return clusterViews{&restapi.ClusterViews{
		NodeName:   a.node.Name,
		Instance:   a.instance,
		NodeID:     a.claimers.IDs,
		Config:     a.conf.Cadastre,
		ContivConf: a.contivconf,
		Networks:   a.ipam,
		Ledger:     a.ledger,
		Store:      a.store,
		Claims:     a.claimers.Register(),
		Now:        a.clock.now,
	}}
}

// ReleaseNode makes the ID of a node free that is gone. If the policies of the API
// server refuse that, the error names the command that may.
func (v clusterViews) ReleaseNode(
	ctx context.Context,
	req localapi.NodeReleaseRequest,
) (localapi.NodeReleaseReply, error) {
	reply, err := v.ClusterViews.ReleaseNode(ctx, req)
	if errors.Is(err, apistore.ErrPolicy) {
		const hint = `"kubectl -n cadastre-system exec deployment/cadastre-operator -- /cadastre-operator node release %s", ` +
			`or "cadastre-operator node release" with --kubeconfig`
		err = fmt.Errorf("%w; an agent may not release another node: run "+hint, err, req.Name)
		err = &localapi.StatusError{Status: http.StatusForbidden, Err: err}
	}
	return reply, err
}
