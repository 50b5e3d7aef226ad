// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package guards

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// maxFileSize bounds every file of the repository.
const maxFileSize = 1 << 20

// ban is a text that no file may have. The patterns are written so that they do not
// match themselves.
type ban struct {
	pattern *regexp.Regexp
	has     string // a part of whatever matches, to be quick
	why     string
	bad     string // what it must find
}

func bans() []ban {
	const machine, todo = "the repository does not depend on a machine's folders", "do it, or file an issue"
	say := func(parts ...string) string { return strings.Join(parts, "") }
	return []ban{
		{regexp.MustCompile(`(\.\.)/shared\b`), "shared", machine, say("see ../", "shared/x")},
		{regexp.MustCompile(`[.]library\b`), "library", machine, say("see .", "library/x")},
		{regexp.MustCompile(`(^|[^\w.-])[/]work/`), "work/", machine, say("cd /", "work/main")},
		{regexp.MustCompile(`(^|[^\w.-])[/]home/\w`), "home/", machine, say("cd /", "home/me")},
		{regexp.MustCompile(`(^|[^\w.-])[/]Users/\w`), "Users/", machine, say("cd /", "Users/me")},
		{regexp.MustCompile(`(^|[^\w.-])[/]root/\w`), "root/", machine, say("cd /", "root/go")},
		{regexp.MustCompile(`\bcadastre[.]io/`), "cadastre", "labels, annotations and objects of Cadastre have one domain: cadastre.dev", say("x.cadastre", ".io/y")},
		{regexp.MustCompile(`\bTO[D]O\b`), say("TO", "DO"), todo, say("// TO", "DO: later")},
		{regexp.MustCompile(`\bFIX[M]E\b`), say("FIX", "ME"), todo, say("# FIX", "ME")},
		{regexp.MustCompile(`\bX[X]X\b`), say("X", "XX"), todo, say("X", "XX")},
	}
}

// allowedTexts lists the places that need a banned text: the domain that annotations of
// nodes had once, and a folder of GKE's nodes.
func allowedTexts() exceptions {
	const domain, folder = "cadastre" + ".io/", "/" + "home/k"
	return exceptions{
		"k8s/components/gke/kustomization.yaml: " + folder:  "the folder of CNI plugins of every GKE node",
		"charts/cadastre/templates/agent.yaml: \"" + folder: "the same, for the chart",
		"CHANGELOG.md: " + domain:                           "how to remove what nothing reads any more",
	}
}

// texts finds banned texts and files that are too large. go.sum has hashes
// and a picture has bytes, which may spell anything.
func texts(all []page) []finding {
	var found []finding
	banned := bans()
	for _, p := range all {
		if len(p.text) > maxFileSize {
			found = append(found, finding{p.path, 0, "size", fmt.Sprintf("%d bytes, more than %d", len(p.text), maxFileSize)})
		}
		if p.path == "go.sum" || strings.HasSuffix(p.path, "/go.sum") || strings.HasSuffix(p.path, ".png") {
			continue
		}
		for _, b := range banned {
			if !bytes.Contains(p.text, []byte(b.has)) {
				continue
			}
			for _, at := range b.pattern.FindAllIndex(p.text, -1) {
				line := 1 + bytes.Count(p.text[:at[1]], []byte("\n"))
				found = append(found, finding{p.path, line, strings.TrimSpace(string(p.text[at[0]:at[1]])), b.why})
			}
		}
	}
	return found
}

func TestBannedTextsAreFound(t *testing.T) {
	for _, b := range bans() {
		g := NewWithT(t)
		found := texts([]page{{"docs/a.md", []byte("fine\n" + b.bad + "\n")}, {"b.sh", []byte(b.bad)}})
		g.Expect(found).To(HaveLen(2), b.bad)
		g.Expect(found[0].line).To(Equal(2), b.bad)
	}
	g := NewWithT(t)
	g.Expect(texts([]page{{"big/go.sum", make([]byte, maxFileSize+1)}, {"fits/go.sum", make([]byte, maxFileSize)}})).To(HaveLen(1))
	g.Expect(texts([]page{{"a.md", []byte("framework/ /var/lib/x, https://example.org/network/ mktemp x." + strings.Repeat("X", 6))}})).To(BeEmpty())
}
