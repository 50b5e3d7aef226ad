// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"
)

// patience limits the time of one stream.
const patience = time.Minute

// connect opens a TCP connection between two places.
func connect(t testing.TB, from, to Place, is4 bool) (client, server net.Conn, err error) {
	var listener *net.TCPListener
	err = to.Net.Do(func() (err error) {
		listener, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(to.Addr(is4), 0)))
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = listener.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err = from.Net.Do(func() (err error) {
		client, err = (&net.Dialer{}).DialContext(ctx, "tcp", listener.Addr().String())
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	server, err = listener.AcceptTCP()
	return client, server, err
}

// Transfer sends size random bytes by TCP, and compares what arrives.
func Transfer(t testing.TB, from, to Place, is4 bool, size int) error {
	client, server, err := connect(t, from, to, is4)
	if err != nil {
		return fmt.Errorf("TCP from %s to %s: %w", from.Name, to.Name, err)
	}
	defer client.Close()
	defer server.Close()
	late := time.Now().Add(patience)
	if err := errors.Join(client.SetDeadline(late), server.SetDeadline(late)); err != nil {
		return err
	}
	sums := [2]hash.Hash{sha256.New(), sha256.New()}
	sent := make(chan error, 1)
	go func() {
		source := rand.NewChaCha8([32]byte{1})
		_, err := io.CopyN(io.MultiWriter(client, sums[0]), source, int64(size))
		sent <- errors.Join(err, client.(*net.TCPConn).CloseWrite())
	}()
	n, err := io.Copy(sums[1], server)
	if err = errors.Join(err, <-sent); err != nil {
		return fmt.Errorf("TCP from %s to %s, after %d bytes: %w", from.Name, to.Name, n, err)
	}
	if string(sums[0].Sum(nil)) != string(sums[1].Sum(nil)) {
		return fmt.Errorf("TCP from %s to %s: %d other bytes arrived", from.Name, to.Name, n)
	}
	return nil
}

// Throughput sends by TCP for a time, and returns bits a second.
func Throughput(t testing.TB, from, to Place, is4 bool, length time.Duration) float64 {
	t.Helper()
	client, server, err := connect(t, from, to, is4)
	must(t, err)
	defer client.Close()
	defer server.Close()
	go func() {
		buf := make([]byte, 1<<17)
		for {
			if _, err := client.Write(buf); err != nil {
				return
			}
		}
	}()
	began, total, buf := time.Now(), 0, make([]byte, 1<<18)
	must(t, server.SetDeadline(began.Add(length+patience)))
	for time.Since(began) < length {
		n, err := server.Read(buf)
		must(t, err)
		total += n
	}
	return float64(total) * 8 / time.Since(began).Seconds()
}
