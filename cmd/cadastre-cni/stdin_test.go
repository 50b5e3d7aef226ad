// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// TestStdinIsReadUntilATime has pipes as runtimes pass them on, and files. The program ends
// although a runtime never closes the pipe, and reads all that comes before.
func TestStdinIsReadUntilATime(t *testing.T) {
	for _, blocks := range []bool{true, false} {
		g := NewWithT(t)
		ends := make([]int, 2)
		flags := syscall.O_CLOEXEC
		if !blocks {
			flags |= syscall.O_NONBLOCK
		}
		g.Expect(syscall.Pipe2(ends, flags)).To(Succeed())
		r, w := os.NewFile(uintptr(ends[0]), "stdin"), os.NewFile(uintptr(ends[1]), "the runtime's end")
		_, err := w.WriteString("some")
		g.Expect(err).NotTo(HaveOccurred())
		got, err := io.ReadAll(timed{r, time.Now().Add(50 * time.Millisecond)})
		g.Expect(err).To(MatchError(os.ErrDeadlineExceeded))
		g.Expect(string(got)).To(Equal("some"))

		text := strings.Repeat("0123456789", 50000) // more than a pipe holds
		go func() {
			_, _ = w.WriteString(text)
			_ = w.Close()
		}()
		got, err = io.ReadAll(timed{r, time.Now().Add(time.Minute)})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(got) == text).To(BeTrue(), "%d bytes", len(got))
		g.Expect(r.Close()).To(Succeed())
	}
	g := NewWithT(t)
	f, err := os.Open("stdin_test.go")
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = f.Close() }()
	got, err := io.ReadAll(timed{f, time.Now().Add(time.Minute)})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(got)).To(ContainSubstring("TestStdinIsReadUntilATime"))
}
