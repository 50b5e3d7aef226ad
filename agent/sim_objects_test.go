// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
)

// put writes an object as the operator does, nil for none.
func (c *simCluster) put(key string, m proto.Message) {
	if m == nil {
		c.say("in the store: %s is deleted", key)
		c.store.set(key, nil)
		return
	}
	value, err := proto.Marshal(m)
	if err != nil {
		c.t.Error(err)
	}
	c.say("in the store: %s is %v", key, m)
	c.store.set(key, append([]byte{}, value...))
}

// changeNetworks adds, breaks or deletes a custom network.
func (c *simCluster) changeNetworks() {
	name := []string{"blue", "green"}[c.rnd.IntN(2)]
	key := kv.CustomNetworkKey(name)
	m := &kv.CustomNetwork{Name: name, SubnetCidr: map[string]string{"blue": "10.5.0.0/24", "green": "10.6.0.0/25"}[name], SubnetOneNodePrefixLen: 28}
	switch c.rnd.IntN(8) {
	case 0, 1:
		c.put(key, nil)
		return
	case 2:
		m.SubnetCidr = "nonsense"
	case 3:
		m.SubnetCidr = "172.30.0.0/24" // of the links to the hosts
	case 4:
		m.Name = "violet"
	case 5:
		c.say("in the store: %s is not a message", key)
		c.store.set(key, []byte("\xff\xff\xff"))
		return
	}
	c.put(key, m)
}

// changeObjects changes what only handlers look at.
func (c *simCluster) changeObjects() {
	m := c.any()
	switch c.rnd.IntN(8) {
	case 0, 1:
		config := &kv.NodeConfig{NodeName: m.name, MainIp: fmt.Sprintf("192.168.16.%d/24", 200+c.rnd.IntN(4))}
		switch c.rnd.IntN(4) {
		case 0:
			config.MainIp = "nonsense"
		case 1:
			c.put(kv.NodeConfigKey(m.name), nil)
			return
		}
		c.put(kv.NodeConfigKey(m.name), config)
	case 2:
		c.put(kv.NodeKey(m.name), &kv.Node{Name: m.name, Uid: fmt.Sprint("uid ", c.rnd.IntN(3)), Addresses: []string{fmt.Sprintf("172.18.0.%d", 1+c.rnd.IntN(9))}})
	case 3:
		c.put(kv.NodeKey(m.name), nil)
	case 4, 5:
		c.changeExternal(m)
	default:
		c.changePod(m)
	}
}

// changeExternal changes what configures the southbound besides the handlers.
func (c *simCluster) changeExternal(m *machine) {
	dst := "10.250.0.0/24"
	if blocks := c.blocks(); len(blocks) > 0 && c.rnd.IntN(2) == 0 {
		dst = blocks[c.rnd.IntN(len(blocks))]
	}
	key := kv.ExternalKey(m.name, kv.SinkRoutePrefix+dst)
	if c.rnd.IntN(3) == 0 {
		c.put(key, nil)
		return
	}
	c.put(key, &kv.NodeRoute{Dst: dst, Gateway: fmt.Sprintf("192.168.16.%d", 240+c.rnd.IntN(3))})
}

// blocks are those of all nodes.
func (c *simCluster) blocks() (all []string) {
	for id := uint32(1); id <= 4; id++ {
		for _, b := range blocksOf(c.pools(), id) {
			all = append(all, b.String())
		}
	}
	return all
}

// changePod changes a Pod object, which may report an address.
func (c *simCluster) changePod(m *machine) {
	id := kv.PodID{Namespace: "default", Name: fmt.Sprint("c", c.rnd.IntN(6))}
	if c.rnd.IntN(4) == 0 {
		c.put(kv.PodKey(m.name, id), nil)
		return
	}
	pod := &kv.Pod{Namespace: id.Namespace, Name: id.Name, Node: m.name, Phase: []string{"Running", "Running", "Succeeded"}[c.rnd.IntN(3)], HostNetwork: c.rnd.IntN(5) == 0}
	if p := m.running(); p != nil && p.a.ipam.PodSubnetThisNode() != nil && c.rnd.IntN(2) == 0 {
		a := p.a.ipam.PodSubnetThisNode().IP.To4()
		pod.IpAddresses = []string{fmt.Sprintf("%d.%d.%d.%d", a[0], a[1], a[2], int(a[3])+2+c.rnd.IntN(10))}
	}
	c.put(kv.PodKey(m.name, id), pod)
}
