// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netlab_test

import (
	"fmt"
	"net"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
)

// A socket stays in the namespace in which it was opened.
func Example() {
	listen := func() (conn net.PacketConn, err error) {
		pod, err := netlab.New()
		if err != nil {
			return nil, err
		}
		defer func() { _ = pod.Close() }()
		err = pod.Do(func() error {
			conn, err = net.ListenPacket("udp", "127.0.0.1:0")
			return err
		})
		fmt.Println("CNI_NETNS=" + pod.Path())
		return conn, err
	}
	_ = listen
}
