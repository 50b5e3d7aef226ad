// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"context"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/kubestate"
)

func TestANewPoolHasNoReservedNetwork(t *testing.T) {
	cfg, _, err := contivconf.Parse([]byte("nodeConfig: [{nodeName: a, mainVPPInterface: {ip: 192.168.50.10/24}}]"))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for cidr, want := range map[string]string{
		"127.16.0.0/16":   "127.0.0.0/8 (loopback), which no host can have: write",
		"169.254.0.0/16":  "169.254.0.0/16 (link-local)",
		"224.0.0.0/16":    "224.0.0.0/4 (multicast)",
		"0.0.0.0/0":       "0.0.0.0/8",
		"fe80::/48":       "fe80::/10 (link-local)",
		"ff05::/48":       "ff00::/8 (multicast)",
		"::/48":           "::/128",
		"192.168.50.0/24": "overlaps nodeConfig[0].mainVPPInterface.ip, 192.168.50.10/32: give it addresses of its own",
		"10.7.0.0/16":     "",
	} {
		t.Run(cidr, func(t *testing.T) {
			g := NewWithT(t)
			store := newStore(t)
			length := 28
			if cidr[0] == 'f' || cidr[0] == ':' {
				length = 64
			}
			file := fmt.Appendf(nil, "pools: [{name: more, ranges: [{cidr: %q, oneNodePrefixLen: %d}]}]", cidr, length)
			plan, err := ipam.Apply(context.Background(), store, ipam.Reserved(contivconf.NewPlugin(cfg)), file, true)
			g.Expect(err).NotTo(HaveOccurred())
			if want == "" {
				g.Expect(plan.Err()).NotTo(HaveOccurred())
				return
			}
			g.Expect(plan.Err()).To(MatchError(And(ContainSubstring(fmt.Sprintf("pools[0].ranges[0].cidr: %q ", cidr)), ContainSubstring(want))))
		})
	}
}

// A cluster whose store has such a pool keeps it: pods have addresses of it.
func TestAReservedPoolThatIsInUseGoesOn(t *testing.T) {
	g := NewWithT(t)
	n := newNode(t, defaults, 5)
	old := &kv.Pool{Name: "default", Network: "default", Generation: 1, Ranges: []*kv.PoolRange{{Cidr: "169.254.0.0/16", OneNodePrefixLen: 24}}}
	n.put(kubestate.Pools, kv.PoolKey("default"), old)
	g.Expect(n.resync()).To(Succeed())
	g.Expect(n.add("web")).To(Equal("169.254.5.2"))

	store := newStore(t, old)
	store.node(5, "default 1 open 1")
	for _, file := range []string{
		`pools: [{name: default, ranges: [{cidr: 169.254.0.0/16, oneNodePrefixLen: 24}]}]`, // says what there is
		`pools: [{name: more, ranges: [{cidr: 10.7.0.0/16, oneNodePrefixLen: 24}]}, {name: default, state: draining}]`,
		`pools: [{name: default, state: active}]`,
	} {
		plan, err := ipam.Apply(context.Background(), store, store.reserved, []byte(file), false)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(plan.Err()).NotTo(HaveOccurred(), file)
	}
}

func TestACustomNetworkHasNoReservedNetwork(t *testing.T) {
	g := NewWithT(t)
	n := newNode(t, defaults, 5)
	n.put(kubestate.CustomNetworks, kv.CustomNetworkKey("blue"), &kv.CustomNetwork{Name: "blue", SubnetCidr: "127.5.0.0/16", SubnetOneNodePrefixLen: 24})
	g.Expect(n.resync()).To(Succeed())
	g.Expect(n.Problems()).To(HaveExactElements(HaveField("Text", ContainSubstring("127.0.0.0/8 (loopback)"))))
}
