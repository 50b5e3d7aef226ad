// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"time"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/kvdb/bolt"
	"github.com/cadastre/cadastre/kvdb/etcd"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipnet/linuxsink"
	"github.com/cadastre/cadastre/plugins/kubestate"
	"github.com/cadastre/cadastre/plugins/kubestate/apistore"
)

// openStore opens the cluster store, and the mirror of one that other nodes use too.
func (a *Agent) openStore(d *dependencies, file *bolt.File) (err error) {
	conf, probing := a.conf.Cadastre.KVDB, a.conf.Cadastre.Controller.RemoteDBProbingInterval
	if conf.Type != contivconf.KVDBBolt {
		d.mirror = file.Mirror()
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

// requestTimeout is how long the API server may take for one request: as long as
// three probes fail in.
func requestTimeout(probing time.Duration) time.Duration { return max(3*probing, 10*time.Second) }

// keyed says by its key which file for etcd is not as it should be.
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

// openSink opens the southbound.
func (a *Agent) openSink(d *dependencies) (err error) {
	switch {
	case a.sink != nil:
		d.sink = a.sink
		return nil
	case a.conf.Cadastre.Routes == contivconf.RoutesNone:
		d.sink = &controller.MemorySink{}
		return nil
	}
	d.sink, err = linuxsink.New(linuxsink.Options{OnFailure: func(key string, err error) {
		a.log.Error("gave up making a route until the next resync", "key", key, "error", err)
	}})
	return err
}

// both keeps up what a keeps up and what b does.
func both(a, b kubestate.Repair) kubestate.Repair {
	return func(known, found controller.KubeStateData, gone []string) []kubestate.Write {
		return append(a(known, found, gone), b(known, found, gone)...)
	}
}

// settle is how long the first node of a store waits for others: as long as
// these take to notice that the store is back. A store of this node has no others.
func settle(conf *contivconf.Config) time.Duration {
	if conf.Cadastre.KVDB.Type == contivconf.KVDBBolt {
		return 0
	}
	c := conf.Cadastre.Controller
	return min(3*c.RemoteDBProbingInterval, c.StartupResyncDeadline/2)
}

// timing is the source's part of the configuration.
func timing(conf *contivconf.Config) kubestate.Timing {
	c := conf.Cadastre.Controller
	t := kubestate.Timing{DelayLocal: c.DelayLocalResync}
	if conf.Cadastre.KVDB.Type != contivconf.KVDBBolt {
		t.Probe, t.Spread, t.RetryLimit = c.RemoteDBProbingInterval, c.RemoteDBProbingInterval, max(c.RemoteDBProbingInterval, time.Second)
	}
	return t
}
