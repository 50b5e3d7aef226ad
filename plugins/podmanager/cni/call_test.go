// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cni_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// callEnv returns the environment of an ADD, with changes.
func callEnv(more ...string) func(string) string {
	all := map[string]string{
		"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "4f1c", "CNI_NETNS": "/run/netns/x", "CNI_IFNAME": "eth0",
		"CNI_PATH": "/opt/cni/bin", "CNI_ARGS": "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web-0",
	}
	for _, m := range more {
		k, v, _ := strings.Cut(m, "=")
		all[k] = v
	}
	return func(name string) string { return all[name] }
}

const callConf = `{"cniVersion": "1.0.0", "name": "pods", "type": "bridge", "ipam": {"type": "cadastre-cni", "socket": "/run/x.sock"}}`

// A Call arrives as the runtime has given it, whatever bytes it has.
func TestACallArrivesAsItIs(t *testing.T) {
	g := NewWithT(t)
	odd := callConf + "\x00\x00 \xff"
	call, err := cni.ParseCall(cni.AppendCall([]byte("x"), callEnv(), nil)[1:])
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(call.Stdin).To(BeEmpty())
	call, err = cni.ParseCall(cni.AppendCall(nil, callEnv("CNI_ARGS=A=B;C==\xff", "CNI_NETNS="), []byte(odd)))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(call.Stdin)).To(Equal(odd))
	_, conf, cerr := call.Request()
	g.Expect(cerr.Msg).To(ContainSubstring("CNI_NETNS"))
	g.Expect(conf).To(BeNil())
}

// An attachment has one name in every encoding: a DEL that waits in a file frees the same lease.
func TestTheRequestOfACall(t *testing.T) {
	g := NewWithT(t)
	env := callEnv("CNI_COMMAND=DEL", "CNI_IFNAME=e\xff", "CNI_NETNS=/run/\xff", "CNI_ARGS=K8S_POD_NAMESPACE=n\xff;K8S_POD_NAME=w\xff;K8S_POD_UID=u\xff")
	call, err := cni.ParseCall(cni.AppendCall(nil, env, []byte(callConf)))
	g.Expect(err).NotTo(HaveOccurred())
	req, conf, cerr := call.Request()
	g.Expect(cerr).To(BeNil())
	g.Expect(conf.Name).To(Equal("pods"))
	g.Expect(req).To(Equal(cni.Request{
		Command: "DEL", Network: "pods", ContainerID: "4f1c", IfName: "e\ufffd", Netns: "/run/\ufffd", Pool: "default",
		Pod: cni.Pod{Namespace: "n\ufffd", Name: "w\ufffd", UID: "u\ufffd"},
	}))
}

// The plugin and the agent may be of two versions: one has a variable that the other lacks.
func TestACallOfAnotherVersion(t *testing.T) {
	good := string(cni.AppendCall(nil, callEnv(), []byte(callConf)))
	for name, c := range map[string]struct{ body, saying string }{
		"one more":                      {"CNI_COLOUR=blue\x00" + good, ""},
		"one less":                      {strings.Replace(good, "CNI_ARGS=K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web-0\x00", "", 1), ""},
		"one that is needed is missing": {strings.Replace(good, "CNI_COMMAND=ADD\x00", "", 1), "CNI_COMMAND"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			call, err := cni.ParseCall([]byte(c.body))
			g.Expect(err).NotTo(HaveOccurred())
			_, _, cerr := call.Request()
			if c.saying == "" {
				g.Expect(cerr).To(BeNil())
				return
			}
			g.Expect(cerr).To(MatchError(ContainSubstring(c.saying)))
		})
	}
}

func TestBadCalls(t *testing.T) {
	good := string(cni.AppendCall(nil, callEnv(), []byte(callConf)))
	for name, body := range map[string]string{
		"nothing":         "",
		"no end":          strings.TrimSuffix(good, "\x00"+callConf),
		"no variable":     "\x00\x00{}",
		"without a value": strings.Replace(good, "CNI_COMMAND=ADD", "CNI_COMMAND", 1),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := cni.ParseCall([]byte(body))
			NewWithT(t).Expect(err).To(HaveOccurred())
		})
	}
}

// A runtime would start a pod without an address if a result without one were a success.
func TestAnADDWithoutAnAddressHasFailed(t *testing.T) {
	for name, ips := range map[string][]cni.IP{
		"none": nil, "an empty list": {}, "an empty address": {{}}, "no prefix length": {{Address: "10.1.5.2"}},
		"one of two": {{Address: "10.1.5.2/24"}, {Gateway: "10.1.5.1"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			conf := &cni.Config{CNIVersion: "1.1.0"}
			_, cerr := cni.Output(cni.Request{Command: "ADD"}, cni.Reply{IPs: ips}, conf)
			g.Expect(cerr).To(HaveField("Code", BeNumerically("==", cni.CodeDecode)))
			g.Expect(cerr.Msg).To(ContainSubstring("the agent's answer has"))
			out, cerr := cni.Output(cni.Request{Command: "DEL"}, cni.Reply{IPs: ips}, conf)
			g.Expect([]any{out, cerr}).To(HaveEach(BeNil()), "a DEL has no addresses")
		})
	}
}

// No request has bytes that a journal, a span or a file could not hold as they are.
func FuzzParseCall(f *testing.F) {
	f.Add(cni.AppendCall(nil, callEnv(), []byte(callConf)))
	f.Add(cni.AppendCall(nil, callEnv("CNI_COMMAND=DEL", "CNI_ARGS=K8S_POD_NAME=\xff", "CNI_NETNS=\xff"), []byte(callConf)))
	f.Add(cni.AppendCall(nil, callEnv("CNI_ARGS=IP=fe80::1%\xff;MAC=\xff"), []byte(strings.Replace(callConf, "bridge", "cadastre-cni", 1))))
	f.Add(cni.AppendCall(nil, callEnv("CNI_COMMAND=CHECK"), []byte(`{"cniVersion": "1.1.0", "name": "pods", "type": "cadastre-cni",
		"prevResult": {"interfaces": [{"name": "eth0", "sandbox": "/run/netns/x", "mac": "`+"\xff"+`"}], "ips": [{"address": "`+"\xff"+`"}]}}`)))
	f.Add(cni.AppendCall(nil, callEnv("CNI_COMMAND=GC"), []byte(`{"cniVersion": "1.1.0", "name": "pods", "ipam": {"routes": null},
		"cni.dev/valid-attachments": [{"containerID": "`+"\xff"+`"}]}`)))
	f.Add([]byte("a=b\x00\x00"))
	f.Fuzz(func(t *testing.T, body []byte) {
		call, err := cni.ParseCall(body)
		if err != nil {
			return
		}
		req, conf, cerr := call.Request()
		if cerr != nil {
			cerr.Print(conf)
			return
		}
		if conf == nil || req.Network == "" {
			t.Fatalf("%q: a request without a network", body)
		}
		text, err := json.Marshal(req)
		if err != nil {
			t.Fatal(err)
		}
		var again cni.Request
		if err := json.Unmarshal(text, &again); err != nil || !reflect.DeepEqual(again, req) {
			t.Fatalf("%q: as JSON %+v is %+v: %v", body, req, again, err)
		}
	})
}
