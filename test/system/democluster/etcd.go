// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"

	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// etcdVerb makes the program etcd.
const etcdVerb = "etcd"

// etcdReady is its output when it serves.
const etcdReady = "ready\n"

// serveEtcd runs etcd until ctx ends, or it is killed.
func serveEtcd(ctx context.Context, args []string, stdout io.Writer) error {
	fs := flag.NewFlagSet(etcdVerb, flag.ContinueOnError)
	fs.SetOutput(io.Discard) // the error says it
	dir := fs.String("data", "", "the `directory` of its data")
	client := fs.String("client", "", "the `URL` to serve")
	peer := fs.String("peer", "", "the `URL` for other members, of which there are none")
	if err := fs.Parse(args); err != nil {
		return err
	}
	clientURL, err := url.Parse(*client)
	if err != nil {
		return err
	}
	peerURL, err := url.Parse(*peer)
	if err != nil {
		return err
	}
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir, cfg.LogLevel = "demo", *dir, "warn"
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{*clientURL}, []url.URL{*clientURL}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{*peerURL}, []url.URL{*peerURL}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.TickMs, cfg.ElectionMs = 50, 500 // a single member
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	defer server.Close()
	select {
	case <-server.Server.ReadyNotify():
		signal.Ignore(syscall.SIGPIPE)
		_, _ = io.WriteString(stdout, etcdReady) // unless the reader has ended
	case err := <-server.Err():
		return err
	case <-ctx.Done():
		return nil
	}
	select {
	case err := <-server.Err():
		return err
	case <-ctx.Done():
		return nil
	}
}

// etcd is the cluster's store.
type etcd struct {
	dir          string // its own
	client, peer string // URLs
	within       func(func() error) error
	process      *stage.Process // nil while it does not run
}

func (e *etcd) data() string { return filepath.Join(e.dir, "data") }
func (e *etcd) log() string  { return filepath.Join(e.dir, "etcd.log") }

// start starts it with the data that there are, and waits until it serves.
func (e *etcd) start(ctx context.Context) error {
	cmd, err := stage.Again(
		context.WithoutCancel(ctx),
		etcdVerb,
		"--data",
		e.data(),
		"--client",
		e.client,
		"--peer",
		e.peer,
	)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(e.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open etcd's log: %w", err)
	}
	said, stdout, err := os.Pipe()
	if err != nil {
		return errors.Join(err, log.Close())
	}
	cmd.Stdout, cmd.Stderr = stdout, log
	e.process, err = stage.Start(cmd, e.within)
	if err = errors.Join(err, stdout.Close(), log.Close()); err == nil { // it has its own
		err = await(ctx, said)
	}
	return errors.Join(err, said.Close())
}

// await waits for what etcd says when it serves.
func await(ctx context.Context, said *os.File) error {
	if err := said.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = said.SetReadDeadline(time.Now()) })()
	buf := make([]byte, len(etcdReady))
	if _, err := io.ReadFull(said, buf); err != nil {
		return fmt.Errorf("etcd does not serve: %w", err)
	}
	return nil
}

// kill ends it with SIGKILL.
func (e *etcd) kill() error {
	p := e.process
	e.process = nil
	return p.Kill()
}

// stop ends it in good order.
func (e *etcd) stop() error {
	p := e.process
	e.process = nil
	return p.Stop(10 * time.Second)
}

// end ends it at once, if it runs: its data is not needed any more.
func (e *etcd) end() error {
	if e.process == nil {
		return nil
	}
	select {
	case <-e.process.Done():
		return e.process.Ended()
	default:
		return e.kill()
	}
}

// freePort returns a port of the loopback interface without a listener, below those
// that the kernel gives to outgoing connections.
func freePort() (netip.AddrPort, error) {
	const low, high = 12000, 32000
	var last error
	for range 100 {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(low+rand.IntN(high-low)))
		l, err := net.Listen("tcp", at.String())
		if err == nil {
			return at, l.Close()
		}
		last = err
	}
	return netip.AddrPort{}, fmt.Errorf("find a free port: %w", last)
}
