// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"testing"
)

func TestAWireIsMadeAndSeenComplete(t *testing.T) {
	l := newWireLab(t, Options{})
	a, b := l.pod(), l.pod()
	l.create(a)
	l.complete(a)
	l.create(b)
	l.complete(a, b)
	l.create(b) // again
	l.complete(a, b)
	l.delete(a)
	l.complete(b)
	l.create(a) // revived
	l.complete(a, b)
}
