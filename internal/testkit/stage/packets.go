// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package stage

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

// patience limits the time of one exchange.
const patience = 5 * time.Second

// End is one end of an exchange: an address in a network namespace.
type End struct {
	Name    string
	Address netip.Addr
	Within  func(func() error) error
}

// End is the pod as an end.
func (p *Pod) End() End { return End{p.Name, p.Address.Addr(), p.ns.Do} }

// Exchange holds the packet that the receiver got, with its source, and the answer that
// the sender got.
type Exchange struct {
	Seen          netip.AddrPort
	Heard, Answer string
}

// verify fails unless everything arrived, from the sender's own address.
func (x Exchange) verify(from End, said, answered string) error {
	switch {
	case x.Seen.Addr() != from.Address:
		return fmt.Errorf("it came from %s, not from %s", x.Seen.Addr(), from.Address)
	case x.Heard != said:
		return fmt.Errorf("%q arrived, not %q", x.Heard, said)
	case x.Answer != answered:
		return fmt.Errorf("%q came back, not %q", x.Answer, answered)
	}
	return nil
}

// Send sends a greeting from one end to the other, over udp or tcp, and an
// answer back. The sender's address is left to its namespace.
func Send(ctx context.Context, protocol string, from, to End) (Exchange, error) {
	talk := overTCP
	if protocol == "udp" {
		talk = overUDP
	}
	said, answered := "hello, "+to.Name, "hello back, "+from.Name
	x, err := talk(ctx, from, to, said, answered)
	if err == nil {
		err = x.verify(from, said, answered)
	}
	if err != nil {
		return x, fmt.Errorf("%s from %s %s to %s %s: %w", protocol, from.Name, from.Address, to.Name, to.Address, err)
	}
	return x, nil
}

func overUDP(ctx context.Context, from, to End, said, answered string) (x Exchange, err error) {
	var server, client *net.UDPConn
	err = to.Within(func() (err error) {
		server, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(to.Address, 0)))
		return err
	})
	if err != nil {
		return x, err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	err = from.Within(func() (err error) {
		client, err = net.DialUDP("udp", nil, server.LocalAddr().(*net.UDPAddr))
		return err
	})
	if err != nil {
		return x, err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	if x.Heard, x.Seen, err = repeat(ctx, client, server, said); err != nil {
		return x, err
	}
	if _, err := server.WriteToUDPAddrPort([]byte(answered), x.Seen); err != nil {
		return x, err
	}
	buf := make([]byte, 64)
	err = client.SetReadDeadline(time.Now().Add(patience))
	if err == nil {
		var n int
		n, err = client.Read(buf)
		x.Answer = string(buf[:n])
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

func overTCP(ctx context.Context, from, to End, said, answered string) (x Exchange, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var listener *net.TCPListener
	var client net.Conn
	err = to.Within(func() (err error) {
		listener, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(to.Address, 0)))
		return err
	})
	if err != nil {
		return x, err
	}
	defer func() { err = errors.Join(err, listener.Close()) }()
	err = from.Within(func() (err error) {
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
	x.Seen = netip.AddrPortFrom(seen.Addr().Unmap(), seen.Port())
	if x.Heard, err = pass(client, server, said); err == nil {
		x.Answer, err = pass(server, client, answered)
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
