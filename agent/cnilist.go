// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cadastre/cadastre/internal/backoff"
	"github.com/cadastre/cadastre/plugins/podmanager/conflist"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// listWriter writes the CNI list when the agent can serve for the first time. The list
// stays when the agent ends.
type listWriter struct {
	a       *assembly
	random  func() float64
	problem atomic.Pointer[string]             // of the last attempt; nil: none
	ports   atomic.Pointer[conflist.HostPorts] // nil: not looked for yet
}

// run writes the list, and again after a failure, until ctx ends.
func (w *listWriter) run(ctx context.Context) error {
	ready := backoff.Policy{First: 20 * time.Millisecond, Limit: time.Second}
	failed := backoff.Policy{First: time.Second, Limit: time.Minute, Random: w.random}
	for unready, failures := 0, 0; ; {
		wait := time.Duration(0)
		if err := w.serves(); err != nil {
			unready++
			wait = ready.After(unready)
		} else if err := w.write(ctx); err != nil {
			failures++
			wait = failed.After(failures)
			w.a.log.Warn("the CNI list is not written yet: the runtime cannot find the plugin", "error", err)
		} else {
			<-ctx.Done()
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// serves returns the reason why a runtime should not find the plugin yet.
func (w *listWriter) serves() error {
	if err := w.a.ready(); err != nil {
		return err
	}
	return wires{w.a}.Ready()
}

func (w *listWriter) write(ctx context.Context) error {
	changed, err := w.render(ctx)
	if err != nil {
		text := err.Error()
		w.problem.Store(&text)
		return err
	}
	w.problem.Store(nil)
	if dir := w.a.conf.Cadastre.CNI.ConfDir; changed {
		w.a.log.Info("the CNI list is written", "folder", dir, "file", conflist.FileName)
	}
	for _, note := range w.notes() {
		w.a.log.Warn("the runtime does not use the CNI list", "reason", note)
	}
	return nil
}

// render writes the list that this node needs.
func (w *listWriter) render(ctx context.Context) (changed bool, err error) {
	conf := w.a.conf.Cadastre.CNI
	list := conflist.List{Network: conf.Network}
	if w.a.node.RunDir != DefaultNode().RunDir {
		if list.Socket, err = filepath.Abs(w.a.socket()); err != nil {
			return false, fmt.Errorf("write the CNI list: %w", err)
		}
	}
	ports := conflist.FindPortMap(ctx, conf.BinDir)
	switch w.ports.Store(&ports); {
	case ports.Versions == nil:
		w.a.log.Warn("the CNI list has no portmap, so pods have no host ports", "reason", ports.Reason)
	case ports.Reason != "":
		w.a.log.Info("the versions of portmap are assumed", "version", ports.Versions, "reason", ports.Reason)
	}
	list.PortMap = ports.Versions
	text, err := list.Render()
	if err != nil {
		return false, err
	}
	return conflist.Write(conf.ConfDir, text)
}

// hostPorts tells whether pods get host ports, nil if that is not known or not the list's.
func (w *listWriter) hostPorts() *localapi.HostPorts {
	if w == nil {
		return nil
	}
	ports := w.ports.Load()
	if ports == nil {
		return nil
	}
	return &localapi.HostPorts{Versions: append([]string{}, ports.Versions...), Reason: ports.Reason}
}

// notes returns what stands between the runtime and the list, for the status.
func (w *listWriter) notes() (all []string) {
	if w == nil {
		return nil
	}
	if problem := w.problem.Load(); problem != nil {
		all = append(all, *problem)
	}
	dir := w.a.conf.Cadastre.CNI.ConfDir
	before, err := conflist.Before(dir)
	if err != nil {
		return append(all, err.Error())
	}
	if len(before) > 0 {
		all = append(all, fmt.Sprintf(
			"a runtime takes the first file of %s, which is %s and not %s: remove %s if this agent is to make the pods' interfaces",
			dir,
			before[0],
			conflist.FileName,
			strings.Join(before, ", "),
		))
	}
	return all
}
