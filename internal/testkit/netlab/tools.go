// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
)

// Why returns the reason why this process cannot make networks with IP, "" if it can.
func Why() string {
	if err := Try(); err != nil {
		return fmt.Sprintf("this process cannot make network namespaces: %v", err)
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return "the program ip is missing (Debian: iproute2)"
	}
	return ""
}

// IP runs commands of ip in the namespace, with one process.
func (n *Namespace) IP(commands ...string) error {
	cmd := exec.Command("ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := n.Do(cmd.Run); err != nil {
		return fmt.Errorf("ip %q: %w: %s", commands, err, &out)
	}
	return nil
}

// Show returns the output of one command of ip in the namespace.
func (n *Namespace) Show(command string) (string, error) {
	var out []byte
	err := n.Do(func() (err error) {
		out, err = exec.Command("ip", strings.Fields(command)...).CombinedOutput()
		return err
	})
	if err != nil {
		return "", fmt.Errorf("ip %s: %w: %s", command, err, out)
	}
	return string(out), nil
}

// Forward makes the namespace forward packets of both families.
func (n *Namespace) Forward() error {
	return n.Do(func() error {
		for _, path := range []string{"/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"} {
			if err := os.WriteFile(path, []byte("1"), 0o600); err != nil {
				return err
			}
		}
		return nil
	})
}

// Relay listens on a TCP address inside the namespace, and passes connections on to an
// address outside. It returns the address with its port, and the function that ends it.
func (n *Namespace) Relay(address, to string) (bound string, stop func(), err error) {
	var listener net.Listener
	err = n.Do(func() (err error) {
		listener, err = net.Listen("tcp", address)
		return err
	})
	if err != nil {
		return "", nil, err
	}
	var all sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	all.Go(func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() { relay(ctx, in, to) })
		}
	})
	return listener.Addr().String(), func() { cancel(); _ = listener.Close(); all.Wait() }, nil
}

// relay passes one connection on until either end closes it.
func relay(ctx context.Context, in net.Conn, to string) {
	defer in.Close()
	out, err := (&net.Dialer{}).DialContext(ctx, "tcp", to)
	if err != nil {
		return
	}
	defer out.Close()
	defer context.AfterFunc(ctx, func() { _ = in.Close(); _ = out.Close() })()
	var back sync.WaitGroup
	back.Go(func() { _, _ = io.Copy(in, out); _ = in.Close() })
	_, _ = io.Copy(out, in)
	_ = out.Close()
	back.Wait()
}
