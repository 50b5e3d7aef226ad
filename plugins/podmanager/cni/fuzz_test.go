// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cni_test

import (
	"encoding/json"
	"net/netip"
	"slices"
	"testing"

	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// known are the codes that a bad input may have.
func known(code uint) bool {
	return slices.Contains([]uint{cni.CodeVersion, cni.CodeUnsupported, cni.CodeEnvironment, cni.CodeDecode, cni.CodeInvalidConfig}, code)
}

// Any input is refused with a code of the specification, or
// it makes a request that can be sent.
func FuzzParseConfig(f *testing.F) {
	for _, seed := range []string{
		"", "{", "[]", "null", config("1.0.0", "", ""), config("1.1.0", `, "socket": "/x", "pool": "p", "routes": [{"dst": "::/0", "gw": "::1"}]`, ""),
		config("1.1.0", `, "routes": null`, `, "cni.dev/valid-attachments": [{"containerID": "a", "ifname": "b"}], "prevResult": {"ips": [{"address": "x"}]}`),
		config("0.3.1", `, "subnet": 1`, `, "runtimeConfig": {"ips": ["10.1.5.9/24"]}, "args": {"cni": {"ips": ["fd00::1%x"]}}`),
		`{"cniVersion": "1.0.0", "name": "pods", "ipam": null, "ipam": {"type": 5}}`,
	} {
		for _, command := range []string{"ADD", "GC"} {
			f.Add([]byte(seed), command)
		}
	}
	f.Fuzz(func(t *testing.T, stdin []byte, command string) {
		c, err := cni.ParseConfig(stdin, command)
		if err != nil {
			if !known(err.Code) || err.Msg == "" {
				t.Fatalf("code %d: %q", err.Code, err.Msg)
			}
			return
		}
		if c.Name == "" || c.Pool == "" || !slices.Contains(cni.Versions(), c.CNIVersion) {
			t.Fatalf("%+v", c)
		}
		r, err := cni.NewRequest(cni.Invocation{Command: command, ContainerID: "4f1c", IfName: "eth0", Args: "K8S_POD_NAME=x"}, c)
		if err != nil {
			if !known(err.Code) {
				t.Fatalf("code %d: %q", err.Code, err.Msg)
			}
			return
		}
		for _, w := range r.Wanted {
			if _, perr := netip.ParseAddr(w); perr != nil {
				t.Fatalf("wanted %q", w)
			}
		}
		if _, jerr := json.Marshal(r); jerr != nil {
			t.Fatal(jerr)
		}
	})
}

func FuzzParseArgs(f *testing.F) {
	for _, seed := range []string{"", ";", "=", "K8S_POD_NAME=a;IP=10.1.5.9", "IP=,", "IgnoreUnknown=1;x", "K8S_POD_UID==;;=", "MAC=02:00:00:00:00:01"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, args string) {
		read, err := cni.ParseArgs(args)
		if err != nil {
			if err.Code != cni.CodeEnvironment {
				t.Fatalf("code %d: %q", err.Code, err.Msg)
			}
			return
		}
		again, err := cni.ParseArgs("K8S_POD_NAME=" + read.Pod.Name + ";K8S_POD_NAMESPACE=" + read.Pod.Namespace + ";K8S_POD_UID=" + read.Pod.UID +
			";IP=" + read.IP + ";MAC=" + read.MAC)
		if err != nil || again != read {
			t.Fatalf("%q: %+v, again %+v", args, read, again)
		}
		r, err := cni.NewRequest(cni.Invocation{Command: "ADD", ContainerID: "4f1c", IfName: "eth0", Args: args}, &cni.Config{Name: "pods"})
		if err == nil && len(r.Wanted) == 0 && read.IP != "" || err != nil && !known(err.Code) {
			t.Fatalf("%q: %v %v", args, r.Wanted, err)
		}
	})
}
