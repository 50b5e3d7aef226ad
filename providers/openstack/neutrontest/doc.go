// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package neutrontest starts the real Neutron server of OpenStack for tests: without
// Keystone, Nova, a message queue or a virtual switch, on a free port of 127.0.0.1, on a
// MariaDB with its files in the test's own folder. Nothing is installed: if the machine has
// no Neutron, the Debian packages are downloaded and unpacked into a cache folder (44 MB,
// unpacked 265 MB). New skips the test, with the reason, where they cannot be had.
//
// The database is the one that clouds use. It locks rows, so the requests of several
// clients overlap; SQLite locks the whole database.
//
// Every request has the rights of an administrator, so roles and policies are not tested.
// A Server may be used by any goroutine. It ends with the test, also if the test's process
// is killed.
package neutrontest
