// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package netlab opens network namespaces from Go, for the demo and the
// end-to-end tests. It needs no ip and no mounts. It leaves nothing behind,
// because a namespace here lives exactly as long as the file descriptor that
// holds it (or a process inside it).
//
// No function changes the network namespace that the program was started in.
// New and Do need CAP_SYS_ADMIN and CAP_NET_ADMIN. A program without root gets both by
// starting itself once more with Enter, as root of a user and network namespace
// of its own. Try says whether the machine allows it, by doing it.
//
// Echo, Reach, Flow and Transfer send packets between namespaces and count those that arrive,
// so that all tests of data planes measure in the same way. They take the test that they
// belong to: they end it if this machine refuses a socket, and close what they open when it
// ends. A packet that does not arrive is a result.
package netlab
