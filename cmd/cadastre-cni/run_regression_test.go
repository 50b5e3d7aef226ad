// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// The reason that comes with a refusal is any text: it must not break the
// error that it is put into (Go's %q is not JSON).
func TestARefusalWithAnyText(t *testing.T) {
	for _, reason := range []string{"caf\xe9", "bell \a", "del \x7f", "\"quoted\" \\ \n"} {
		g := NewWithT(t)
		a := newAgent(t, status(500, reason))
		o := call(g, env("ADD"), conf(a.socket, ""))
		g.Expect(o.err.Code).To(BeNumerically("==", cni.CodeTryAgain), "%q", reason)
		g.Expect(o.err.Msg).To(ContainSubstring("500"))
	}
}
