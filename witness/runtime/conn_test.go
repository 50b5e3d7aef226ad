// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// restarting is a runtime that says that it is ready, and restarts before its list is
// read: gRPC sends the call again over a new connection, without an error.
type restarting struct {
	cri.RuntimeServiceClient
	c *conn
}

func (restarting) Version(context.Context, *cri.VersionRequest, ...grpc.CallOption) (*cri.VersionResponse, error) {
	return &cri.VersionResponse{RuntimeName: "containerd"}, nil
}

func (restarting) Status(context.Context, *cri.StatusRequest, ...grpc.CallOption) (*cri.StatusResponse, error) {
	return &cri.StatusResponse{Status: &cri.RuntimeStatus{Conditions: []*cri.RuntimeCondition{{Type: cri.RuntimeReady, Status: true}}}}, nil
}

func (r restarting) ListPodSandbox(context.Context, *cri.ListPodSandboxRequest, ...grpc.CallOption) (*cri.ListPodSandboxResponse, error) {
	r.c.dialled.Add(1)
	return &cri.ListPodSandboxResponse{}, nil
}

func TestListOfAnotherConnection(t *testing.T) {
	g := NewWithT(t)
	c := &conn{timeout: time.Minute}
	c.client = restarting{c: c}
	_, err := c.read(t.Context(), false)
	g.Expect(err).To(MatchError(ContainSubstring("the connection has ended after the runtime said that it is ready")))
}
