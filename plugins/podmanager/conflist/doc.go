// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package conflist writes the network configuration list by which a container runtime
// finds cadastre-cni, and removes it.
//
// # Version
//
// The list does not depend on the installed runtime. Its cniVersion is one that every
// runtime in use speaks; cniVersions names the newer ones too, and libcni from 1.2 on takes
// the newest of them that it knows. So a runtime that is upgraded calls STATUS and GC from
// its next start on, without a change of the list. A list has only versions that all of its
// plugins have: a portmap that does not speak 1.1.0 would fail each ADD of it.
//
// # Files
//
// A runtime takes the first file of its folder, in the order of the names. Write replaces
// the file by a rename, so a runtime never reads half of one, and leaves a file with the
// same content alone. Nothing but Remove removes it: without a list a node is not ready,
// and its runtime can delete no pod. All functions may be called by any goroutine, but only
// one process may write a folder.
package conflist
