// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package traffic sends packets between network namespaces and counts those that arrive, so
// that all tests of data planes measure in the same way.
//
// The functions take the test that they belong to: they end it if this machine refuses a
// socket, and close what they open when it ends. A packet that does not arrive is a result.
package traffic
