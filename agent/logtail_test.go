// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

func TestTheTailOfTheLogIsBounded(t *testing.T) {
	g := NewWithT(t)
	var tail LogTail
	g.Expect(tail.Lines()).To(BeEmpty())
	log := slog.New(slog.NewTextHandler(&tail, nil))
	log.Info("first")
	fmt.Fprint(&tail, "two\nlines\n")
	g.Expect(tail.Lines()).To(HaveExactElements(HaveSuffix("msg=first"), "two", "lines"))

	for i := range 100_000 {
		log.Info("line", "number", i)
	}
	log.Info(strings.Repeat("x", 1<<20))
	lines := tail.Lines()
	size := 0
	for _, l := range lines {
		size += len(l) + 1
	}
	g.Expect(size).To(And(BeNumerically("<=", maxTail), BeNumerically(">", maxTail-2*maxTailLine)))
	g.Expect(lines[len(lines)-2]).To(HaveSuffix("number=99999"))
	g.Expect(lines[len(lines)-1]).To(HaveLen(maxTailLine))
}
