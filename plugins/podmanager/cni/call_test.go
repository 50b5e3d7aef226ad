// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cni_test

import (
	"errors"
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
	call, err := cni.ParseCall(cni.AppendCall([]byte("x"), callEnv(), "", nil)[1:])
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(call.Stdin).To(BeEmpty())
	call, err = cni.ParseCall(cni.AppendCall(nil, callEnv("CNI_ARGS=A=B;C==\xff", "CNI_NETNS="), "/run/x.sock", []byte(odd)))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(call.Stdin)).To(Equal(odd))
	g.Expect(call.Socket).To(Equal("/run/x.sock"))
	_, _, cerr, err := call.Request()
	g.Expect(cerr.Msg).To(ContainSubstring("CNI_NETNS"))
	g.Expect(err).To(MatchError(cni.ErrNotForTheAgent), "it is found before the agent is asked")
}

// The request of a Call is the one that the plugin would send.
func TestTheRequestOfACall(t *testing.T) {
	g := NewWithT(t)
	env := callEnv("CNI_COMMAND=DEL", "CNI_IFNAME=e\xff")
	call, err := cni.ParseCall(cni.AppendCall(nil, env, "/run/x.sock", []byte(callConf)))
	g.Expect(err).NotTo(HaveOccurred())
	req, conf, cerr, err := call.Request()
	g.Expect([]any{cerr, err}).To(HaveEach(BeNil()))
	g.Expect(conf.Socket).To(Equal("/run/x.sock"))
	g.Expect(req).To(Equal(cni.Request{
		Command: "DEL", Network: "pods", ContainerID: "4f1c", IfName: "e�", Netns: "/run/netns/x", Pool: "default",
		Pod: cni.Pod{Namespace: "ns", Name: "web-0"},
	}))
}

// The agent refuses what it would do for another socket, and what needs no agent.
func TestCallsThatAreNotForTheAgent(t *testing.T) {
	for name, call := range map[string][]byte{
		"a wrong guess":  cni.AppendCall(nil, callEnv(), "/run/y.sock", []byte(callConf)),
		"no guess":       cni.AppendCall(nil, callEnv(), "", []byte(callConf)),
		"VERSION":        cni.AppendCall(nil, callEnv("CNI_COMMAND=VERSION"), "/run/x.sock", []byte(callConf)),
		"no command":     cni.AppendCall(nil, callEnv("CNI_COMMAND="), "/run/x.sock", []byte(callConf)),
		"a wrong socket": cni.AppendCall(nil, callEnv(), "/run/y.sock", []byte(strings.Replace(callConf, `"pods"`, `""`, 1))),
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			c, err := cni.ParseCall(call)
			g.Expect(err).NotTo(HaveOccurred())
			_, _, _, err = c.Request()
			g.Expect(err).To(MatchError(cni.ErrNotForTheAgent))
		})
	}
}

func TestBadCalls(t *testing.T) {
	good := string(cni.AppendCall(nil, callEnv(), "/run/x.sock", []byte(callConf)))
	for name, body := range map[string]string{
		"nothing":               "",
		"no end":                strings.TrimSuffix(good, "\x00"+callConf),
		"no variable":           "\x00\x00{}",
		"without a value":       strings.Replace(good, "CNI_COMMAND=ADD", "CNI_COMMAND", 1),
		"a missing variable":    strings.Replace(good, "CNI_COMMAND=ADD\x00", "", 1),
		"one of a newer plugin": "CNI_COLOUR=blue\x00" + good,
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

func FuzzParseCall(f *testing.F) {
	f.Add(cni.AppendCall(nil, callEnv(), "/run/x.sock", []byte(callConf)))
	f.Add([]byte("a=b\x00\x00"))
	f.Fuzz(func(t *testing.T, body []byte) {
		call, err := cni.ParseCall(body)
		if err != nil {
			return
		}
		req, conf, cerr, err := call.Request()
		switch {
		case err == nil && cerr == nil && (conf == nil || req.Network == ""):
			t.Fatalf("%q: a request without a network", body)
		case errors.Is(err, cni.ErrNotForTheAgent), err != nil, cerr == nil:
			return
		}
		cerr.Print(conf)
	})
}
