// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/httpserver"
	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/kvdb/bolt"
	"github.com/cadastre/cadastre/kvdb/etcd"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/kubestate"
	"github.com/cadastre/cadastre/plugins/kubestate/apistore"
	"github.com/cadastre/cadastre/southbound"
	"github.com/cadastre/cadastre/southbound/linux"
)

// open opens the node's database and the stores, and assembles the agent.
func (a *Agent) open(ctx context.Context) (*assembly, error) {
	clock, err := newHostClock(a.node.BootIDFile)
	if err != nil {
		return nil, err
	}
	lock, err := lockRunDir(a.node.RunDir, os.Geteuid())
	if err != nil {
		return nil, err
	}
	running, err := a.openState(ctx, clock)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	running.lock = lock
	return running, nil
}

// openState opens the node's database and what depends on it.
func (a *Agent) openState(ctx context.Context, clock clock) (*assembly, error) {
	file, err := bolt.OpenFile(filepath.Join(a.node.StateDir, "cadastre.db"), bolt.FileOptions{
		Holder: "cadastre-agent of node " + a.node.Name,
		BootID: clock.bootID,
		Now:    clock.now,
		Fail:   a.fail,
		Notes:  bolt.Notes(a.node.RunDir, filepath.Join(a.node.StateDir, "cadastre.db")),
	})
	if err != nil {
		return nil, err
	}
	if err := leaveRunDir(file, a.node.RunDir, os.Geteuid(), a.log); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	running, err := a.openStores(ctx, clock, file)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return running, nil
}

// openStores opens the cluster store and the southbound.
func (a *Agent) openStores(ctx context.Context, clock clock, file *bolt.File) (*assembly, error) {
	instance, err := file.Local("instance")
	if err == nil && instance == "" {
		instance = newUUID()
		err = file.SetLocal("instance", instance)
	}
	if err != nil {
		return nil, err
	}
	d := dependencies{
		journal:   file.Journal(),
		history:   file.Journal(),
		disk:      file,
		records:   func(part string) ipamapi.Records { return file.Records(part) },
		instance:  instance,
		session:   newUUID(),
		machine:   machineOf(a.node, clock),
		random:    mathrand.Float64,
		handlers:  a.handlers,
		listeners: a.listeners,
		readers:   readersOf(a.conf.Cadastre),
		cloud:     a.cloud,
	}
	if d.shares, err = httpserver.ShareOfProcess(); err != nil {
		return nil, err
	}
	if a.conf.Cadastre.Dataplane == contivconf.DataplaneLinux {
		d.underlay = a.readUnderlay
	}
	if a.conf.Cadastre.Transport == contivconf.TransportWireGuard {
		if d.tunnel, err = openTunnelKey(a.node.StateDir, rand.Reader); err != nil {
			return nil, err
		}
	}
	if err := a.openStore(&d, file); err != nil {
		return nil, err
	}
	logMachine(a.log, d, a.node)
	if d.traces, err = a.openTraces(instance); err != nil {
		return nil, errors.Join(err, a.closeOpened(d))
	}
	if err := a.openSink(ctx, &d, file, clock.bootID); err != nil {
		return nil, errors.Join(err, a.closeOpened(d))
	}
	running, err := assemble(ctx, a.node, a.conf, a.log, clock, d)
	if err != nil {
		return nil, errors.Join(err, a.closeOpened(d))
	}
	running.file = file
	running.restapi.Database, running.restapi.Doubt = file, file
	if a.tail != nil {
		running.restapi.Logs = a.tail
	}
	running.suspendInDoubt()
	_ = file.Probe(
		ctx,
	) // a file that cannot be written is in assembly.ready, and damage that only a commit finds ends the process here
	return running, nil
}

// openStore opens the cluster store, and the mirror of one that other nodes use too.
func (a *Agent) openStore(d *dependencies, file *bolt.File) (err error) {
	conf, probing := a.conf.Cadastre.KVDB, a.conf.Cadastre.Controller.RemoteDBProbingInterval
	if conf.Type != contivconf.KVDBBolt {
		mirror := file.Mirror()
		if err := mirror.Damage(); err != nil {
			a.log.Error("the mirror of the cluster store is damaged; it is written again when the store answers",
				"error", err)
		}
		d.mirror = mirror
	}
	switch {
	case a.store != nil:
		d.store = a.store
		return nil
	case conf.Type == contivconf.KVDBBolt:
		d.store, err = file.Store()
		return err
	case conf.Type == contivconf.KVDBKubernetes:
		d.store, err = apistore.Open(apistore.Config{
			Kubeconfig:   conf.Kubeconfig,
			Node:         a.node.Name,
			NetResources: a.conf.Cadastre.PodBlocks == contivconf.PodBlocksNetResource,
			UserAgent:    "cadastre-agent",
			Timeout:      requestTimeout(probing),
			Log:          a.log,
		})
		return err
	}
	cfg := etcd.Config{
		Endpoints: conf.Endpoints,
		Prefix:    conf.Prefix,
		Username:  conf.Username,
		Log:       a.log,
		KeepAlive: 3 * probing,
	}
	files := etcd.Files{CA: conf.CA, Cert: conf.Cert, Key: conf.Key, Password: conf.PasswordFile}
	if err = files.Read(&cfg); err != nil {
		return keyed(conf, err)
	}
	d.store, err = etcd.Open(cfg)
	return err
}

