// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"path"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/interfaces"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/podmanager"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
	"github.com/cadastre/cadastre/witness/findings"
)

// makeInterfaces makes the plugin that calls the cloud, with podBlocks interfaces.
func (a *assembly) makeInterfaces(ctx context.Context, d dependencies) (err error) {
	if a.conf.Cadastre.PodBlocks != contivconf.PodBlocksInterfaces {
		return nil
	}
	var families []ledger.Family
	for _, f := range a.conf.IPAM.Cluster.Families {
		families = append(families, ledger.FamilyOf(f.Pods.Addr()))
	}
	a.interfaces, err = interfaces.New(ctx, interfaces.Deps{
		Log:           a.log,
		Config:        a.conf.Cadastre.Interfaces,
		Families:      families,
		Ledger:        a.ledger,
		EventLoop:     a.loop,
		Records:       d.records("interfaces"),
		Open:          func(ctx context.Context) (cloud.Cloud, error) { return a.openCloud(ctx, d.cloud) },
		Instance:      a.machineID,
		Unschedulable: a.isUnschedulable,
		Now:           a.clock.now,
		Uptime:        a.clock.uptime,
		After:         time.After,
	})
	if err != nil {
		return err
	}
	return a.metrics.Registry.Register(a.interfaces.Metrics())
}

// openCloud opens the cloud of the program, and registers its metrics.
func (a *assembly) openCloud(ctx context.Context, given *givenCloud) (cloud.Cloud, error) {
	if given == nil {
		return nil, errors.New("this program has no cloud")
	}
	env := given.env
	env.Log = a.log
	opened, err := given.Open(ctx, env)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", given.Name, err)
	}
	for _, c := range opened.Collectors {
		if err := a.metrics.Registry.Register(c); err != nil {
			a.log.Warn("metrics of the cloud cannot be registered", "cloud", given.Name, "error", err)
		}
	}
	return opened.Cloud, nil
}

// machineID returns the ID of this machine in its cloud: that of the configuration, or
// the last part of the Node object's provider ID, "" if neither has it.
func (a *assembly) machineID(ctx context.Context) (string, error) {
	if id := a.conf.Cadastre.InstanceID; id != "" {
		return id, nil
	}
	node, err := a.nodeObject(ctx)
	if err != nil || node.GetProviderId() == "" {
		return "", err
	}
	return path.Base(node.ProviderId), nil
}

// isUnschedulable reports whether the Node object is cordoned.
func (a *assembly) isUnschedulable(ctx context.Context) (bool, error) {
	node, err := a.nodeObject(ctx)
	return node.GetUnschedulable(), err
}

// nodeObject reads the Node object of this node, nil if there is none.
func (a *assembly) nodeObject(ctx context.Context) (*kv.Node, error) {
	x, found, err := a.store.Get(ctx, kv.NodeKey(a.node.Name))
	if err != nil || !found {
		return nil, err
	}
	node := &kv.Node{}
	if err := proto.Unmarshal(x.Value, node); err != nil {
		return nil, fmt.Errorf("read Node %s: %w", a.node.Name, err)
	}
	return node, nil
}

// served counts a request.
func (a *assembly) served(s podmanager.Served) {
	a.metrics.Served(s)
	if a.interfaces != nil && s.Command == "ADD" && s.Code == cni.CodeFull {
		a.interfaces.Wake()
	}
}

// shortage returns the reason why the cloud gives no more addresses, "" for none.
func (a *assembly) shortage() string {
	if a.interfaces == nil {
		return ""
	}
	return a.interfaces.Shortage()
}

// interfacesStatus describes the interfaces, nil if blocks are not of interfaces.
func (a *assembly) interfacesStatus() *localapi.Interfaces {
	if a.interfaces == nil {
		return nil
	}
	s := a.interfaces.Status()
	view := &localapi.Interfaces{
		Cloud:         s.Cloud,
		Instance:      s.Instance,
		Interfaces:    s.Interfaces,
		MaxInterfaces: s.MaxInterfaces,
		Returning:     s.Returning,
		Shortage:      a.interfaces.Shortage(),
	}
	for _, f := range s.Families {
		view.Families = append(view.Families, localapi.InterfaceFamily{
			Family:   f.Family.String(),
			Total:    f.Total,
			Assigned: f.Assigned,
			Cooling:  f.Cooling,
			Free:     f.Free(),
			Prefixes: f.Prefixes,
		})
	}
	return view
}

// cloudReading returns the blocks of the ledger as the last reading of the cloud has them.
func (a *assembly) cloudReading() *findings.Cloud {
	s := a.interfaces.Status()
	if s.Read.IsZero() {
		return nil
	}
	c := &findings.Cloud{Name: s.Cloud, Machine: s.Instance, Read: s.Read}
	for _, b := range s.Placed {
		c.Blocks = append(c.Blocks, findings.CloudBlock{
			Pool:      ipam.PodPool,
			Prefix:    b.Prefix,
			Interface: b.Interface,
			On:        b.On,
		})
	}
	return c
}
