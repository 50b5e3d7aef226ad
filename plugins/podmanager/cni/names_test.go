// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cni_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

func TestNamesOfAnADD(t *testing.T) {
	long := strings.Repeat("x", 254)
	for _, c := range []struct {
		name   string
		change func(r *cni.Request)
		code   uint // 0: it is well
		saying string
	}{
		{"as runtimes have them", func(*cni.Request) {}, 0, ""},
		{"without a pod", func(r *cni.Request) { r.Pod = cni.Pod{} }, 0, ""},
		{"as podman names a pod", func(r *cni.Request) { r.Pod.Name = "upbeat_Hopper" }, 0, ""},
		{"the longest", func(r *cni.Request) { r.ContainerID, r.Network, r.IfName = long[1:], long[1:], "abcdefghijklmno" }, 0, ""},
		{"an interface in another script", func(r *cni.Request) { r.IfName = "Netz-ä" }, 0, ""},
		{"a long container", func(r *cni.Request) { r.ContainerID = long }, cni.CodeEnvironment, "CNI_CONTAINERID"},
		{"a container with a bad byte", func(r *cni.Request) { r.ContainerID = "c\xff" }, cni.CodeEnvironment, "CNI_CONTAINERID"},
		{"a container with what stands for one", func(r *cni.Request) { r.ContainerID = "c\ufffd" }, cni.CodeEnvironment, "CNI_CONTAINERID"},
		{"a container with a slash", func(r *cni.Request) { r.ContainerID = "a/b" }, cni.CodeEnvironment, "CNI_CONTAINERID"},
		{"a container with a zero", func(r *cni.Request) { r.ContainerID = "a\x00b" }, cni.CodeEnvironment, "CNI_CONTAINERID"},
		{"no container", func(r *cni.Request) { r.ContainerID = "" }, cni.CodeEnvironment, "CNI_CONTAINERID"},
		{"a long network", func(r *cni.Request) { r.Network = long }, cni.CodeInvalidConfig, "network"},
		{"a network with a space", func(r *cni.Request) { r.Network = "a b" }, cni.CodeInvalidConfig, "network"},
		{"a long pod", func(r *cni.Request) { r.Pod.Name = long }, cni.CodeEnvironment, "K8S_POD_NAME"},
		{"a namespace with a slash", func(r *cni.Request) { r.Pod.Namespace = "a/b" }, cni.CodeEnvironment, "K8S_POD_NAMESPACE"},
		{"a UID with a line", func(r *cni.Request) { r.Pod.UID = "u\n1" }, cni.CodeEnvironment, "K8S_POD_UID"},
		{"an interface of 16 bytes", func(r *cni.Request) { r.IfName = "abcdefghijklmnä" }, cni.CodeEnvironment, "15 bytes"},
		{"no interface", func(r *cni.Request) { r.IfName = "" }, cni.CodeEnvironment, "CNI_IFNAME"},
		{"a dot", func(r *cni.Request) { r.IfName = "." }, cni.CodeEnvironment, "CNI_IFNAME"},
		{"two dots", func(r *cni.Request) { r.IfName = ".." }, cni.CodeEnvironment, "CNI_IFNAME"},
		{"an interface with a slash", func(r *cni.Request) { r.IfName = "a/b" }, cni.CodeEnvironment, "'/'"},
		{"with a colon", func(r *cni.Request) { r.IfName = "a:b" }, cni.CodeEnvironment, "':'"},
		{"with a tab", func(r *cni.Request) { r.IfName = "a\tb" }, cni.CodeEnvironment, "white space"},
		{"with a wide space", func(r *cni.Request) { r.IfName = "a\u2003b" }, cni.CodeEnvironment, "white space"},
		{"with a zero", func(r *cni.Request) { r.IfName = "a\x00b" }, cni.CodeEnvironment, "control"},
		{"with the byte of a space that does not break", func(r *cni.Request) { r.IfName = "à" }, cni.CodeEnvironment, "0xa0"},
		{"with a bad byte", func(r *cni.Request) { r.IfName = "a\xff" }, cni.CodeEnvironment, "UTF-8"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			r := cni.Request{Network: "pods", ContainerID: "4f1c", IfName: "eth0", Pod: cni.Pod{Namespace: "ns", Name: "web-0.a", UID: "u-1"}}
			c.change(&r)
			err := r.CheckNames()
			if c.code == 0 {
				g.Expect(err).To(BeNil())
				return
			}
			g.Expect(err).NotTo(BeNil())
			g.Expect(err.Code).To(Equal(c.code))
			g.Expect(err.Msg).To(ContainSubstring(c.saying))
			g.Expect(len(err.Msg)).To(BeNumerically("<", 600))
		})
	}
}

// A DEL has the name that its ADD had in JSON, which replaces bytes that are not
// UTF-8: the intent's file and its content agree.
func TestADELOfANameThatIsRefusedNow(t *testing.T) {
	g := NewWithT(t)
	r, err := cni.NewRequest(cni.Invocation{Command: "DEL", ContainerID: "c\xff\xfe", IfName: "eth\xff"}, &cni.Config{Name: "pods"})
	g.Expect(err).To(BeNil())
	g.Expect([]string{r.ContainerID, r.IfName}).To(Equal([]string{"c\ufffd\ufffd", "eth\ufffd"}))
	dir := intentDir(t)
	in := cni.Intent{Network: r.Network, ContainerID: r.ContainerID, IfName: r.IfName}
	g.Expect(in.Write(dir)).To(Succeed())
	all, refused := readAll(g, dir)
	g.Expect(refused).To(BeEmpty())
	g.Expect(all).To(Equal([]cni.Intent{in}))
	_, err = cni.NewRequest(cni.Invocation{Command: "ADD", ContainerID: "c", IfName: "eth\xff"}, &cni.Config{Name: "pods"})
	g.Expect(err).NotTo(BeNil())
}
