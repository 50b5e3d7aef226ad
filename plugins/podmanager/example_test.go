// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package podmanager_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/podmanager"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// program lets the plugin push events before the controller exists, which needs the
// plugin as a handler.
type program struct{ *controller.Controller }

type agentLabel string

func (l agentLabel) GetAgentLabel() string { return string(l) }

// An agent of an event loop, podmanager and ipam, without a store or a southbound, answers
// an ADD.
func ExamplePodManager_Serve() {
	ctx, stop := context.WithCancel(context.Background())
	leases, err := ledger.Open(ctx, ledger.NullJournal{}, ledger.Options{})
	if err != nil {
		panic(err)
	}
	stage := leases.Begin()
	var p program
	pods := podmanager.NewPlugin(podmanager.Deps{
		PluginDeps: controller.PluginDeps{Log: slog.New(slog.DiscardHandler)},
		EventLoop:  &p,
		Ledger:     leases,
		IntentDir:  "/nowhere",
		UID:        os.Getuid(),
	})
	addresses := ipam.NewPlugin(ipam.UseDeps(func(d *ipam.Deps) {
		d.NodeSync, d.ContivConf = nodeFive{}, contivconf.NewPlugin(contivconf.Default())
		d.ServiceLabel, d.PodManager = agentLabel("node-a"), pods
		d.Ledger, d.Stage = leases, stage
	}))
	if err := addresses.Init(); err != nil {
		panic(err)
	}
	p.Controller = controller.New(controller.DefaultConfig(), controller.Deps{
		Handlers:   []controller.EventHandler{pods, addresses},
		Committers: []controller.Committer{stage, addresses},
	})
	var work sync.WaitGroup
	work.Go(func() { _ = p.Run(ctx) })
	synced := make(chan error, 1)
	resync := &controller.DBResync{OnDone: func(err error) { synced <- err }}
	if err := p.PushEventWait(ctx, resync); err != nil {
		panic(err)
	}
	if err := <-synced; err != nil {
		panic(err)
	}

	request := cni.Request{Command: "ADD", Network: "pods", ContainerID: "4f1c", IfName: "eth0"}
	reply, err := pods.Serve(ctx, request)
	if err != nil {
		panic(err)
	}
	pods.Delivered(request, reply, nil)
	fmt.Println(reply.IPs[0].Address)
	stop()
	work.Wait()
	// Output:
	// 10.1.5.2/24
}
