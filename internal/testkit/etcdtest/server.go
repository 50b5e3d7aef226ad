// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package etcdtest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// patience limits the time until a server is ready.
const patience = 30 * time.Second

// bcryptCost is the lowest there is: passwords are not what is tested.
const bcryptCost = 4

// Server is one etcd server, running or stopped.
type Server struct {
	options
	name, dir, certs string
	address, scheme  string
	peer, cluster    string
	client           *tls.Config

	mu        sync.Mutex
	token     string
	etcd      *embed.Etcd        // nil while stopped
	hangUp    context.CancelFunc // breaks off what clients wait for
	snapshots int
	clusters  int
}

// Address is host:port of the server for clients.
func (s *Server) Address() string { return s.address }

// Endpoint is the server's URL for clients.
func (s *Server) Endpoint() string { return s.scheme + "://" + s.address }

// ClientTLS returns the configuration of a client, nil for a server without TLS.
func (s *Server) ClientTLS() *tls.Config { return s.client.Clone() }

// ClientFiles are the files with the same, where TLS was asked for.
func (s *Server) ClientFiles() (ca, cert, key string) {
	return filepath.Join(s.certs, caCert), filepath.Join(s.certs, clientCert), filepath.Join(s.certs, clientKey)
}

// Stop ends the server as a crash would. It may be stopped already.
func (s *Server) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.halt()
	return nil
}

// Close is Stop, for those who defer it.
func (s *Server) Close() error { return s.Stop() }

// Restart starts the server again with the data that it had, and waits until
// it serves; a member of a cluster waits for a quorum. If it runs it is stopped
// first.
func (s *Server) Restart() error {
	return s.between("restart", func() error { return nil })
}

// between does something while the server is stopped, and starts it again.
func (s *Server) between(what string, do func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.halt()
	err := do()
	if err == nil {
		err = s.launch()
	}
	if err == nil {
		err = s.await()
	}
	if err != nil {
		s.halt()
		return fmt.Errorf("%s etcd at %s: %w", what, s.address, err)
	}
	return nil
}

func (s *Server) launch() error {
	cfg, err := s.config()
	if err != nil {
		return err
	}
	var lost context.Context
	lost, s.hangUp = context.WithCancel(context.Background())
	cfg.GRPCAdditionalServerOptions = []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(breakCalls(lost)), grpc.ChainStreamInterceptor(breakStreams(lost)),
	}
	if s.etcd, err = embed.StartEtcd(cfg); err != nil {
		s.hangUp()
		return fmt.Errorf("start etcd: %w", err)
	}
	return nil
}

func (s *Server) await() error {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-s.etcd.Server.ReadyNotify():
		return nil
	case <-s.etcd.Server.StopNotify():
		return errors.New("etcd stopped while it started")
	case err := <-s.etcd.Err():
		return fmt.Errorf("start etcd: %w", err)
	case <-timer.C:
		return fmt.Errorf("etcd is not ready after %v", patience)
	}
}

// halt stops the server without a word to its peers: closed in the usual order it
// would hand over its leadership, and wait for seconds for open watches.
func (s *Server) halt() {
	if s.etcd == nil {
		return
	}
	s.hangUp()
	s.etcd.Server.HardStop()
	s.etcd.Close()
	s.etcd = nil
}

// running calls do with the server, if it runs.
func (s *Server) running(do func(*embed.Etcd) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.etcd == nil {
		return fmt.Errorf("etcd at %s is stopped: %w", s.address, os.ErrClosed)
	}
	return do(s.etcd)
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

func (s *Server) config() (*embed.Config, error) {
	cfg := embed.NewConfig()
	cfg.Name = s.name
	cfg.Dir = s.data()
	cfg.InitialCluster = s.cluster
	cfg.InitialClusterToken = s.token
	cfg.TickMs = uint(s.tick.Milliseconds())
	cfg.ElectionMs = 10 * cfg.TickMs
	cfg.UnsafeNoFsync = true
	cfg.BcryptCost = bcryptCost
	cfg.EnableGRPCGateway = false
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	if s.maxBytes > 0 {
		cfg.MaxRequestBytes = s.maxBytes
	}
	if s.tls {
		cfg.ClientTLSInfo.CertFile = filepath.Join(s.certs, serverCert)
		cfg.ClientTLSInfo.KeyFile = filepath.Join(s.certs, serverKey)
		cfg.ClientTLSInfo.TrustedCAFile = filepath.Join(s.certs, caCert)
		cfg.ClientTLSInfo.ClientCertAuth = true
	}
	client, err := url.Parse(s.Endpoint())
	if err != nil {
		return nil, fmt.Errorf("configure etcd: %w", err)
	}
	peer, err := url.Parse(s.peer)
	if err != nil {
		return nil, fmt.Errorf("configure etcd: %w", err)
	}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, fmt.Errorf("configure etcd: %w", err)
	}
	return cfg, nil
}

// breakCalls ends requests when lost ends.
func breakCalls(lost context.Context) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(lost, cancel)()
		return handle(ctx, req)
	}
}

// breakStreams ends streams when lost ends.
func breakStreams(lost context.Context) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
		ctx, cancel := context.WithCancel(stream.Context())
		defer cancel()
		defer context.AfterFunc(lost, cancel)()
		return handle(srv, breakable{stream, ctx})
	}
}

type breakable struct {
	grpc.ServerStream
	ctx context.Context
}

func (b breakable) Context() context.Context { return b.ctx }
