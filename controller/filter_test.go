// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/controller"
)

// TestTheBeginOfAContainerID: a filter accepts the begin of an ID that programs print, as
// the ledger's history does.
func TestTheBeginOfAContainerID(t *testing.T) {
	g := NewWithT(t)
	id := strings.Repeat("0123456789ab", 5) + "cdef"
	r := &controller.Record{Subject: controller.Subject{Container: id}}
	for want, selected := range map[string]bool{
		"": true, id: true, id[:12]: true, id[:40]: true, id[:11]: false, "123456789abc": false, id + "0": false,
	} {
		g.Expect(controller.RecordFilter{Container: want}.Selects(r)).To(Equal(selected), want)
	}
}
