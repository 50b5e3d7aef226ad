// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"path/filepath"

	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/bolt"
	"github.com/cadastre/cadastre/kvdb/etcd"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/kubestate"
)

// openStore opens the cluster store: the database itself, or etcd.
func (p *Plugin) openStore() (err error) {
	conf := p.conf.Cadastre.KVDB
	switch conf.Type {
	case contivconf.KVDBBolt:
		p.store, err = p.file.Store()
		return err
	case contivconf.KVDBEtcd:
		cfg := etcd.Config{
			Endpoints: conf.Endpoints,
			Prefix:    conf.Prefix,
			Username:  conf.Username,
			Log:       p.log,
			KeepAlive: 3 * p.conf.Cadastre.Controller.RemoteDBProbingInterval,
		}
		files := etcd.Files{CA: conf.CA, Cert: conf.Cert, Key: conf.Key, Password: conf.PasswordFile}
		if err := files.Read(&cfg); err != nil {
			return fmt.Errorf("cadastre.kvdb: %w", err)
		}
		p.store, err = etcd.Open(cfg)
		return err
	default:
		return fmt.Errorf("cadastre.kvdb.type %q: this agent has no client of the API server: want %s or %s",
			conf.Type, contivconf.KVDBBolt, contivconf.KVDBEtcd)
	}
}

// GetAgentLabel returns the name of the node.
func (p *Plugin) GetAgentLabel() string { return p.name }

// Conf returns the configuration.
func (p *Plugin) Conf() *contivconf.Config { return p.conf }

// ContivConf returns the configuration as the plugins read it.
func (p *Plugin) ContivConf() *contivconf.ContivConf { return p.api }

// Store returns the cluster store.
func (p *Plugin) Store() kvdb.Store { return p.store }

// File returns the node's database.
func (p *Plugin) File() *bolt.File { return p.file }

// Alone reports whether only this node uses the store.
func (p *Plugin) Alone() bool { return p.conf.Cadastre.KVDB.Type == contivconf.KVDBBolt }

// Mirror returns the mirror of a store that other nodes use too, nil if none does.
func (p *Plugin) Mirror() kubestate.Mirror {
	if p.Alone() {
		return nil
	}
	return p.file.Mirror()
}

// Ledger returns the ledger.
func (p *Plugin) Ledger() *ledger.Ledger { return p.ledger }

// Stage returns what the event handlers stage in the ledger.
func (p *Plugin) Stage() *ledger.Stage { return p.stage }

// Instance returns the UUID of the state directory.
func (p *Plugin) Instance() string { return p.instance }

// Session returns the UUID of this run.
func (p *Plugin) Session() string { return p.session }

// BootID returns the boot ID of the machine.
func (p *Plugin) BootID() string { return p.bootID }

// Socket returns the path of the socket of the local API.
func (p *Plugin) Socket() string { return filepath.Join(p.RunDir, SocketName) }
