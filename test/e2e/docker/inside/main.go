// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Command inside is all there is in the image of the end-to-end test with
// Docker. It prints the addresses of its interfaces, one a line.
//
// With the argument "wait" it then waits until SIGTERM ends it in good order.
// With "crash" it makes the one that waits in the same container end badly.
package main

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

func main() {
	if err := addresses(); err != nil {
		fmt.Fprintln(os.Stderr, "inside:", err)
		os.Exit(1)
	}
	switch strings.Join(os.Args[1:], " ") {
	case "crash":
		_ = syscall.Kill(1, syscall.SIGUSR1) // it is always there
	case "wait":
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, syscall.SIGTERM, syscall.SIGUSR1)
		if <-signals == syscall.SIGUSR1 {
			os.Exit(3)
		}
	}
}

// addresses leaves out those of the kernel's own making.
func addresses() error {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return err
	}
	for _, a := range all {
		p, err := netip.ParsePrefix(a.String())
		if err != nil {
			return err
		}
		if !p.Addr().IsLoopback() && !p.Addr().IsLinkLocalUnicast() {
			fmt.Println(p)
		}
	}
	return nil
}
