// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/effort"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// crowd sends requests from 32 callers at once.
func crowd[T any](all []T, request func(T)) {
	const callers = 32
	var wg sync.WaitGroup
	queue := make(chan T)
	for range callers {
		wg.Go(func() {
			for x := range queue {
				request(x)
			}
		})
	}
	for _, x := range all {
		queue <- x
	}
	close(queue)
	wg.Wait()
}

// Scenario 8: 600 pods (60 in "make test") with 17 interfaces each start at once. Each of
// the interfaces has an address of its own, also after the agent was killed.
func TestSixHundredPodsWithSeventeenInterfaces(t *testing.T) {
	n := newNode(t, "node-1", `
ipamConfig: {podSubnetCIDR: 10.0.0.0/10, podSubnetOneNodePrefixLen: 18}
cadastre: {controller: {recordEventHistory: false}, log: {level: warn}}
`)
	const interfaces = 17
	pods := effort.Times(t, 600)
	var all []sandbox
	for i := range interfaces {
		for p := range pods {
			all = append(all, sandbox{fmt.Sprint("pod-", p), fmt.Sprint("c", p), fmt.Sprint("net", i)})
		}
	}
	var mu sync.Mutex
	owners, failures := map[netip.Addr]sandbox{}, []error{}
	crowd(all, func(s sandbox) {
		p, err := n.cni("ADD", s)
		mu.Lock()
		defer mu.Unlock()
		switch other, taken := owners[p.Addr()]; {
		case err != nil:
			failures = append(failures, err)
		case taken:
			failures = append(failures, fmt.Errorf("%s was given to %v and to %v", p, other, s))
		}
		owners[p.Addr()] = s
	})
	n.Expect(failures).To(BeEmpty())
	n.Expect(owners).To(HaveLen(pods * interfaces))
	n.kill()
	n.start(t)
	held := n.holders(t)
	n.Expect(held).To(HaveLen(len(owners)))
	for a, s := range owners {
		n.Expect(held[a.String()]).To(Equal(s.container + " " + s.ifName))
	}
}

// Scenario 20: more pods than free addresses ask at once, and a second prefix is added
// afterwards. As many pods as there are addresses get one. The others are refused as on
// a full node, hold nothing, and get one of the second prefix when they try again.
func TestABlockFillsWhileManyChooseFromIt(t *testing.T) {
	n := newNode(t, "node-1", "ipamConfig: {podSubnetCIDR: 10.1.0.0/16, podSubnetOneNodePrefixLen: 28}\n")
	const free, pods = 12, 100
	var all []sandbox
	for p := range pods {
		all = append(all, sandbox{fmt.Sprint("pod-", p), fmt.Sprint("c", p), "eth0"})
	}
	round := func(sandboxes []sandbox) (given map[netip.Addr]sandbox, refused []sandbox) {
		var mu sync.Mutex
		given = map[netip.Addr]sandbox{}
		crowd(sandboxes, func(s sandbox) {
			p, err := n.cni("ADD", s)
			mu.Lock()
			defer mu.Unlock()
			var full *cni.Error
			if errors.As(err, &full) && full.Code == cni.CodeFull {
				refused = append(refused, s)
				return
			}
			n.Expect(err).NotTo(HaveOccurred())
			n.Expect(given).NotTo(HaveKey(p.Addr()))
			given[p.Addr()] = s
		})
		return given, refused
	}
	first, refused := round(all)
	n.Expect(first).To(HaveLen(free))
	n.Expect(refused).To(HaveLen(pods - free))
	n.Expect(n.holders(t)).To(HaveLen(free))

	file := filepath.Join(n.Dir, "second.yaml")
	n.Expect(os.WriteFile(file, []byte("pools: [{name: pods-2, ranges: [{cidr: 10.2.0.0/16, oneNodePrefixLen: 24}]}]\n"), 0o600)).To(Succeed())
	_, err := n.CLI(t.Context(), "apply", "-f", file)
	n.Expect(err).NotTo(HaveOccurred())
	n.Eventually(func() (string, error) { return n.CLI(t.Context(), "status") }, patience).Should(ContainSubstring("10.2.1.0/24 active"))
	second, still := round(refused)
	n.Expect(still).To(BeEmpty())
	n.Expect(second).To(HaveLen(pods - free))
	for a, s := range first {
		n.Expect(second).NotTo(HaveKey(a))
		n.Expect(n.add(s)).To(Equal(a), "and keeps it")
	}
}
