// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package bench measures what is made of several of our packages and has no
// counterpart among the peers: a pod's way through the event loop. What is
// compared with others is in test/peers; both are reported together.
//
// A run by hand:
//
//	go test -run '^$' -bench . ./test/peers/bench
package bench
