// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/httpserver"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
	"github.com/cadastre/cadastre/plugins/restapi"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// live says why the agent should be restarted.
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

// ready says why ADD cannot be served.
func (a *assembly) ready() error {
	if err := a.live(); err != nil {
		return err
	}
	s := a.loop.Status()
	switch {
	case !s.Resynced:
		return a.noResync(s)
	case !a.serving.recovered.Load():
		return errors.New("DELs that waited for the agent are being applied")
	case a.ipam.Pending() != "":
		return errors.New(a.ipam.Pending())
	case a.ledger.Suspended() != "":
		return errors.New(a.ledger.Suspended())
	}
	return cmp.Or(a.hasAddress(), a.healthy())
}

// unsynced reports whether the event loop waits for the cluster's state to begin.
func (a *assembly) unsynced() bool {
	s := a.loop.Status()
	return !s.Resynced && s.Current == ""
}

// noResync returns what the first resync waits for, as far as it is known.
func (a *assembly) noResync(s controller.Status) error {
	const what = "no resync has succeeded yet"
	k := a.source.Status()
	switch {
	case s.LastError != "":
		return fmt.Errorf("%s: %s", what, s.LastError)
	case k.Error != "":
		return fmt.Errorf("%s: the state of the cluster cannot be read from the store (%s): %s", what, a.conf.Cadastre.KVDB.Type, k.Error)
	case k.From == "":
		return fmt.Errorf("%s: the state of the cluster is being read from the store (%s)", what, a.conf.Cadastre.KVDB.Type)
	}
	return errors.New(what)
}

// healthy returns why a commit failed, until one is tried that succeeds.
func (a *assembly) healthy() error {
	if a.file == nil {
		return nil
	}
	if err := a.file.Health(); err != nil {
		return fmt.Errorf("a commit to the database failed: %w", err)
	}
	return nil
}

func (a *assembly) status() localapi.Status {
	s := localapi.Status{
		Version: version, NodeName: a.node.Name, NodeID: a.idClaimer.ID(), Instance: a.instance, Started: a.started.UTC(),
		Suspended: a.ledger.Suspended(), KVDB: string(a.conf.Cadastre.KVDB.Type), StateDir: a.node.StateDir,
		PodBlocks: string(a.conf.Cadastre.PodBlocks), Rebooted: a.ledger.Rebooted(), Loop: a.loop.Status(), Live: true, Ready: true,
		Serving: a.serving.recovered.Load(),
	}
	k := a.source.Status()
	s.KVDBConnected, s.KVDBError, s.KVDBRevision, s.StateFrom = k.Connected, k.Error, k.Revision, k.From
	s.NodeIDGeneration, s.NodeIDProblem = a.idClaimer.Held().Generation, a.idClaimer.Problem()
	s.ConfigProblem = a.ipam.ConfigDiffers()
	s.Notes = append([]string{}, a.ipam.Notes()...)
	for _, key := range k.Unreadable {
		s.Notes = append(s.Notes, fmt.Sprintf("the value of %s in the cluster store cannot be read: node ID %d counts as taken, and there is no route to its node", key, kv.NodeRecordID(key)))
	}
	for _, p := range a.ipam.Problems() {
		s.Notes = append(s.Notes, p.Object+": "+p.Text)
	}
	s.Notes = append(s.Notes, a.doubtful()...)
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
	intents, _, _ := cni.ReadIntents(cni.IntentDir(a.socket()), os.Geteuid()) // what cannot be read is logged when it is applied
	s.Waiting = len(intents)
	s.Blocks = []localapi.Block{}
	for _, b := range a.ledger.Stats() {
		s.Blocks = append(s.Blocks, toBlock(b))
	}
	return s
}

// doubtful lists the addresses of the configuration that are reserved, or that something
// else has too.
func (a *assembly) doubtful() (all []string) {
	for _, e := range slices.Concat(a.conf.Tolerated, a.conf.DerivedTwice()) {
		all = append(all, "contiv.conf: "+e.Error())
	}
	return all
}

// admitAddresses refuses a configuration with such addresses on a node that begins. One
// that has blocks already goes on: its leases are safe, and only a person can move them.
// An address that follows from a node ID too is claimed in the store before it is used.
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

func toBlock(b ledger.BlockStat) localapi.Block {
	return localapi.Block{
		Pool: b.Pool, Family: b.Family.String(), Block: b.Block.String(), State: b.State.String(), Size: b.Size, Free: b.Free,
		Held: b.Held, Infra: b.Infra, Cooling: b.Cooling, Quarantined: b.Quarantined, Reserved: b.Reserved,
	}
}

// tcpListeners returns the read-only listener and that of the metrics, as far as the
// configuration asks for them.
func tcpListeners(conf contivconf.Cadastre, limits httpserver.Limits) (rest, metrics *restapi.TCP, err error) {
	if r := conf.REST; r.Listen != "" {
		if rest, err = tcpListener(r.Listen, httpserver.Files{Cert: r.Cert, Key: r.Key, ClientCA: r.ClientCA}, limits); err != nil {
			return nil, nil, fmt.Errorf("cadastre.rest: %w", err)
		}
	}
	if m := conf.Metrics; m.Enabled {
		if metrics, err = tcpListener(m.Listen, httpserver.Files{Cert: m.Cert, Key: m.Key, ClientCA: m.ClientCA}, limits); err != nil {
			return nil, nil, fmt.Errorf("cadastre.metrics: %w", err)
		}
	}
	return rest, metrics, nil
}

// tcpListener returns a listener with TLS, or without it if no certificate is named.
func tcpListener(address string, files httpserver.Files, limits httpserver.Limits) (*restapi.TCP, error) {
	tcp := &restapi.TCP{Listen: address, Limits: limits}
	if files.Cert == "" {
		return tcp, nil
	}
	var err error
	tcp.TLS, err = files.Config()
	return tcp, err
}
