// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeconfig_test

import (
	"log/slog"
	"testing"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/contivconf/nodeconfig"
	"github.com/cadastre/cadastre/plugins/kubestate"
)

type label string

func (l label) GetAgentLabel() string { return string(l) }

// txn remembers follow-ups.
type txn struct{ followUps []controller.Event }

func (t *txn) Put(string, proto.Message)          {}
func (t *txn) Get(string) proto.Message           { return nil }
func (t *txn) Delete(string)                      {}
func (t *txn) FollowUp(ev controller.Event) error { t.followUps = append(t.followUps, ev); return nil }

func newPlugin(ip string) *nodeconfig.NodeConfig {
	return nodeconfig.NewPlugin(nodeconfig.Deps{
		PluginDeps: controller.PluginDeps{Log: slog.New(slog.DiscardHandler)}, ServiceLabel: label("a"),
		File: []contivconf.NodeConfig{
			{NodeName: "b", MainVPPInterface: contivconf.MainInterfaceConfig{IP: "10.9.9.9/24"}},
			{NodeName: "a", MainVPPInterface: contivconf.MainInterfaceConfig{IP: ip}},
		},
	})
}

func object(ip string) *kv.NodeConfig { return &kv.NodeConfig{NodeName: "a", MainIp: ip} }

func TestMainIPPrefersTheObjectToTheFile(t *testing.T) {
	for name, c := range map[string]struct {
		file    string
		object  *kv.NodeConfig
		want    string
		problem string
	}{
		"the node ID":                         {"", nil, "invalid Prefix", ""},
		"contiv.conf":                         {"10.1.1.1/24", nil, "10.1.1.1/24", ""},
		"the object wins":                     {"10.1.1.1/24", object("10.1.1.2/24"), "10.1.1.2/24", ""},
		"the object replaces the whole entry": {"10.1.1.1/24", object(""), "invalid Prefix", ""},
		"a bad object":                        {"10.1.1.1/24", object("10.1.1.2"), "10.1.1.1/24", `"10.1.1.2"`},
		"a network is not an address":         {"", object("10.1.1.0/24"), "invalid Prefix", `"10.1.1.0/24"`},
		"a host route":                        {"", object("10.1.1.2/32"), "10.1.1.2/32", ""},
		"IPv6":                                {"", object("fd00::2/64"), "fd00::2/64", ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			p := newPlugin(c.file)
			state := controller.KubeStateData{kubestate.NodeConfigs: {kv.NodeConfigKey("b"): object("10.7.7.7/24")}}
			if c.object != nil {
				state[kubestate.NodeConfigs][kv.NodeConfigKey("a")] = c.object
			}
			g.Expect(p.Resync(&controller.DBResync{}, state, 1, &txn{})).To(Succeed())
			g.Expect(p.MainIP().String()).To(Equal(c.want))
			g.Expect(p.Problem()).To(ContainSubstring(c.problem))
			g.Expect(p.Problem() == "").To(Equal(c.problem == ""))
		})
	}
}

func TestAChangeIsAnnouncedOnce(t *testing.T) {
	g := NewWithT(t)
	p := newPlugin("10.1.1.1/24")
	change := func(m *kv.NodeConfig) []controller.Event {
		ev := &controller.KubeStateChange{Key: kv.NodeConfigKey("a"), Resource: kubestate.NodeConfigs}
		if m != nil {
			ev.New = m
		}
		g.Expect(p.HandlesEvent(ev)).To(BeTrue())
		tx := &txn{}
		_, err := p.Update(ev, tx)
		g.Expect(err).NotTo(HaveOccurred())
		return tx.followUps
	}
	g.Expect(change(object("10.1.1.2/24"))).To(HaveExactElements(BeAssignableToTypeOf(&nodeconfig.NodeConfigChange{})))
	g.Expect(change(object("10.1.1.2/24"))).To(BeEmpty())
	g.Expect(p.MainIP().String()).To(Equal("10.1.1.2/24"))
	gone := change(nil)
	g.Expect(gone).To(HaveLen(1), "a deleted object is a change too")
	g.Expect(gone[0].String()).To(ContainSubstring("contiv.conf"))
	g.Expect(change(nil)).To(BeEmpty())
	g.Expect(p.MainIP().String()).To(Equal("10.1.1.1/24"))
	g.Expect(p.HandlesEvent(&controller.KubeStateChange{Key: kv.NodeConfigKey("b"), Resource: kubestate.NodeConfigs})).To(BeFalse())
}
