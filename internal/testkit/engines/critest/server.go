// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package critest serves the CRI over a real unix socket, for tests of programs that read
// the sandboxes of a container runtime. Its sandboxes are entries of a list; no process
// and no network namespace belongs to them. Faults are for tests: a call that hangs or
// fails, a runtime that is not ready, a restart, a socket without a listener.
//
// Any goroutine may call a Server; Start and Stop take turns.
package critest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Sandbox is a pod sandbox of the server.
type Sandbox struct {
	ID, Namespace, Name, UID string

	NotReady bool
	HostNet  bool
	Created  time.Time
	NetNS    string
	Addrs    []netip.Addr
	Info     string // the verbose information; "": what containerd answers for NetNS
}

// Server is a container runtime that answers Version, Status, ListPodSandbox and
// PodSandboxStatus.
type Server struct {
	cri.UnimplementedRuntimeServiceServer

	path    string
	running sync.WaitGroup

	mu        sync.Mutex
	grpc      *grpc.Server // nil: stopped
	name      string
	notReady  string
	silent    bool
	sandboxes []Sandbox
	before    func(ctx context.Context, method string) error
	calls     map[string]int
}

// New returns a server that is named containerd and does not listen yet.
func New(socket string) *Server {
	return &Server{path: socket, name: "containerd", calls: map[string]int{}}
}

// Start listens at the socket.
func (s *Server) Start() error {
	l, err := net.Listen("unix", s.path)
	if err != nil {
		return fmt.Errorf("start the runtime: %w", err)
	}
	g := grpc.NewServer(grpc.UnaryInterceptor(s.intercept))
	cri.RegisterRuntimeServiceServer(g, s)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.grpc != nil {
		return errors.Join(fmt.Errorf("start the runtime: it is running at %s", s.path), l.Close())
	}
	s.grpc = g
	s.running.Go(func() { _ = g.Serve(l) }) // it ends with Stop
	return nil
}

// Stop breaks all connections, and removes the socket.
func (s *Server) Stop() {
	s.mu.Lock()
	g := s.grpc
	s.grpc = nil
	s.mu.Unlock()
	if g != nil {
		g.Stop()
	}
	s.running.Wait()
}

// SetName sets the name of the runtime.
func (s *Server) SetName(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.name = name
}

// SetNotReady makes the status say that the runtime is not ready for this reason; with ""
// it is ready.
func (s *Server) SetNotReady(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notReady = reason
}

// SetSilent makes the status say nothing of whether the runtime is ready.
func (s *Server) SetSilent(silent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent = silent
}

// Set replaces all sandboxes.
func (s *Server) Set(all ...Sandbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sandboxes = all
}

// Before has f called at the begin of each call with its name, such as ListPodSandbox. A
// call whose f returns an error fails with it; f may wait for the end of ctx.
func (s *Server) Before(f func(ctx context.Context, method string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = f
}

// Calls returns the number of calls of a method.
func (s *Server) Calls(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[method]
}

func (s *Server) intercept(
	ctx context.Context,
	q any,
	info *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler,
) (any, error) {
	method := path.Base(info.FullMethod)
	s.mu.Lock()
	before := s.before
	s.calls[method]++
	s.mu.Unlock()
	if before != nil {
		if err := before(ctx, method); err != nil {
			return nil, err
		}
	}
	return handler(ctx, q)
}

// Version returns the name of the runtime.
func (s *Server) Version(context.Context, *cri.VersionRequest) (*cri.VersionResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &cri.VersionResponse{
		Version:           "0.1.0",
		RuntimeName:       s.name,
		RuntimeVersion:    "2.1.4",
		RuntimeApiVersion: "v1",
	}, nil
}

// Status returns the condition RuntimeReady.
func (s *Server) Status(context.Context, *cri.StatusRequest) (*cri.StatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ready := &cri.RuntimeCondition{Type: cri.RuntimeReady, Status: s.notReady == ""}
	if s.notReady != "" {
		ready.Reason, ready.Message = "NotReady", s.notReady
	}
	conditions := []*cri.RuntimeCondition{{Type: cri.NetworkReady}}
	if !s.silent {
		conditions = append(conditions, ready)
	}
	return &cri.StatusResponse{Status: &cri.RuntimeStatus{Conditions: conditions}}, nil
}

// ListPodSandbox returns all sandboxes.
func (s *Server) ListPodSandbox(
	context.Context,
	*cri.ListPodSandboxRequest,
) (*cri.ListPodSandboxResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := &cri.ListPodSandboxResponse{}
	for _, x := range s.sandboxes {
		a.Items = append(a.Items, &cri.PodSandbox{
			Id:        x.ID,
			Metadata:  x.metadata(),
			State:     x.state(),
			CreatedAt: x.Created.UnixNano(),
		})
	}
	return a, nil
}

// PodSandboxStatus returns the details of a sandbox.
func (s *Server) PodSandboxStatus(
	_ context.Context,
	q *cri.PodSandboxStatusRequest,
) (*cri.PodSandboxStatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.sandboxes {
		if x.ID != q.GetPodSandboxId() {
			continue
		}
		a := &cri.PodSandboxStatusResponse{Status: x.status()}
		if q.GetVerbose() {
			info, err := x.info()
			if err != nil {
				return nil, err
			}
			a.Info = map[string]string{"info": info}
		}
		return a, nil
	}
	return nil, status.Errorf(codes.NotFound, "an error occurred when try to find sandbox: not found")
}

func (x Sandbox) metadata() *cri.PodSandboxMetadata {
	return &cri.PodSandboxMetadata{Name: x.Name, Namespace: x.Namespace, Uid: x.UID}
}

func (x Sandbox) state() cri.PodSandboxState {
	if x.NotReady {
		return cri.PodSandboxState_SANDBOX_NOTREADY
	}
	return cri.PodSandboxState_SANDBOX_READY
}

func (x Sandbox) status() *cri.PodSandboxStatus {
	a := &cri.PodSandboxStatus{
		Id:        x.ID,
		Metadata:  x.metadata(),
		State:     x.state(),
		CreatedAt: x.Created.UnixNano(),
		Network:   &cri.PodSandboxNetworkStatus{},
		Linux:     &cri.LinuxPodSandboxStatus{Namespaces: &cri.Namespace{Options: &cri.NamespaceOption{}}},
	}
	if x.HostNet {
		a.Linux.Namespaces.Options.Network = cri.NamespaceMode_NODE
	}
	for i, addr := range x.Addrs {
		if i == 0 {
			a.Network.Ip = addr.String()
			continue
		}
		a.Network.AdditionalIps = append(a.Network.AdditionalIps, &cri.PodIP{Ip: addr.String()})
	}
	return a
}

// info returns the verbose information in the form of containerd.
func (x Sandbox) info() (string, error) {
	if x.Info != "" {
		return x.Info, nil
	}
	namespaces := []map[string]string{{"type": "pid"}, {"type": "network", "path": x.NetNS}}
	text, err := json.Marshal(map[string]any{
		"pid":         4711,
		"runtimeSpec": map[string]any{"linux": map[string]any{"namespaces": namespaces}},
	})
	return string(text), err
}

// ServeWithoutCRI listens at a socket as a containerd does whose CRI is disabled: gRPC
// without the runtime service.
func ServeWithoutCRI(socket string) (stop func(), err error) {
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, fmt.Errorf("start a program without the CRI: %w", err)
	}
	g := grpc.NewServer()
	var running sync.WaitGroup
	running.Go(func() { _ = g.Serve(l) })
	return func() {
		g.Stop()
		running.Wait()
	}, nil
}
