// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Command mutations changes one place of a room at a time, runs the tests of the room, and
// writes down which test notices. A change that no test notices survives.
//
//	go run ./test/chaos/mutations -seed 1 -number 20 -rooms "ledger operator" -out .cache/mutations
//
// The seed chooses the places. Each change is one that a person could make by mistake. A
// condition is negated, a comparison loses or gains the equal case, a statement is missing,
// or true and false change places. The sources stay as they are: go test reads the changed
// file through an overlay. A change that does not compile is replaced by the next one; tests
// that hang count as a test that notices.
//
// The result is one Markdown table a room; the folder baseline has those of seed 1 before the
// rooms were merged. A test that is deleted has an heir there: a test that still notices. The program exits with 1 if it could not run, and
// with 0 however many changes survive: some have no effect that a caller can see.
package main
