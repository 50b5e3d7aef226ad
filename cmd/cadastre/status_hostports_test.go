// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

func TestHostPortsOfTheStatus(t *testing.T) {
	for want, h := range map[string]*localapi.HostPorts{
		"": nil,
		"none: the CNI list has no portmap: /opt/cni/bin/portmap does not exist": {Reason: "/opt/cni/bin/portmap does not exist"},
		"by portmap of the versions 0.4.0, 1.0.0":                                {Versions: []string{"0.4.0", "1.0.0"}},
		"by portmap; it cannot run here, so its versions are assumed: 1.0.0":     {Versions: []string{"1.0.0"}, Reason: "it cannot run here, so its versions are assumed"},
	} {
		g := NewWithT(t)
		g.Expect(hostPortsText(h)).To(Equal(want))
		text := newApp(nil, nil, nil, nil).statusText(localapi.Status{HostPorts: h}, 0, false)
		if want == "" {
			g.Expect(text).NotTo(ContainSubstring("host ports"))
		} else {
			g.Expect(text).To(MatchRegexp(`(?m)^host ports +` + want))
		}
	}
}
