// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// -n selects the pods of one namespace; with -n the name of a pod is enough.
func TestNamespaceSelectsPods(t *testing.T) {
	agent := newAgent(t)
	agent.leases = append(agent.leases, localapi.Lease{IP: "10.1.5.8", State: "held", PodNamespace: "default-2", PodName: "web"})
	for args, want := range map[string]string{
		"leases -n default":               "10.1.5.2\nfd00:1::2\n10.1.5.3\n",
		"leases -n default-2":             "10.1.5.8\n",
		"leases -n default --pod web":     "10.1.5.2\nfd00:1::2\n",
		"leases --pod default/web":        "10.1.5.2\nfd00:1::2\n",
		"leases -n none":                  "",
		"release -n default --pod old -y": "",
	} {
		got := call(t, agent.socket, "", append(strings.Fields(args), "-o", "name")...)
		NewWithT(t).Expect(got).To(Equal(outcome{out: want}), args)
	}
}

func TestNamespaceSelectsEvents(t *testing.T) {
	agent, all := bareAgent(t), someEvents()
	all[0].Subject.Pod = "default/web"
	all[1].Subject.Pod = "default-2/web"
	agent.mux.HandleFunc(localapi.PathEvents, events(append(all, controller.Record{SeqNum: 14})...))
	for args, want := range map[string]string{
		"events":              "12\n13\n14\n",
		"events -n default":   "12\n",
		"events -n default-2": "13\n",
	} {
		got := call(t, agent.socket, "", append(strings.Fields(args), "-o", "name")...)
		NewWithT(t).Expect(got).To(Equal(outcome{out: want}), args)
	}
}

func TestNamespaceSelectsReclaims(t *testing.T) {
	agent := bareAgent(t)
	agent.json(localapi.PathReclaims, localapi.Reclaims{
		Pending: []localapi.Reclaim{{Pod: "a/x", State: "pending"}, {Pod: "b/x"}, {}}, Ended: []localapi.Reclaim{{Pod: "b/y"}},
	})
	got := call(t, agent.socket, "", "reclaim", "list", "-n", "a", "-o", "jsonpath={.pending[*].pod};{.ended[*].pod}")
	NewWithT(t).Expect(got).To(Equal(outcome{out: "a/x;"}))
}

func TestWrongNamespaces(t *testing.T) {
	for args, want := range map[string]string{
		"leases -n a/b":                    `--namespace: "a/b" is not a namespace: write one such as kube-system`,
		"leases -n a --pod b/c":            `--namespace: pod "b/c" is not in namespace "a": leave one of both out`,
		"leases -n a --pod a/b/c":          `--pod: "a/b/c" is not a pod`,
		"events -n A":                      `--namespace: "A" is not a namespace`,
		"reclaim list -n A":                `--namespace: "A" is not a namespace`,
		"explain pod -n a b/c":             `--namespace: pod "b/c" is not in namespace "a"`,
		"release -n a --ip 10.1.5.2 --yes": `--namespace: "a" goes with --pod only`,
	} {
		got := call(t, noListener(t), "", strings.Fields(args)...)
		NewWithT(t).Expect(got.code).To(Equal(exitUsage), args)
		NewWithT(t).Expect(got.err).To(ContainSubstring(want), args)
	}
}
