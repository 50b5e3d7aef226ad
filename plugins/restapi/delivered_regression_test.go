// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi_test

import (
	"bytes"
	"context"
	"net/http/httptest"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/cniclient"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
	"github.com/cadastre/cadastre/plugins/restapi"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// satisfied is a caller that hangs up as soon as it has the whole answer, as
// one may that reads by Content-Length.
type satisfied struct {
	*httptest.ResponseRecorder
	hangUp context.CancelFunc
}

func (s satisfied) Flush() {
	s.ResponseRecorder.Flush()
	s.hangUp()
}

// A caller that hangs up after the answer has the answer. If the agent released the
// lease, another pod would get the address while the caller uses it.
func TestACallerThatHangsUpAfterTheAnswer(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t)
	a.reply = cni.Reply{IPs: []cni.IP{{Address: "10.1.5.9/24"}}}
	var delivered []error
	a.deps.Pods = &pods{serve: a.serveCNI, delivered: func(err error) { delivered = append(delivered, err) }}
	c, cancel := context.WithCancel(ctx())
	defer cancel()
	r := httptest.NewRequest("POST", localapi.PathCNI, bytes.NewReader(cniclient.Body(cni.Request{
		Command: "ADD", Network: "pods", ContainerID: "c9", IfName: "eth0", Netns: "/run/netns/c9",
	})))
	w := satisfied{httptest.NewRecorder(), cancel}
	restapi.NewPlugin(a.deps).Handler().ServeHTTP(w, r.WithContext(c))
	g.Expect(w.Body.String()).To(ContainSubstring("10.1.5.9/24"))
	g.Expect(delivered).To(Equal([]error{nil}))
}
