// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/cadastre/cadastre/witness"
)

// errNoCRI is returned if a program answers at the socket that does not offer the CRI,
// such as the containerd of a Docker engine.
var errNoCRI = errors.New("answers without the service runtime.v1.RuntimeService")

// conn is a connection to one runtime.
type conn struct {
	client  cri.RuntimeServiceClient
	grpc    *grpc.ClientConn
	timeout time.Duration
	dialled atomic.Int64
	seen    int64 // of dialled, at the last view
	name    string
	version string
	cache   *cache
}

// dial prepares a connection; the first call opens it.
func dial(path string, opt Options, known *cache) (*conn, error) {
	c := &conn{timeout: opt.Timeout, cache: known}
	connect := func(ctx context.Context, _ string) (net.Conn, error) {
		nc, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
		if err == nil {
			c.dialled.Add(1)
		}
		return nc, err
	}
	g, err := grpc.NewClient(
		"passthrough:///runtime",
		grpc.WithTransportCredentials(insecure.NewCredentials()), // the socket's directory is for root only
		grpc.WithContextDialer(connect),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithNoProxy(),
		grpc.WithIdleTimeout(0), // a connection that ends says that the runtime has ended
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(opt.MaxAnswer)),
	)
	if err != nil {
		return nil, fmt.Errorf("prepare a connection to %s: %w", path, err)
	}
	c.grpc, c.client = g, cri.NewRuntimeServiceClient(g)
	return c, nil
}

func (c *conn) dials() int64 { return c.dialled.Load() }

func (c *conn) close() { _ = c.grpc.Close() } // it fails only if it was closed before

// read returns all sandboxes of this runtime.
func (c *conn) read(ctx context.Context, detailed bool) ([]witness.Sandbox, error) {
	if err := c.identify(ctx); err != nil {
		return nil, err
	}
	before := c.dials()
	list, err := call(ctx, c, "list sandboxes", c.client.ListPodSandbox, &cri.ListPodSandboxRequest{})
	if err != nil {
		return nil, err
	}
	if c.dials() != before {
		return nil, errors.New("list sandboxes: the connection has ended after the runtime said that it is ready")
	}
	all, err := sandboxes(list.GetItems())
	if err == nil && detailed {
		err = c.describe(ctx, all)
	}
	return all, err
}

// identify reads the runtime's name and refuses a runtime that is not ready.
func (c *conn) identify(ctx context.Context) error {
	v, err := call(ctx, c, "read its version", c.client.Version, &cri.VersionRequest{})
	if err != nil {
		return err
	}
	if v.GetRuntimeName() == "" {
		return errors.New("its version has no name: want a runtime of the CRI")
	}
	c.name, c.version = v.GetRuntimeName(), v.GetRuntimeVersion()
	s, err := call(ctx, c, "read its status", c.client.Status, &cri.StatusRequest{})
	if err != nil {
		return err
	}
	for _, condition := range s.GetStatus().GetConditions() {
		if condition.GetType() != cri.RuntimeReady {
			continue
		}
		if condition.GetStatus() {
			return nil
		}
		return fmt.Errorf("%s is not ready: %s: %s", c.name, condition.GetReason(), condition.GetMessage())
	}
	return fmt.Errorf("%s does not say whether it is ready: its status has no condition %s", c.name, cri.RuntimeReady)
}

// call calls one function of the runtime, with its own deadline.
func call[Q, A any](
	ctx context.Context,
	c *conn,
	attempt string,
	f func(context.Context, *Q, ...grpc.CallOption) (*A, error),
	q *Q,
) (*A, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	a, err := f(ctx, q)
	s, _ := status.FromError(err)
	switch {
	case err == nil:
		return a, nil
	case s.Code() == codes.Unimplemented:
		return nil, fmt.Errorf("%w: %s", errNoCRI, s.Message())
	case s.Code() == codes.DeadlineExceeded:
		return nil, fmt.Errorf("%s: it has not answered within %s", attempt, c.timeout)
	}
	return nil, fmt.Errorf("%s: %w", attempt, err)
}

// sandboxes converts the answer of a runtime. A sandbox without an ID, or one that is
// listed twice, makes the whole answer unusable.
func sandboxes(items []*cri.PodSandbox) ([]witness.Sandbox, error) {
	all := make([]witness.Sandbox, 0, len(items))
	seen := make(map[string]bool, len(items))
	for _, s := range items {
		if s.GetId() == "" {
			pod := s.GetMetadata().GetNamespace() + "/" + s.GetMetadata().GetName()
			return nil, fmt.Errorf("list sandboxes: sandbox of pod %s has no ID", pod)
		}
		if seen[s.GetId()] {
			return nil, fmt.Errorf("list sandboxes: sandbox %s is listed twice", s.GetId())
		}
		seen[s.GetId()] = true
		all = append(all, witness.Sandbox{
			ID:        s.GetId(),
			Namespace: s.GetMetadata().GetNamespace(),
			Name:      s.GetMetadata().GetName(),
			UID:       s.GetMetadata().GetUid(),
			Ready:     s.GetState() == cri.PodSandboxState_SANDBOX_READY,
			Created:   time.Unix(0, s.GetCreatedAt()),
		})
	}
	return all, nil
}
