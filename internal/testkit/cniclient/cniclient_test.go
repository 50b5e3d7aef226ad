// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cniclient_test

import (
	"net/http"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/cniclient"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// The agent makes the request of the body that the test has written.
func TestTheAgentReadsTheRequest(t *testing.T) {
	pod := cni.Pod{Namespace: "ns", Name: "web-0", UID: "u"}
	for name, req := range map[string]cni.Request{
		"ADD":            {Command: "ADD", Network: "pods", ContainerID: "c", IfName: "eth0", Netns: "/run/netns/c", Pod: pod, Pool: "blue"},
		"with wishes":    {Command: "ADD", Network: "pods", ContainerID: "c", IfName: "eth0", Netns: "/run/netns/c", Pool: "default", Wanted: []string{"10.1.5.9"}, Routes: []cni.Route{}},
		"of a main one":  {Command: "ADD", Network: "pods", ContainerID: "c", IfName: "eth0", Netns: "/run/netns/c", Pool: "default", Main: true, MAC: "02:00:00:00:00:01"},
		"DEL":            {Command: "DEL", Network: "pods", ContainerID: "c", IfName: "eth0", Pool: "default"},
		"CHECK":          {Command: "CHECK", Network: "pods", ContainerID: "c", IfName: "eth0", Netns: "/run/netns/c", Pool: "default", Previous: []string{"10.1.5.9/24"}},
		"of an own wire": {Command: "CHECK", Network: "pods", ContainerID: "c", IfName: "eth0", Netns: "/n", Pool: "default", Main: true, Link: &cni.Interface{Name: "eth0", MAC: "m", Sandbox: "/n"}},
		"GC":             {Command: "GC", Network: "pods", Pool: "default", Attachments: []cni.Attachment{}},
		"STATUS":         {Command: "STATUS", Network: "pods", Pool: "default"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			call, err := cni.ParseCall(cniclient.Body(req))
			g.Expect(err).NotTo(HaveOccurred())
			got, _, cerr := call.Request()
			g.Expect(cerr).To(BeNil())
			g.Expect(got).To(Equal(req))
		})
	}
}

func TestAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		status     int
		exit, body string
		address    string
		err        OmegaMatcher
	}{
		"an address": {200, "0", `{"ips": [{"address": "10.1.5.9/24"}]}`, "10.1.5.9", BeNil()},
		"nothing":    {200, "0", "", "", BeNil()},
		"a refusal":  {200, "1", `{"cniVersion": "1.1.0", "code": 11, "msg": "later"}`, "", Equal(cni.Errorf(11, "later"))},
		"no exit":    {200, "", "{}", "", MatchError(ContainSubstring(cni.HeaderExit))},
		"it is away": {503, "", `{"error": "it stops"}`, "", MatchError(ContainSubstring("it stops"))},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			reply, err := cniclient.Ask(t.Context(), cniclient.Through(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set(cni.HeaderExit, c.exit)
				w.WriteHeader(c.status)
				_, _ = w.Write([]byte(c.body))
			})), cni.Request{})
			g.Expect(err).To(c.err)
			g.Expect(cniclient.Address(reply)).To(Equal(c.address))
		})
	}
}
