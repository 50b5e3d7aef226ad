// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

func someProcess() Process {
	at := time.Unix(1700000000, 123456789)
	return Process{
		Trace: [16]byte{1, 15: 2}, ID: [8]byte{3, 7: 4}, Exchange: [8]byte{5}, Command: "ADD",
		Began: at, Asked: at.Add(1), Answered: at.Add(2), Ended: at.Add(2), Exit: 1, Error: "a \"text\"\x00 with anything\n",
	}
}

func TestTraceparent(t *testing.T) {
	g := NewWithT(t)
	for _, sampled := range []bool{false, true} {
		want := Traceparent{Trace: [16]byte{1, 15: 255}, Span: [8]byte{7: 1}, Sampled: sampled}
		got, ok := ParseTraceparent(string(want.Append(nil)))
		g.Expect(ok).To(BeTrue())
		g.Expect(got).To(Equal(want))
	}
	const good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01" // of the specification
	_, ok := ParseTraceparent(good)
	g.Expect(ok).To(BeTrue())
	_, ok = ParseTraceparent("cc" + good[2:] + "-what-the-future-will-be-like")
	g.Expect(ok).To(BeTrue(), "a later version may be longer")
	for name, bad := range map[string]string{
		"empty": "", "short": good[:54], "long": good + "-x", "version ff": "ff" + good[2:], "upper case": strings.ToUpper(good),
		"no trace": "00-" + strings.Repeat("0", 32) + good[35:], "no span": good[:36] + strings.Repeat("0", 16) + good[52:],
		"not hex": good[:10] + "g" + good[11:], "flags": good[:53] + "0x", "separator": good[:35] + "_" + good[36:],
		"later version, no separator": "cc" + good[2:] + "x",
	} {
		_, ok := ParseTraceparent(bad)
		g.Expect(ok).To(BeFalse(), name)
	}
}

func TestProcess(t *testing.T) {
	g := NewWithT(t)
	want := someProcess()
	body := want.Append(nil)
	got, err := ParseProcess(body)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(got).To(Equal(want))
	for name, bad := range map[string][]byte{
		"empty": nil, "cut": body[:90],
		"no trace":     append([]byte("00-x"), body...),
		"exchange":     bytes.Replace(body, []byte("\x000500000000000000\x00"), []byte("\x000500\x00"), 1),
		"no exchange":  bytes.Replace(body, []byte("\x000500000000000000\x00"), []byte("\x000000000000000000\x00"), 1),
		"order":        bytes.Replace(body, []byte("1700000000123456789"), []byte("1700000001123456789"), 1),
		"not a number": bytes.Replace(body, []byte("1700000000123456789"), []byte("yesterday"), 1),
		"exit":         bytes.Replace(body, []byte("\x001\x00"), []byte("\x00one\x00"), 1),
	} {
		g.Expect(bytes.Equal(bad, body)).To(BeFalse(), name)
		_, err := ParseProcess(bad)
		g.Expect(err).To(HaveOccurred(), name)
	}
}

func FuzzProcess(f *testing.F) {
	f.Add(someProcess().Append(nil))
	f.Fuzz(func(t *testing.T, body []byte) {
		if p, err := ParseProcess(body); err == nil {
			if again, err := ParseProcess(p.Append(nil)); err != nil || again != p {
				t.Fatalf("%+v is %+v, %v after it was written again", p, again, err)
			}
		}
	})
}
