// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package node opens what belongs to the node for the other plugins: contiv.conf, the
// database with the ledger, and the cluster store.
//
// Init reads the configuration and opens the files; it fails if the configuration needs a
// network that Ligato cannot carry, or if another agent has the directories. Close closes
// them. The getters answer from Init on and may be called by any goroutine.
package node

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/ligato/cn-infra/config"
	"github.com/ligato/cn-infra/infra"
	"github.com/ligato/cn-infra/servicelabel"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/bolt"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/ligato/slogger"
	"github.com/cadastre/cadastre/ligato/southbound"
	"github.com/cadastre/cadastre/plugins/contivconf"
)

// Deps holds the dependencies of the plugin.
type Deps struct {
	infra.PluginDeps
	ServiceLabel servicelabel.ReaderAPI // the label of the agent is the name of the node, as Kubernetes has it
	StateDir     string                 // of the database
	RunDir       string                 // of the socket; a reboot must empty it
	ConfigFile   string                 // contiv.conf; "": that of the flag -contiv-config
	BootIDFile   string
}

// Plugin is the node. Ended is closed when the agent has to end.
type Plugin struct {
	Deps
	log      *slog.Logger
	name     string
	conf     *contivconf.Config
	api      *contivconf.ContivConf
	lock     *os.File
	file     *bolt.File
	store    kvdb.Store
	ledger   *ledger.Ledger
	stage    *ledger.Stage
	instance string
	session  string
	bootID   string
	ended    chan struct{}
	end      sync.Once
	mu       sync.Mutex
	failure  error
}

// NewPlugin returns the plugin. Its directories are those of an installed agent.
func NewPlugin() *Plugin {
	p := &Plugin{Deps: Deps{
		ServiceLabel: &servicelabel.DefaultPlugin,
		StateDir:     "/var/lib/cadastre",
		RunDir:       "/run/cadastre",
		BootIDFile:   "/proc/sys/kernel/random/boot_id",
	}, ended: make(chan struct{})}
	slogger.Named(&p.PluginDeps, "cadastre-node")
	p.Cfg = config.ForPlugin(
		p.String(),
		config.WithCustomizedFlag("contiv-config", "contiv.conf", "the configuration `file` of Cadastre"),
		config.WithExtraFlags(p.flags),
	)
	return p
}

// flags adds the directories of the node, which have the values of Deps by default.
func (p *Plugin) flags(set *config.FlagSet) {
	set.StringVar(&p.StateDir, "cadastre-state-dir", p.StateDir, "the `directory` of the database")
	set.StringVar(&p.RunDir, "cadastre-run-dir", p.RunDir, "the `directory` of the socket; a reboot must empty it")
}

// Init reads the configuration and opens the node's files.
func (p *Plugin) Init() error {
	p.log = slogger.New(p.Log)
	if err := p.open(); err != nil {
		return errors.Join(fmt.Errorf("init %s: %w", p, err), p.Close())
	}
	return nil
}

func (p *Plugin) open() error {
	p.name = p.ServiceLabel.GetAgentLabel()
	if p.ConfigFile == "" {
		p.ConfigFile = p.Cfg.GetConfigName()
	}
	if p.ConfigFile == "" {
		return errors.New("the file of the configuration is not found: want -contiv-config FILE, " +
			"or contiv.conf in the directory of -config-dir")
	}
	conf, _, err := contivconf.LoadInUse(p.ConfigFile)
	if err != nil {
		return err
	}
	for _, n := range conf.Notes {
		p.log.Info("configuration: "+n.Text, "keys", strings.Join(n.Keys, ", "))
	}
	if err := southbound.CheckConfig(conf, p.name); err != nil {
		return fmt.Errorf("%s: %w", p.ConfigFile, err)
	}
	p.conf, p.api = conf, contivconf.NewPlugin(conf)
	bootID, err := os.ReadFile(p.BootIDFile)
	if err != nil {
		return fmt.Errorf("read the boot ID: %w", err)
	}
	p.bootID, p.session = strings.TrimSpace(string(bootID)), newUUID()
	if p.lock, err = lockRunDir(p.RunDir); err != nil {
		return err
	}
	if err := p.openFile(); err != nil {
		return err
	}
	return p.openStore()
}

func (p *Plugin) openFile() (err error) {
	p.file, err = bolt.OpenFile(filepath.Join(p.StateDir, "cadastre.db"), bolt.FileOptions{
		Holder: "cadastre-agent-ligato of node " + p.name,
		BootID: p.bootID,
		Now:    time.Now,
		Fail:   p.Fail,
		Notes:  bolt.Notes(p.RunDir, filepath.Join(p.StateDir, "cadastre.db")),
	})
	if err != nil {
		return err
	}
	if p.instance, err = p.file.Local("instance"); err == nil && p.instance == "" {
		p.instance = newUUID()
		err = p.file.SetLocal("instance", p.instance)
	}
	if err != nil {
		return err
	}
	p.ledger, err = ledger.Open(context.Background(), p.file.Journal(), ledger.Options{
		Log:    p.log,
		Now:    time.Now,
		Uptime: uptime,
		BootID: p.bootID,
		History: ledger.HistoryOptions{
			Reader:  p.file.Journal(),
			Entries: p.conf.Cadastre.History.Entries,
			Age:     p.conf.Cadastre.History.Age,
		},
	})
	if err != nil {
		return err
	}
	p.stage = p.ledger.Begin()
	if d := p.file.Doubt(); d != nil {
		p.ledger.Suspend("database", d.Reason+"; addresses may be in use that it does not know: "+
			bolt.Cures)
		p.log.Error("no new address is allocated", "reason", p.ledger.Suspended())
	}
	return nil
}

// Fail ends the agent, which then returns err. Any goroutine may call it.
func (p *Plugin) Fail(err error) {
	p.mu.Lock()
	p.failure = errors.Join(p.failure, err)
	p.mu.Unlock()
	p.log.Error("the agent ends", "error", err)
	p.end.Do(func() { close(p.ended) })
}

// Ended is closed when a part of the agent has failed, for Ligato's option QuitOnClose.
func (p *Plugin) Ended() chan struct{} { return p.ended }

// Failure returns the errors that have ended the agent, nil if another one has ended it.
func (p *Plugin) Failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failure
}

// Close closes the store, the database and the lock. A further call does nothing.
func (p *Plugin) Close() error {
	var errs []error
	if p.store != nil {
		errs = append(errs, p.store.Close())
	}
	if p.file != nil {
		errs = append(errs, p.file.Close())
	}
	if p.lock != nil {
		errs = append(errs, p.lock.Close())
	}
	p.store, p.file, p.lock = nil, nil, nil
	return errors.Join(errs...)
}

func uptime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(fmt.Sprintf("CLOCK_BOOTTIME: %v", err)) // every Linux since 2.6.39 has it
	}
	return time.Duration(ts.Nano())
}

func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:])
}
