// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package witness_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/witness"
)

// Each view describes itself as status and reclaim list show it.
func TestTheReportOfAView(t *testing.T) {
	at := time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	engine := &witness.EngineView{Taken: at, Version: "28.2.2", Networks: []witness.EngineNetwork{
		{Endpoints: make([]witness.EngineEndpoint, 2)}, {Endpoints: make([]witness.EngineEndpoint, 1)},
	}}
	for name, c := range map[string]struct {
		view interface{ Report() witness.Report }
		want witness.Report
	}{
		"kernel": {&witness.KernelView{Taken: at, Limits: "no CAP_SYS_ADMIN", Namespaces: make([]witness.Namespace, 3)},
			witness.Report{Name: witness.Kernel, Source: "netlink", Limits: "no CAP_SYS_ADMIN", Objects: 3}},
		"hidden namespaces": {&witness.KernelView{Taken: at, Hidden: "/run/netns/x", Limits: "no CAP_SYS_ADMIN"},
			witness.Report{Name: witness.Kernel, Source: "netlink", Limits: "/run/netns/x"}},
		"runtime": {&witness.RuntimeView{Taken: at, Source: "containerd 2.1.4 at /run/c.sock", Sandboxes: make([]witness.Sandbox, 2)},
			witness.Report{Name: witness.Runtime, Source: "containerd 2.1.4 at /run/c.sock", Objects: 2}},
		"engine": {engine, witness.Report{
			Name: witness.Engine, Source: "Docker 28.2.2", Objects: 3,
			Limits: "a container that the engine has lost is not seen; in a swarm, neither are tasks of other nodes",
		}},
		"cluster": {&witness.ClusterView{Taken: at, Revision: 7, Pods: make([]witness.ClusterPod, 4)},
			witness.Report{Name: witness.Cluster, Source: "state of revision 7", Objects: 4}},
	} {
		t.Run(name, func(t *testing.T) {
			c.want.Read = at
			NewWithT(t).Expect(c.view.Report()).To(Equal(c.want))
		})
	}
}
