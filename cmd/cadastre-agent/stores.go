// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/kvdb/bolt"
	"github.com/cadastre/cadastre/kvdb/etcd"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipnet/linuxsink"
	"github.com/cadastre/cadastre/plugins/kubestate"
	"github.com/cadastre/cadastre/plugins/kubestate/apistore"
)

// openStore opens the cluster store, and for one that is elsewhere the mirror of it.
func openStore(p *parts, conf contivconf.KVDB, probing time.Duration, file *bolt.File, who whose) (err error) {
	switch conf.Type {
	case contivconf.KVDBBolt:
		p.store, err = file.Store()
		return err
	case contivconf.KVDBKubernetes:
		p.mirror = file.Mirror()
		p.store, err = apistore.Open(apistore.Config{Kubeconfig: conf.Kubeconfig, Node: who.node, UserAgent: "cadastre-agent", Timeout: requestTimeout(probing), Log: who.log})
		return err
	}
	log := who.log
	cfg := etcd.Config{Endpoints: conf.Endpoints, Prefix: conf.Prefix, Username: conf.Username, Log: log, KeepAlive: 3 * probing}
	if cfg.TLS, err = clientTLS(conf); err != nil {
		return err
	}
	if conf.PasswordFile != "" {
		password, err := os.ReadFile(conf.PasswordFile)
		if err != nil {
			return fmt.Errorf("cadastre.kvdb.passwordFile: %w", err)
		}
		cfg.Password = strings.TrimRight(string(password), "\r\n")
	}
	p.mirror = file.Mirror()
	p.store, err = etcd.Open(cfg)
	return err
}

// whose store it is.
type whose struct {
	node string
	log  *slog.Logger
}

// requestTimeout is how long the API server may take for one request: as long as
// three probes fail in.
func requestTimeout(probing time.Duration) time.Duration { return max(3*probing, 10*time.Second) }

// clientTLS is how etcd is spoken to, nil where the configuration has no file for it.
func clientTLS(conf contivconf.KVDB) (*tls.Config, error) {
	if conf.CA == "" && conf.Cert == "" {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if conf.CA != "" {
		pem, err := os.ReadFile(conf.CA)
		if err != nil {
			return nil, fmt.Errorf("cadastre.kvdb.ca: %w", err)
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("cadastre.kvdb.ca %s: it has no certificate", conf.CA)
		}
	}
	if conf.Cert != "" {
		cert, err := tls.LoadX509KeyPair(conf.Cert, conf.Key)
		if err != nil {
			return nil, fmt.Errorf("cadastre.kvdb.cert %s, key %s: %w", conf.Cert, conf.Key, err)
		}
		c.Certificates = []tls.Certificate{cert}
	}
	return c, nil
}

// openSink opens the southbound.
func openSink(p *parts, routes contivconf.Routes, log *slog.Logger) (err error) {
	if routes == contivconf.RoutesNone {
		p.sink = &controller.MemorySink{}
		return nil
	}
	p.sink, err = linuxsink.New(linuxsink.Options{OnFailure: func(key string, err error) {
		log.Error("a route could not be made, and is not tried again before the next resync", "key", key, "error", err)
	}})
	return err
}

// both keeps up what a keeps up and what b does.
func both(a, b kubestate.Upkeep) kubestate.Upkeep {
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
