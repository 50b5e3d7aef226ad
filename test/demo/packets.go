// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"
)

// patience is how long one exchange may take.
const patience = 5 * time.Second

// end is one end of an exchange: an address in a network namespace.
type end struct {
	name    string
	address netip.Addr
	within  func(func() error) error
}

func (p *pod) end() end { return end{p.name, p.address.Addr(), p.ns.Do} }

// exchange is what was said: what the receiver got from whom, and what the
// sender got back.
type exchange struct {
	seen          netip.AddrPort
	heard, answer string
}

// verify fails unless everything arrived, from the sender's own address.
func (x exchange) verify(from end, said, answered string) error {
	switch {
	case x.seen.Addr() != from.address:
		return fmt.Errorf("it came from %s, not from %s", x.seen.Addr(), from.address)
	case x.heard != said:
		return fmt.Errorf("%q arrived, not %q", x.heard, said)
	case x.answer != answered:
		return fmt.Errorf("%q came back, not %q", x.answer, answered)
	}
	return nil
}

// send sends a greeting from one end to the other, over udp or tcp, and an
// answer back. The sender's address is left to its namespace.
func send(ctx context.Context, protocol string, from, to end) (exchange, error) {
	talk := overTCP
	if protocol == "udp" {
		talk = overUDP
	}
	said, answered := "hello, "+to.name, "hello back, "+from.name
	x, err := talk(ctx, from, to, said, answered)
	if err == nil {
		err = x.verify(from, said, answered)
	}
	if err != nil {
		return x, fmt.Errorf("%s from %s %s to %s %s: %w", protocol, from.name, from.address, to.name, to.address, err)
	}
	return x, nil
}

func overUDP(ctx context.Context, from, to end, said, answered string) (x exchange, err error) {
	var server, client *net.UDPConn
	err = to.within(func() (err error) {
		server, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(to.address, 0)))
		return err
	})
	if err != nil {
		return x, err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	err = from.within(func() (err error) {
		client, err = net.DialUDP("udp", nil, server.LocalAddr().(*net.UDPAddr))
		return err
	})
	if err != nil {
		return x, err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	if x.heard, x.seen, err = repeat(ctx, client, server, said); err != nil {
		return x, err
	}
	if _, err := server.WriteToUDPAddrPort([]byte(answered), x.seen); err != nil {
		return x, err
	}
	buf := make([]byte, 64)
	err = client.SetReadDeadline(time.Now().Add(patience))
	if err == nil {
		var n int
		n, err = client.Read(buf)
		x.answer = string(buf[:n])
	}
	return x, err
}

// repeat sends text until it arrives: UDP promises nothing.
func repeat(ctx context.Context, client, server *net.UDPConn, text string) (string, netip.AddrPort, error) {
	buf := make([]byte, 64)
	for late := time.Now().Add(patience); ; {
		if _, err := client.Write([]byte(text)); err != nil {
			return "", netip.AddrPort{}, err
		}
		if err := server.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
			return "", netip.AddrPort{}, err
		}
		n, from, err := server.ReadFromUDPAddrPort(buf)
		if err == nil {
			return string(buf[:n]), netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), nil
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) || time.Now().After(late) || ctx.Err() != nil {
			return "", netip.AddrPort{}, err
		}
	}
}

func overTCP(ctx context.Context, from, to end, said, answered string) (x exchange, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var listener *net.TCPListener
	var client net.Conn
	err = to.within(func() (err error) {
		listener, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(to.address, 0)))
		return err
	})
	if err != nil {
		return x, err
	}
	defer func() { err = errors.Join(err, listener.Close()) }()
	err = from.within(func() (err error) {
		client, err = (&net.Dialer{}).DialContext(ctx, "tcp", listener.Addr().String())
		return err
	})
	if err != nil {
		return x, err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	server, err := listener.AcceptTCP() // the kernel has accepted it already
	if err != nil {
		return x, err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	seen := server.RemoteAddr().(*net.TCPAddr).AddrPort()
	x.seen = netip.AddrPortFrom(seen.Addr().Unmap(), seen.Port())
	if x.heard, err = pass(client, server, said); err == nil {
		x.answer, err = pass(server, client, answered)
	}
	return x, err
}

// pass writes text at one end of a connection and reads as much at the other.
func pass(from, to net.Conn, text string) (string, error) {
	late := time.Now().Add(patience)
	if err := errors.Join(from.SetDeadline(late), to.SetDeadline(late)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(from, text); err != nil {
		return "", err
	}
	buf := make([]byte, len(text))
	n, err := io.ReadFull(to, buf)
	return string(buf[:n]), err
}
