// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/generated"
)

// TestPicturesFollowFromTheResults compares the committed pictures with those that the
// committed results and drawings make.
func TestPicturesFollowFromTheResults(t *testing.T) {
	g := NewWithT(t)
	all, err := pictures("../../../docs")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(len(all)).To(BeNumerically(">", 10))
	for name, want := range all {
		have, err := os.ReadFile(filepath.Join("../../../docs", name))
		g.Expect(err).NotTo(HaveOccurred())
		if string(have) != want {
			t.Errorf("docs/%s is not what the results make: run make generate", name)
		}
	}
}

// TestPromisesFollowFromTheResults compares the table of docs/performance.md with the
// results.
func TestPromisesFollowFromTheResults(t *testing.T) {
	g := NewWithT(t)
	want, err := promiseTable(newResults("../../../docs"))
	g.Expect(err).NotTo(HaveOccurred())
	page, err := os.ReadFile("../../../docs/performance.md")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(page)).To(ContainSubstring(generated.Begin+"\n"+want+generated.End), "run make generate")
}

// TestEveryPictureIsShown looks for a page that shows each picture, with a text for
// readers who do not see it.
func TestEveryPictureIsShown(t *testing.T) {
	g := NewWithT(t)
	all, err := pictures("../../../docs")
	g.Expect(err).NotTo(HaveOccurred())
	var text strings.Builder
	g.Expect(filepath.WalkDir("../../../docs", func(path string, _ os.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".md" {
			return err
		}
		page, err := os.ReadFile(path)
		text.Write(page)
		return err
	})).To(Succeed())
	for name := range all {
		if !strings.Contains(text.String(), filepath.Base(name)+")") || strings.Contains(text.String(), "![]") {
			t.Errorf("no page shows docs/%s, or one has no text for it", name)
		}
	}
}

// TestPicturesAreXML decodes each picture to its end.
func TestPicturesAreXML(t *testing.T) {
	g := NewWithT(t)
	all, err := pictures("../../../docs")
	g.Expect(err).NotTo(HaveOccurred())
	for name, picture := range all {
		for dec := xml.NewDecoder(strings.NewReader(picture)); ; {
			_, err := dec.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			g.Expect(err).NotTo(HaveOccurred(), name)
		}
		g.Expect(picture).To(ContainSubstring("prefers-color-scheme:dark"), name)
	}
}

// widthOf returns about how wide a text is: letters of a sans-serif font.
func widthOf(class, line string) int {
	tenths := map[string]int{"s": 64, "s m": 64, "b": 74, "m b": 74, "h": 92}[class]
	if tenths == 0 {
		tenths = 70
	}
	return len([]rune(line)) * tenths / 10
}

// overflow returns what is wrong with a shape on a drawing, "" if it fits.
func overflow(d drawing, s shape) string {
	switch s := s.(type) {
	case box:
		if len(s.lines)*16 > s.h {
			return fmt.Sprintf("%q is higher than its box", s.lines)
		}
		for i, line := range s.lines {
			class := "s"
			if i == 0 {
				class = "b"
			}
			if widthOf(class, line) > s.w {
				return fmt.Sprintf("%q is wider than its box of %d", line, s.w)
			}
		}
	case text:
		w := widthOf(s.class, s.line)
		begin := map[string]int{"start": s.x, "middle": s.x - w/2, "end": s.x - w}[s.anchor]
		if begin < 0 || begin+w > d.width || s.y > d.height {
			return fmt.Sprintf("%q leaves the drawing: it ends at %d of %d", s.line, begin+w, d.width)
		}
	case arrow:
		if s.label != "" {
			return overflow(d, text{s.at[0], s.at[1], "middle", "s m", s.label})
		}
	}
	return ""
}

// TestTextFits checks that no text leaves its box or its drawing.
func TestTextFits(t *testing.T) {
	g := NewWithT(t)
	all := drawings()
	r := newResults("../../../docs")
	for name, c := range charts() {
		d, err := c.draw(r)
		g.Expect(err).NotTo(HaveOccurred())
		all[name] = d
	}
	for name, d := range all {
		for _, s := range d.shapes {
			g.Expect(overflow(d, s)).To(BeEmpty(), name)
		}
	}
	small := drawing{width: 100, height: 50}
	g.Expect(overflow(small, box{0, 0, 50, 20, "bg", []string{"wide enough?"}})).To(ContainSubstring("wider"))
	g.Expect(overflow(small, box{0, 0, 50, 20, "bg", []string{"a", "b"}})).To(ContainSubstring("higher"))
	g.Expect(overflow(small, arrow{points: []int{0, 0, 9, 9}, label: "along", at: [2]int{5, 9}})).To(ContainSubstring("leaves"))
}

func TestNumbersOfTables(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	page := "# A\n\n### Times, ms\n\n| | a | b |\n|---|--:|--:|\n| one | 1\u202f234 | **2.5×** |\n| two | - |\n\n### Next\n\n| three | 1 |\n"
	g.Expect(os.WriteFile(filepath.Join(dir, "a.md"), []byte(page), 0o600)).To(Succeed())
	r := newResults(dir)
	for c, want := range map[cell]float64{
		{"a.md", "Times, ms", "one", 1}: 1234,
		{"a.md", "Times, ms", "one", 2}: 2.5,
		{"a.md", "Next", "three", 1}:    1,
	} {
		g.Expect(r.number(c)).To(Equal(want))
	}
	for c, want := range map[cell]string{
		{"a.md", "Times", "one", 1}:       `missing heading "Times"`,
		{"a.md", "Times, ms", "three", 1}: `missing row "three"`,
		{"a.md", "Times, ms", "one", 3}:   `want number 3`,
		{"a.md", "Times, ms", "two", 1}:   `want a number`,
		{"b.md", "Times, ms", "one", 1}:   `no such file`,
	} {
		_, err := r.number(c)
		g.Expect(err).To(MatchError(ContainSubstring(want)))
	}
}

func TestBarsHaveTheLengthOfTheirNumbers(t *testing.T) {
	g := NewWithT(t)
	linear := chart{}.axis(2, 10)
	g.Expect(linear.at(0)).To(Equal(left))
	g.Expect(2 * (linear.at(5) - left)).To(BeNumerically("~", linear.at(10)-left, 1))
	g.Expect(linear.at(10)).To(BeNumerically("<=", left+plotWidth))
	log := chart{log: true}.axis(20, 50000)
	g.Expect(log.at(1000) - log.at(100)).To(BeNumerically("~", log.at(10000)-log.at(1000), 1))
	g.Expect(log.at(50000)).To(BeNumerically("<=", left+plotWidth))
	g.Expect(log.at(20)).To(BeNumerically(">", left))
}
