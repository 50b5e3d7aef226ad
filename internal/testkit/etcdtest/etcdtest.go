// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package etcdtest runs real etcd servers inside of a test or a tool, and
// causes the faults that etcd has. Members stop and come back, lose their data
// or go back to an older state. Histories are compacted. Networks between
// client and server are slow, cut or half-open.
//
// What Start, StartCluster and StartProxy start ends with the test. NewProxy belongs
// to programs: its caller calls Close. A Server listens on
// the loopback interface, always at the same endpoint, whatever is done to it.
// Its methods may be called from any goroutine; those that stop it wait for one
// another. After one has failed the server is stopped, and Restart may be tried.
// Nothing is synced to the disk: a server survives its own end, not that of the
// machine.
//
// Stop is a death, not a farewell: requests and streams are broken off, and a
// leader does not hand over. Three ways lead to another past at the same
// endpoint. After Wipe the server is empty, and by all that a client is told it
// is the same cluster. After Replace it is empty, and another cluster. Restore
// goes back to an earlier Snapshot.
//
// A Proxy stands between a client and one server. What it is told holds at
// once, for connections that are open and for later ones:
//
//	server := etcdtest.Start(t)
//	proxy := etcdtest.StartProxy(t, server.Address())
//	client, err := clientv3.New(clientv3.Config{Endpoints: []string{proxy.Address()}})
//	...
//	proxy.Delay(20 * time.Millisecond) // each way
//	proxy.Mute()                       // requests arrive, answers are lost
//	proxy.Blackhole()                  // nothing arrives, and no error is sent
//	proxy.Cut()                        // connections are reset, new ones too
//	proxy.Pass()                       // all well again
//
// A cluster of three, which loses its leader and then its quorum:
//
//	cluster := etcdtest.StartCluster(t, 3)
//	leader, _ := cluster.Leader()
//	err := cluster.Members[leader].Stop()
//	err = cluster.Members[(leader+1)%3].Stop()
//	...
//	err = cluster.Members[leader].Restart()
package etcdtest

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// TB has the methods of *testing.T and *testing.B that this package calls.
type TB interface {
	Helper()
	TempDir() string
	Cleanup(func())
	Fatalf(format string, args ...any)
}

// Option changes how a server runs.
type Option func(*options)

type options struct {
	tick     time.Duration
	tls      bool
	maxBytes uint
}

// TLS lets clients in with a certificate only, which Server.ClientTLS has.
func TLS() Option { return func(o *options) { o.tls = true } }

// tick is the interval of heartbeats; an election begins after ten. The
// default is 10 ms for one server and 100 ms for several, which have to keep
// pace with each other on a busy machine.
func tick(d time.Duration) Option { return func(o *options) { o.tick = d } }

// MaxRequestBytes limits the size of a request, and about the size of a
// fragment of a watch's answer is. The default is etcd's own, 1.5 MiB.
func MaxRequestBytes(n uint) Option { return func(o *options) { o.maxBytes = n } }

// Start runs one server until the test ends.
func Start(tb TB, opts ...Option) *Server {
	tb.Helper()
	s, err := startIn(tb.TempDir(), opts...)
	if err != nil {
		tb.Fatalf("%v", err)
	}
	tb.Cleanup(func() { _ = s.Close() })
	return s
}

// startIn runs one server with its data, certificates and snapshots below dir.
func startIn(dir string, opts ...Option) (*Server, error) {
	servers, err := startAll(dir, 1, append([]Option{tick(10 * time.Millisecond)}, opts...))
	if err != nil {
		return nil, fmt.Errorf("start etcd in %s: %w", dir, err)
	}
	return servers[0], nil
}

// attempts limits the tries of other ports if the chosen ones are taken.
const attempts = 5

func startAll(dir string, n int, opts []Option) (servers []*Server, err error) {
	var o options
	for _, set := range opts {
		set(&o)
	}
	var client *tls.Config
	if o.tls {
		if client, err = writeCertificates(dir); err != nil {
			return nil, err
		}
	}
	for range attempts {
		if servers, err = configure(dir, n, o); err != nil {
			return nil, err
		}
		for _, s := range servers {
			s.client = client
		}
		if err = run(servers); !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return servers, err
}

// configure makes members of one cluster, which do not run yet.
func configure(dir string, n int, o options) ([]*Server, error) {
	scheme := "http"
	if o.tls {
		scheme = "https"
	}
	var servers []*Server
	peers := ""
	for i := range n {
		ports, err := freePorts(2)
		if err != nil {
			return nil, err
		}
		s := &Server{
			options: o,
			name:    "member" + strconv.Itoa(i),
			dir:     filepath.Join(dir, "member"+strconv.Itoa(i)),
			certs:   dir,
			address: ports[0],
			scheme:  scheme,
			peer:    "http://" + ports[1],
			token:   "etcdtest",
		}
		peers += "," + s.name + "=" + s.peer
		servers = append(servers, s)
	}
	for _, s := range servers {
		s.cluster = peers[1:]
	}
	return servers, nil
}

// run starts servers that need each other to get ready.
func run(servers []*Server) (err error) {
	for _, s := range servers {
		s.mu.Lock()
		defer s.mu.Unlock()
		err = errors.Join(err, s.launch())
	}
	for _, s := range servers {
		if err == nil {
			err = s.await()
		}
	}
	if err != nil {
		for _, s := range servers {
			s.halt()
		}
	}
	return err
}

// freePorts finds ports without a listener. They are below those that the
// kernel gives to outgoing connections. A client that dials such a one while
// the server is away may end up connected to itself, and keep the port.
func freePorts(n int) ([]string, error) {
	const low, high = 12000, 32000
	var free []string
	for range 100 * n {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(low+rand.IntN(high-low)))
		l, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		_ = l.Close()
		if free = append(free, address); len(free) == n {
			return free, nil
		}
	}
	return nil, fmt.Errorf("find %d free ports: %w", n, fs.ErrNotExist)
}