// requestTimeout bounds one request to the API server: the time in which three probes
// fail.
func requestTimeout(probing time.Duration) time.Duration { return max(3*probing, 10*time.Second) }

// keyed names the configuration key of the file for etcd that is wrong.
func keyed(conf contivconf.KVDB, err error) error {
	bad := new(etcd.FileError)
	if !errors.As(err, &bad) {
		return err
	}
	switch bad.File {
	case etcd.FileCA:
		return fmt.Errorf("cadastre.kvdb.ca: %w", bad.Err)
	case etcd.FileCert:
		return fmt.Errorf("cadastre.kvdb.cert %s, key %s: %w", conf.Cert, conf.Key, bad.Err)
	default:
		return fmt.Errorf("cadastre.kvdb.passwordFile: %w", bad.Err)
	}
}

// openSink opens the southbound. Pods may run that the database does not know: their wires
// stay (strays).
func (a *Agent) openSink(ctx context.Context, d *dependencies, file *bolt.File, bootID string) (err error) {
	switch {
	case a.sink != nil:
		d.sink = a.sink
		return nil
	case a.conf.Cadastre.Dataplane == contivconf.DataplaneNone && a.conf.Cadastre.Transport == contivconf.TransportNone:
		d.sink = &controller.MemorySink{}
		return nil
	}
	d.returned = newReturned()
	d.strays = newStrays(a.log, file.Doubt)
	opt := southbound.Options{
		Log:   a.log,
		Spare: d.strays.spare,
		OnFailure: func(key string, err error) {
			a.log.Error("gave up making a value until the next resync", "key", key, "error", err)
		},
		OnReturn: d.returned.note,
	}
	all, err := a.descriptors(ctx, d.tunnel.private, bootID)
	if err != nil {
		return err
	}
	d.sink = southbound.New(opt, all...)
	return nil
}

// descriptors returns those of the data plane that the configuration names.
func (a *Agent) descriptors(ctx context.Context, privateKey, bootID string) ([]*southbound.Descriptor, error) {
	open := linux.Descriptors
	switch plane := a.conf.Cadastre.Dataplane; {
	case plane.IsOther():
		all, err := a.dataplane.Open(ctx, DataplaneEnvironment{Log: a.log, Node: a.node.Name, Conf: a.conf})
		if err != nil {
			return nil, fmt.Errorf("open data plane %s: %w", plane, err)
		}
		return all, nil
	case plane == contivconf.DataplaneNone:
		open = linux.Routes
	}
	return open(linux.Options{
		PrivateKey:   privateKey,
		AllowForward: a.conf.Cadastre.AllowForward,
		BootID:       bootID,
		Log:          a.log,
	})
}

// closeOpened closes what openStore and openSink have opened. Run closes what the
// caller has opened.
func (a *Agent) closeOpened(d dependencies) (err error) {
	if a.store == nil {
		err = d.store.Close()
	}
	if a.sink == nil && d.sink != nil {
		err = errors.Join(err, d.sink.Close())
	}
	closeTraces(d.traces, a.log)
	return err
}

// closeGiven closes the store and the southbound that the caller has opened.
func (a *Agent) closeGiven() (err error) {
	if a.store != nil {
		err = a.store.Close()
	}
	if a.sink != nil {
		err = errors.Join(err, a.sink.Close())
	}
	return err
}

// both runs both the repair of a and then that of b.
func both(a, b kubestate.Repair) kubestate.Repair {
	return func(known, found controller.KubeStateData, gone []string) []kubestate.Write {
		return append(a(known, found, gone), b(known, found, gone)...)
	}
}

// timing returns the part of the configuration that kubestate uses.
func timing(conf *contivconf.Config) kubestate.Timing {
	c := conf.Cadastre.Controller
	t := kubestate.Timing{DelayLocal: c.DelayLocalResync}
	if conf.Cadastre.KVDB.Type != contivconf.KVDBBolt {
		t.Probe = c.RemoteDBProbingInterval
		t.Spread = c.RemoteDBProbingInterval
		t.RetryLimit = max(c.RemoteDBProbingInterval, time.Second)
	}
	return t
}

// suspendInDoubt allocates no new address from a database that is in doubt.
func (a *assembly) suspendInDoubt() {
	d := a.file.Doubt()
	if d == nil {
		return
	}
	a.ledger.Suspend(
		"database",
		fmt.Sprintf(
			"%s; addresses may be in use that it does not know: %s",
			d.Reason,
			bolt.Cures,
		),
	)
	a.log.Error("no new address is allocated", "reason", a.ledger.Suspended())
}

// ofPods reports whether a value of the southbound follows from leases, or pods with leases
// need it.
func ofPods(key string) bool {
	return strings.HasPrefix(key, kv.SinkPodPrefix) ||
		strings.HasPrefix(key, kv.SinkUplinkPrefix) || strings.HasPrefix(key, kv.SinkSourcePrefix)
}
