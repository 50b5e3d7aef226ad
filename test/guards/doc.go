// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package guards holds the repository to its rules: which package may import which, what
// no source may contain, what every folder must have. It has tests only; they
// read the tree that they stand in and change nothing.
//
// A guard is a function from sources (or packages, or pages) to findings. Each
// has a bad case in memory that it must find, so that a guard that has gone
// blind fails too.
//
// Exceptions stand beside the guard, each with its reason. One that nothing
// needs any more is an error: the lists can only shrink, unless a
// developer adds to them on purpose.
//
// Example: a plugin that calls net.ParseIP ends in
//
//	plugins/ipnet/ipnet.go:31: net.ParseIP: net/netip is used everywhere but at the borders to net.IP
package guards
