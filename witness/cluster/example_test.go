// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"fmt"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/kubestate"
	"github.com/cadastre/cadastre/witness/cluster"
)

// The reader is a handler of the event loop, which calls Resync and Update.
func ExampleReader() {
	r := cluster.New(cluster.Options{
		Node:   "node-a",
		Status: func() kubestate.Status { return kubestate.Status{Connected: true} },
	})
	_, err := r.Read(context.Background())
	fmt.Println(err)
	_ = r.Resync(&controller.DBResync{Revision: 7}, controller.KubeStateData{
		kubestate.Nodes: {kv.NodeKey("node-a"): &kv.Node{Name: "node-a"}},
	}, 1, nil)
	view, _ := r.Read(context.Background())
	fmt.Println(view.Revision, view.Nodes[0].Name)
	// Output:
	// the state of the cluster has not been read yet
	// 7 node-a
}
