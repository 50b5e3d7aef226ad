// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/cadastre/cadastre/internal/testkit/cniclient"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// served asks the whole API, and wants a status, JSON, and an unharmed gateway.
func served(t *testing.T, a *agent, method, path string, body []byte) {
	code, answer := ask(a.handler, method, path, string(body))
	if !slices.Contains([]int{200, 400, 404, 405, 500, 503}, code) {
		t.Fatalf("status %d", code)
	}
	silent := path == localapi.PathCNI && code == 200 && answer == "" // the plugin prints nothing
	if !silent && !json.Valid([]byte(answer)) {
		t.Fatalf("status %d, no JSON: %q", code, answer)
	}
	if free := a.book.Stats()[0]; free.Infra != 1 {
		t.Fatal("the gateway was released")
	}
}

func FuzzRelease(f *testing.F) {
	for _, seed := range []string{
		"", "{}", `{"ip": "10.1.5.2"}`, `{"ip": "10.1.5.1", "quarantined": true}`, `{"containerID": "c1", "ifName": "eth0"}`, `{"pod": "ns/web-0", "dryRun": true}`,
		`{"pod": "/", "only": [1, 2]}`, `{"ip": "fd00::1%x", "pool": "default"}`, `{"containerID": "10.1.5.0/24"}`, `{"ip": "10.1.5.77", "quarantined": true, "only": null}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) { served(t, newAgent(t), "POST", localapi.PathRelease, body) })
}

// FuzzCNIBody has the whole way of a call: its body, the environment and the configuration.
func FuzzCNIBody(f *testing.F) {
	for _, req := range []cni.Request{
		{},
		{Command: "ADD", Network: "pods", ContainerID: "c", IfName: "eth0", Netns: "/run/netns/c", Wanted: []string{"x"}, Routes: []cni.Route{}},
		{Command: "DEL", Network: "pods", ContainerID: "c1", IfName: "eth0", Pod: cni.Pod{Name: "\xff"}},
		{Command: "GC", Network: "pods", Attachments: []cni.Attachment{{ContainerID: "a", IfName: "b"}}},
	} {
		f.Add(cniclient.Body(req))
	}
	f.Add([]byte("CNI_COMMAND=ADD\x00\x00{"))
	f.Fuzz(func(t *testing.T, body []byte) { served(t, newAgent(t), "POST", localapi.PathCNI, body) })
}
