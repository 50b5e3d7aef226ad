// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package vpp makes the values of transactions true in VPP 25.10, a switch in user space, over
// its binary API. Its kinds are those of package southbound/linux for another data plane: the
// same values, and the same scheduler.
//
// # Connection
//
// The kinds share one connection, which the first request opens. If VPP ends, requests that wait
// for a reply fail with southbound.ErrAway, and all values are pending. Watch connects again.
// After each connection all values are compared with VPP: a VPP that was
// restarted has lost them, and gets them again with the same MAC addresses.
//
// # Own objects
//
// An interface is recognised by its tag, which names the key of its value; a bridge domain and
// a table likewise by tag and name; a route by its source in the FIB. Other objects stay.
package vpp
