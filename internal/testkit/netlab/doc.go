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
package netlab
