// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package mototest starts moto_server, a mock of EC2's API, for tests of the provider and
// for end-to-end tests. It skips a test, with the reason, if moto is not installed
// (pip install 'moto[server]').
//
// moto 5 deviates from EC2. The script strict.py, which the package runs, replaces parts of
// moto with the rules of EC2:
//
//   - addresses are unique, and those that EC2 reserves are not assigned;
//   - an answer to an assignment has the new addresses only;
//   - an interface has as many addresses, and a machine as many interfaces, as its type allows;
//   - a subnet can be full;
//   - an address that is not there cannot be removed, nor can an interface's own one;
//   - an interface that a machine has cannot be deleted, nor attached again;
//   - a client token creates one interface;
//   - DeleteOnTermination is honoured, and a terminated machine has no interfaces;
//   - interfaces are read in pages (of 50);
//   - prefixes exist: moto has none, so this part is a model of this project, not a test against EC2.
//
// Deviations that remain: changes are visible at once and an interface is detached at once
// (faultproxy makes readings old), requests are not signed, and there is no throttling.
//
// A Server may be used by any goroutine.
package mototest
