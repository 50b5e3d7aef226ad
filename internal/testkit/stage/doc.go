// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package stage runs scenarios with real processes. It starts and ends agents and
// other programs, gives pods addresses through CNI, sends packets between them, and
// prints all of it in numbered steps.
//
// A Harness is a whole program. It builds the programs, finds a way to make network
// namespaces, and removes its directory in the end. It makes namespaces as root, as root of a
// user namespace by starting itself again, or not at all. The caller that starts a Process or
// makes a Pod ends it. A Process dies with the program at the latest, and a namespace with the
// last file that holds it. An error says what was attempted, and leaves the Process or the Pod
// to be ended. No function changes the network namespace that the program was started in.
//
// Everything may be called from any goroutine, but a Scenario and a Pod belong to
// one at a time.
package stage
