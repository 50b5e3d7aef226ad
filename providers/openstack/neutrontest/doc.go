// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package neutrontest starts the real Neutron server of OpenStack for tests: without
// Keystone, Nova, a message queue or a virtual switch, on a free port of 127.0.0.1, on a
// MariaDB with its files in the test's own folder. Nothing is installed: if the machine has
// no Neutron, the Debian packages are downloaded and unpacked into a cache folder (44 MB,
// unpacked 265 MB). New skips the test, with the reason, where they cannot be had.
//
// The database is the one that clouds use. With SQLite a request that waits for the lock of
// another one keeps Neutron's only thread, so the other one cannot end: both time out, and
// one is answered with status 500.
//
// Every request has the rights of an administrator, so roles and policies are not tested.
// A Server may be used by any goroutine. It ends with the test, also if the test's process
// is killed.
package neutrontest
