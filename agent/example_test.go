// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/agent"
	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipam"
)

// Announcer is a plugin of another program. It announces the pod subnet of this node,
// to a router for example. Only the event loop calls it.
type Announcer struct {
	ipam      ipam.API
	announced chan string
}

func (a *Announcer) String() string { return "announcer" }

// HandlesEvent selects the event that changes the pod subnet.
func (a *Announcer) HandlesEvent(ev controller.Event) bool {
	_, changed := ev.(*ipam.PodCIDRChange)
	return changed
}

// Resync is called for a PodCIDRChange, which is a resync, after ipam has handled it.
// ipam opens a subnet when the node holds its claim, which is a change of its own.
func (a *Announcer) Resync(ev controller.Event, _ controller.KubeStateData, _ int, _ controller.ResyncOperations) error {
	if open := a.ipam.PodSubnetThisNode(); open != nil {
		a.announced <- fmt.Sprintf("%v, pods have %v", ev.(*ipam.PodCIDRChange).LocalPodCIDR, open)
	}
	return nil
}

// Update is not called: the plugin handles no updates.
func (a *Announcer) Update(controller.Event, controller.UpdateOperations) (string, error) {
	return "", nil
}

// Revert is not called: the plugin handles no updates.
func (a *Announcer) Revert(controller.Event) error { return nil }

// A program runs an agent with a plugin of its own, which learns of each change of the
// node's pod subnet. The agent works on files below a directory of the example.
func Example() {
	dir, err := os.MkdirTemp("", "agent")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)

	conf, _, err := contivconf.Parse([]byte("ipamConfig: {useExternalIPAM: true, podSubnetCIDR: 10.1.0.0/16}"))
	if err != nil {
		fmt.Println(err)
		return
	}
	node := agent.DefaultNode()
	node.Name = "node-a"
	node.StateDir, node.RunDir = filepath.Join(dir, "state"), filepath.Join(dir, "run")
	store := mem.New()
	announced := make(chan string, 8)
	a, err := agent.New(conf,
		agent.WithNode(node),
		agent.WithStore(store),
		agent.WithEventHandlers(func(p agent.Plugins) []controller.EventHandler {
			return []controller.EventHandler{&Announcer{ipam: p.IPAM, announced: announced}}
		}),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- a.Run(ctx) }()

	// What the reflector writes when Kubernetes gives the node a podCIDR.
	value, err := proto.Marshal(&kv.Node{Name: "node-a", PodCidrs: []string{"10.1.7.0/24"}})
	if err == nil {
		_, err = store.Txn(ctx, nil, []kvdb.Op{kvdb.Put(kv.NodeKey("node-a"), value)})
	}
	fmt.Println("podCIDR written:", err)
	fmt.Println("announced:", <-announced)
	stop()
	fmt.Println("ended:", <-ended)
	// Output:
	// podCIDR written: <nil>
	// announced: 10.1.7.0/24, pods have 10.1.7.0/24
	// ended: <nil>
}
