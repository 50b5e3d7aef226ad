// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cni_test

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// environment returns the variables of a runtime with changes; "-NAME" is not set.
func environment(command string, change ...string) func(string) string {
	env := map[string]string{
		"CNI_COMMAND": command, "CNI_CONTAINERID": "4f1c", "CNI_NETNS": "/run/netns/x", "CNI_IFNAME": "eth0", "CNI_PATH": "/opt/cni/bin",
		"CNI_ARGS": "K8S_POD_NAME=web-0",
	}
	for _, c := range change {
		k, v, _ := strings.Cut(c, "=")
		if strings.HasPrefix(k, "-") {
			delete(env, k[1:])
		} else {
			env[k] = v
		}
	}
	return func(name string) string { return env[name] }
}

func TestFromEnv(t *testing.T) {
	for _, c := range []struct {
		name    string
		command string
		change  []string
		saying  string // "": it is well
	}{
		{"ADD", "ADD", nil, ""},
		{"ADD without a container", "ADD", []string{"-CNI_CONTAINERID"}, "[CNI_CONTAINERID]"},
		{"ADD without a namespace", "ADD", []string{"-CNI_NETNS"}, "[CNI_NETNS]"},
		{"ADD without an interface", "ADD", []string{"-CNI_IFNAME"}, "[CNI_IFNAME]"},
		{"ADD without a path", "ADD", []string{"-CNI_PATH"}, "[CNI_PATH]"},
		{"ADD without arguments", "ADD", []string{"-CNI_ARGS"}, ""},
		{"ADD without anything", "ADD", []string{"-CNI_CONTAINERID", "-CNI_NETNS", "-CNI_IFNAME", "-CNI_PATH"},
			"[CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH]"},
		{"CHECK", "CHECK", nil, ""},
		{"CHECK without a namespace", "CHECK", []string{"-CNI_NETNS"}, "[CNI_NETNS]"},
		{"DEL without a namespace", "DEL", []string{"-CNI_NETNS"}, ""},
		{"DEL without a container", "DEL", []string{"-CNI_CONTAINERID", "-CNI_NETNS"}, "[CNI_CONTAINERID]"},
		{"DEL without an interface", "DEL", []string{"-CNI_IFNAME"}, "[CNI_IFNAME]"},
		{"GC needs a path only", "GC", []string{"-CNI_CONTAINERID", "-CNI_NETNS", "-CNI_IFNAME"}, ""},
		{"GC without a path", "GC", []string{"-CNI_PATH"}, "[CNI_PATH]"},
		{"STATUS needs a path only", "STATUS", []string{"-CNI_CONTAINERID", "-CNI_NETNS", "-CNI_IFNAME"}, ""},
		{"STATUS without a path", "STATUS", []string{"-CNI_PATH"}, "[CNI_PATH]"},
		{"VERSION needs nothing", "VERSION", []string{"-CNI_CONTAINERID", "-CNI_NETNS", "-CNI_IFNAME", "-CNI_PATH"}, ""},
		{"no command", "", nil, "[CNI_COMMAND]"},
		{"an unknown command", "MOVE", nil, "MOVE"},
		{"a command in small letters", "add", nil, "add"},
		{"a container that begins with a dot", "ADD", []string{"CNI_CONTAINERID=.x"}, "CNI_CONTAINERID"},
		{"a container with a slash", "DEL", []string{"CNI_CONTAINERID=a/b"}, "CNI_CONTAINERID"},
		{"a container with a colon", "DEL", []string{"CNI_CONTAINERID=pod:a"}, "CNI_CONTAINERID"},
		{"a container with every allowed sign", "ADD", []string{"CNI_CONTAINERID=a_B.9-z"}, ""},
		{"an interface of 15 letters", "ADD", []string{"CNI_IFNAME=abcdefghijklmno"}, ""},
		{"one of 16", "ADD", []string{"CNI_IFNAME=abcdefghijklmnop"}, "15"},
		{"an interface with a slash", "ADD", []string{"CNI_IFNAME=a/b"}, "CNI_IFNAME"},
		{"with a colon", "ADD", []string{"CNI_IFNAME=a:b"}, "CNI_IFNAME"},
		{"with a space", "ADD", []string{"CNI_IFNAME=a b"}, "CNI_IFNAME"},
		{"that is a dot", "ADD", []string{"CNI_IFNAME=."}, "CNI_IFNAME"},
		{"that is two dots", "DEL", []string{"CNI_IFNAME=.."}, "CNI_IFNAME"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			inv, err := cni.FromEnv(environment(c.command, c.change...))
			if c.saying == "" {
				g.Expect(err).To(BeNil())
				g.Expect(inv.Command).To(Equal(c.command))
				return
			}
			g.Expect(err).NotTo(BeNil())
			g.Expect(err.Code).To(BeNumerically("==", cni.CodeEnvironment))
			g.Expect(err.Msg).To(ContainSubstring(c.saying))
		})
	}
}

func TestFromEnvReadsEverything(t *testing.T) {
	g := NewWithT(t)
	inv, err := cni.FromEnv(environment("ADD"))
	g.Expect(err).To(BeNil())
	g.Expect(inv).To(Equal(cni.Invocation{
		Command: "ADD", ContainerID: "4f1c", Netns: "/run/netns/x", IfName: "eth0", Args: "K8S_POD_NAME=web-0", Path: "/opt/cni/bin",
	}))
}

func TestParseArgs(t *testing.T) {
	for _, c := range []struct {
		name, args string
		pod        cni.Pod
		ip         string
		bad        bool
	}{
		{"none", "", cni.Pod{}, "", false},
		{"as Kubernetes' runtimes have it", "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=4f1c;K8S_POD_UID=u-1",
			cni.Pod{Namespace: "ns", Name: "web-0", UID: "u-1"}, "", false},
		{"unknown keys without leave to ignore them", "FOO=1;BAR=2", cni.Pod{}, "", false},
		{"an address", "IP=10.1.5.9", cni.Pod{}, "10.1.5.9", false},
		{"a value with an equals sign", "K8S_POD_NAME=a=b", cni.Pod{Name: "a=b"}, "", false},
		{"an empty value", "K8S_POD_NAME=", cni.Pod{}, "", false},
		{"a semicolon at the end, and two in a row", "K8S_POD_NAME=a;;K8S_POD_NAMESPACE=b;", cni.Pod{Name: "a", Namespace: "b"}, "", false},
		{"the last one counts", "K8S_POD_NAME=a;K8S_POD_NAME=b", cni.Pod{Name: "b"}, "", false},
		{"no pair", "K8S_POD_NAME", cni.Pod{}, "", true},
		{"a pair and no pair", "K8S_POD_NAME=a;x", cni.Pod{Name: "a"}, "", true},
	} {
		g := NewWithT(t)
		read, err := cni.ParseArgs(c.args)
		if c.bad {
			g.Expect(err).NotTo(BeNil(), c.name)
			g.Expect(err.Code).To(BeNumerically("==", cni.CodeEnvironment))
			continue
		}
		g.Expect(err).To(BeNil(), c.name)
		g.Expect(fmt.Sprint(read.Pod, read.IP)).To(Equal(fmt.Sprint(c.pod, c.ip)), c.name)
	}
}
