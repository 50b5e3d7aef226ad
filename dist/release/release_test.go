// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	intotov1 "github.com/in-toto/attestation/go/v1"
	. "github.com/onsi/gomega"
	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/cadastre/cadastre/dist/release/provenance"
)

// repository is the source, seen from this folder.
const repository = "../.."

// tag is the version of the releases of these tests.
const tag = "9.8.7"

// commitTime is the time of their commit.
func commitTime() time.Time { return time.Date(2020, 2, 3, 4, 5, 6, 0, time.UTC) }

// checkout makes a repository in dir of the files of this one, changed ones included, with
// one commit that has the tag. Copies have the same commit, whenever they are made.
func checkout(t *testing.T, dir string) {
	g := NewWithT(t)
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("NOT RUN: git is missing")
	}
	list, err := exec.CommandContext(t.Context(), "git", "-C", repository, "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	g.Expect(err).NotTo(HaveOccurred())
	for name := range strings.SplitSeq(strings.TrimRight(string(list), "\x00"), "\x00") {
		from, to := filepath.Join(repository, name), filepath.Join(dir, name)
		info, err := os.Lstat(from)
		if errors.Is(err, os.ErrNotExist) || err == nil && !info.Mode().IsRegular() { // deleted, but not committed yet
			continue
		}
		g.Expect(err).NotTo(HaveOccurred())
		data, err := os.ReadFile(from)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(os.MkdirAll(filepath.Dir(to), 0o755)).To(Succeed())
		g.Expect(os.WriteFile(to, data, info.Mode().Perm())).To(Succeed())
	}
	changes := filepath.Join(dir, "CHANGELOG.md")
	text, err := os.ReadFile(changes)
	g.Expect(err).NotTo(HaveOccurred())
	text = bytes.Replace(text, []byte("## Unreleased\n"), []byte("## "+tag+" - 2020-02-03\n"), 1)
	g.Expect(os.WriteFile(changes, text, 0o600)).To(Succeed())
	git(t, dir, "init", "--quiet")
	git(t, dir, "add", "--all")
	git(t, dir, "commit", "--quiet", "--message", "a source")
	git(t, dir, "tag", "v"+tag)
}

// git runs git with an author and a time that are always the same.
func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir, "-c", "core.autocrlf=false"}, args...)...)
	at := commitTime().Format(time.RFC3339)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b.c",
		"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b.c", "GIT_AUTHOR_DATE="+at, "GIT_COMMITTER_DATE="+at)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// makeRelease runs the program for a source.
func makeRelease(t *testing.T, root, out string, flags ...string) {
	t.Helper()
	var stdout, stderr strings.Builder
	args := append([]string{"--root", root, "--out", out}, flags...)
	if code := run(t.Context(), append(args, "all"), os.Getenv, &stdout, &stderr); code != 0 {
		t.Fatalf("release %v ended with %d: %s%s", args, code, stdout.String(), stderr.String())
	}
}

// differ makes the circumstances of a build others than they are.
func differ(t *testing.T) {
	was := syscall.Umask(0o077)
	t.Cleanup(func() { syscall.Umask(was) })
	for name, value := range map[string]string{
		"TZ": "Asia/Kathmandu", "LANG": "C", "GOAMD64": "v3", "GOFLAGS": "-ldflags=-X=main.x=y", "USER": "other",
		"TMPDIR": t.TempDir(), "CGO_ENABLED": "1", "GODEBUG": "madvdontneed=1",
	} {
		t.Setenv(name, value)
	}
}

// TestRelease makes a release for this machine and looks at each part of it; then it makes
// it again from a copy in another folder, in other circumstances, and compares.
func TestRelease(t *testing.T) {
	dir := t.TempDir()
	source, out := filepath.Join(dir, "source"), filepath.Join(dir, "release")
	checkout(t, source)
	flags := []string{"--arch", runtime.GOARCH, "--groups", "main"}
	makeRelease(t, source, out, flags...)
	r := made{dir: out, commit: git(t, source, "rev-parse", "HEAD")}
	t.Run("sums", r.testSums)
	t.Run("archive", r.testArchive)
	t.Run("command line", r.testCommandLine)
	t.Run("manifests", r.testManifests)
	t.Run("charts", r.testCharts)
	t.Run("sbom", r.testSBOM)
	t.Run("provenance", r.testProvenance)
	t.Run("images", r.testImages)
	t.Run("docker", r.testDocker)
	t.Run("deb", r.testDeb)
	t.Run("install on a bare machine", r.testBareMachine)
	t.Run("install for Docker", r.testDockerPage)
	t.Run("again", func(t *testing.T) {
		other := filepath.Join(t.TempDir(), "somewhere", "else")
		checkout(t, other)
		again := filepath.Join(dir, "again")
		differ(t)
		makeRelease(t, other, again, flags...)
		compare(t, out, again)
	})
}

// TestTwice makes a whole release twice, with empty caches of Go, and compares. It takes
// tens of minutes: make ci SUITE=release-twice.
func TestTwice(t *testing.T) {
	if os.Getenv("CADASTRE_TEST_RELEASE") != "twice" {
		t.Skip("NOT RUN: it takes tens of minutes: make ci SUITE=release-twice")
	}
	one, two := t.TempDir(), t.TempDir()
	for _, dir := range []string{one, two} {
		checkout(t, filepath.Join(dir, "s"+filepath.Base(dir)))
		t.Setenv("GOCACHE", filepath.Join(dir, "cache"))
		makeRelease(t, filepath.Join(dir, "s"+filepath.Base(dir)), filepath.Join(dir, "out"))
		NewWithT(t).Expect(os.RemoveAll(filepath.Join(dir, "cache"))).To(Succeed())
		differ(t)
	}
	compare(t, filepath.Join(one, "out"), filepath.Join(two, "out"))
}

// compare finds the files of two releases that are not the same.
func compare(t *testing.T, one, two string) {
	g := NewWithT(t)
	names := func(dir string) (all []string) {
		entries, err := os.ReadDir(dir)
		g.Expect(err).NotTo(HaveOccurred())
		for _, e := range entries {
			all = append(all, e.Name())
		}
		return all
	}
	g.Expect(names(two)).To(Equal(names(one)))
	for _, name := range names(one) {
		a, err := digest(filepath.Join(one, name))
		g.Expect(err).NotTo(HaveOccurred())
		b, err := digest(filepath.Join(two, name))
		g.Expect(err).NotTo(HaveOccurred())
		if a != b {
			t.Errorf("%s is not the same", name)
		}
	}
}

// made is a release that was made.
type made struct {
	dir    string
	commit string
}

func (r made) file(g Gomega, name string) []byte {
	data, err := os.ReadFile(filepath.Join(r.dir, name))
	g.Expect(err).NotTo(HaveOccurred())
	return data
}

// names returns the names of the files, with ARCH for this machine's architecture.
func (r made) names(g Gomega) (all []string) {
	entries, err := os.ReadDir(r.dir)
	g.Expect(err).NotTo(HaveOccurred())
	for _, e := range entries {
		all = append(all, strings.ReplaceAll(e.Name(), runtime.GOARCH, "ARCH"))
	}
	return all
}

func (r made) testSums(t *testing.T) {
	g := NewWithT(t)
	g.Expect(r.names(g)).To(ConsistOf("SHA256SUMS", "NOTES.md", "cadastre_9.8.7_linux_ARCH.tar.gz", "cadastre_9.8.7_linux_ARCH.spdx.json", "cadastre_9.8.7_kubernetes.tar.gz", "cadastre-9.8.7.tgz", "cadastre-crds-9.8.7.tgz",
		"cadastre-agent_9.8.7.oci.tar", "cadastre-cni_9.8.7.oci.tar", "cadastre-operator_9.8.7.oci.tar", "cadastre_9.8.7_ARCH.deb", "cadastre-cni_9.8.7_ARCH.deb",
		"cadastre_9.8.7.intoto.json"))
	g.Expect(string(r.file(g, notesName))).To(And(HavePrefix("### "), ContainSubstring("\n### Added\n"), Not(ContainSubstring("\n## "))))
	text := string(r.file(g, sumsName))
	g.Expect(strings.Count(text, "\n")).To(Equal(len(r.names(g)) - 2)) // without itself and the provenance
	cmd := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", sumsName)
	cmd.Dir = r.dir
	out, err := cmd.CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), "%s", out)
}

// header is an entry of an archive, with its content.
type header struct {
	tar.Header
	data []byte
}

// untar reads an archive.
func untar(g Gomega, r io.Reader) map[string]header {
	all := map[string]header{}
	for t := tar.NewReader(r); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		g.Expect(err).NotTo(HaveOccurred())
		data, err := io.ReadAll(t)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(all).NotTo(HaveKey(h.Name))
		all[h.Name] = header{*h, data}
	}
}

// archive reads an archive of the release without the folder that all its entries are in.
func (r made) archive(g Gomega, stem string) map[string]header {
	z, err := gzip.NewReader(bytes.NewReader(r.file(g, stem+".tar.gz")))
	g.Expect(err).NotTo(HaveOccurred())
	all := map[string]header{}
	for name, h := range untar(g, z) {
		short, ok := strings.CutPrefix(name, stem+"/")
		g.Expect(ok).To(BeTrue(), name)
		g.Expect(h.ModTime.Equal(commitTime())).To(BeTrue(), name)
		g.Expect([]any{h.Uid, h.Gid, h.Uname, h.Gname}).To(Equal([]any{0, 0, "", ""}), name)
		all[short] = h
	}
	return all
}

func (r made) programs(g Gomega) map[string]header {
	return r.archive(g, "cadastre_"+tag+"_linux_"+runtime.GOARCH)
}

func (r made) testArchive(t *testing.T) {
	g := NewWithT(t)
	all := r.programs(g)
	g.Expect(slices.Sorted(maps.Keys(all))).To(Equal([]string{
		"CHANGELOG.md", "LICENSE", "README.md", "bin/cadastre", "bin/cadastre-agent", "bin/cadastre-cni", "bin/cadastre-operator", "bin/cni-installer", "bin/kubectl-cadastre",
		"conf/contiv.conf", "conf/reference.conf", "docker-plugin/config.json", "docker-plugin/rootfs/cadastre-docker-plugin", "docker-plugin/rootfs/data/",
		"docker-plugin/rootfs/run/docker.sock", "docker-plugin/rootfs/run/host/", "systemd/README.md", "systemd/cadastre-agent.service", "systemd/cadastre-docker.socket",
	}))
	g.Expect(all["bin/kubectl-cadastre"].Linkname).To(Equal("cadastre"))
	count := 0
	for name, h := range all {
		program := strings.HasPrefix(name, "bin/c") || strings.HasSuffix(name, "cadastre-docker-plugin")
		if h.Typeflag == tar.TypeReg {
			g.Expect(h.Mode == 0o755).To(Equal(program), name)
		}
		if !program {
			continue
		}
		count++
		g.Expect(bytes.Contains(h.data, []byte(r.dir))).To(BeFalse(), "%s has the path of the build", name)
		g.Expect(bytes.Contains(h.data, []byte(filepath.Join(filepath.Dir(r.dir), "source")))).To(BeFalse(), "%s has the path of the source", name)
		path := filepath.Join(t.TempDir(), filepath.Base(name))
		g.Expect(os.WriteFile(path, h.data, 0o700)).To(Succeed())
		out, err := exec.CommandContext(t.Context(), path, "--version").Output()
		g.Expect(err).NotTo(HaveOccurred(), name)
		g.Expect(string(out)).To(Equal(fmt.Sprintf("%s %s, %s, %s\n", filepath.Base(name), tag, r.commit[:12], goVersion(t))))
	}
	g.Expect(count).To(Equal(6))
}

// testCommandLine: the line of the install pages unpacks the command line, under both names.
func (r made) testCommandLine(t *testing.T) {
	g := NewWithT(t)
	for _, page := range []string{"kubeadm.md", "k3s.md", "kind.md"} {
		dir := t.TempDir()
		line := regexp.MustCompile(`(?m)^tar .* -C /usr/local .*kubectl-cadastre.*$`).FindString(text(g, "docs/install/"+page))
		line = strings.NewReplacer("/usr/local", dir, "_amd64", "_"+runtime.GOARCH).Replace(line)
		cmd := exec.CommandContext(t.Context(), "sh", "-ec", line)
		cmd.Dir = r.dir
		out, err := cmd.CombinedOutput()
		g.Expect(err).NotTo(HaveOccurred(), "%s: %s: %s", page, line, out)
		for _, name := range []string{"cadastre", "kubectl-cadastre"} {
			out, err := exec.CommandContext(t.Context(), filepath.Join(dir, "bin", name), "--version").Output()
			g.Expect(err).NotTo(HaveOccurred(), page)
			g.Expect(string(out)).To(ContainSubstring(tag))
		}
	}
}

// goVersion is the version of Go that builds.
func goVersion(t *testing.T) string {
	out, err := exec.CommandContext(t.Context(), "go", "env", "GOVERSION").Output()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return strings.TrimSpace(string(out))
}

// testManifests: the manifests name the images of the release, and no others.
func (r made) testManifests(t *testing.T) {
	g := NewWithT(t)
	all := r.archive(g, "cadastre_"+tag+"_kubernetes")
	g.Expect(all).To(And(HaveKey("derived-kubernetes/kustomization.yaml"), HaveKey("base/agent.yaml"), HaveKey("README.md")))
	tags := 0
	for name, h := range all {
		g.Expect(name).NotTo(HaveSuffix(".go"))
		for line := range strings.Lines(string(h.data)) {
			if strings.HasSuffix(name, "kustomization.yaml") && strings.Contains(line, "newTag:") {
				tags++
				g.Expect(line).To(ContainSubstring("newTag: "+tag), name)
			}
		}
	}
	g.Expect(tags).To(BeNumerically(">", 20))
}

// testCharts: Helm's packages have the version of the release.
func (r made) testCharts(t *testing.T) {
	for _, name := range []string{"cadastre", "cadastre-crds"} {
		g := NewWithT(t)
		z, err := gzip.NewReader(bytes.NewReader(r.file(g, name+"-"+tag+".tgz")))
		g.Expect(err).NotTo(HaveOccurred())
		all := untar(g, z)
		g.Expect(all).To(HaveKey(HavePrefix(name + "/templates/")))
		g.Expect(all).To(HaveKey(HavePrefix(name + "/files/")))
		g.Expect(string(all[name+"/Chart.yaml"].data)).To(And(
			ContainSubstring("\nname: "+name+"\n"), ContainSubstring("\nversion: "+tag+"\n"), ContainSubstring("\nappVersion: "+tag+"\n")))
	}
}

// testSBOM: each program has its checksum, and the modules that Go says it has.
func (r made) testSBOM(t *testing.T) {
	g := NewWithT(t)
	doc, err := spdxjson.Read(bytes.NewReader(r.file(g, "cadastre_"+tag+"_linux_"+runtime.GOARCH+".spdx.json")))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect([]string{doc.SPDXVersion, doc.CreationInfo.Created}).To(Equal([]string{"SPDX-2.3", commitTime().Format(time.RFC3339)}))
	name, dependencies := map[string]string{}, map[string][]string{}
	for _, p := range doc.Packages {
		g.Expect(name).NotTo(HaveKey(string(p.PackageSPDXIdentifier)))
		name[string(p.PackageSPDXIdentifier)] = p.PackageName + " " + p.PackageVersion
	}
	for _, rel := range doc.Relationships {
		g.Expect(name).To(HaveKey(string(rel.RefB.ElementRefID)))
		if rel.Relationship == "DEPENDS_ON" {
			from := name[string(rel.RefA.ElementRefID)]
			dependencies[from] = append(dependencies[from], name[string(rel.RefB.ElementRefID)])
		}
	}
	count := 0
	for path, h := range r.programs(g) {
		program := filepath.Base(path)
		if h.Typeflag != tar.TypeReg || h.Mode != 0o755 {
			continue
		}
		count++
		file := filepath.Join(t.TempDir(), program)
		g.Expect(os.WriteFile(file, h.data, 0o600)).To(Succeed())
		sum, err := digest(file)
		g.Expect(err).NotTo(HaveOccurred())
		i := slices.IndexFunc(doc.Packages, func(p *spdx.Package) bool { return p.PackageName == program })
		g.Expect(i).To(BeNumerically(">=", 0), program)
		g.Expect(doc.Packages[i].PackageChecksums[0].Value).To(Equal(sum), program)
		info, err := buildinfo.ReadFile(file)
		g.Expect(err).NotTo(HaveOccurred())
		want := []string{"std " + info.GoVersion, "github.com/cadastre/cadastre " + tag}
		for _, m := range info.Deps {
			want = append(want, m.Path+" "+m.Version)
		}
		g.Expect(dependencies[program+" "+tag]).To(ConsistOf(want), program)
	}
	g.Expect(count).To(Equal(6))
	g.Expect(len(dependencies["cadastre-operator "+tag])).To(BeNumerically(">", 30))
}

// testProvenance: the statement is about every file of the release, and names the commit.
func (r made) testProvenance(t *testing.T) {
	g := NewWithT(t)
	var s intotov1.Statement
	g.Expect(protojson.Unmarshal(r.file(g, "cadastre_"+tag+".intoto.json"), &s)).To(Succeed())
	g.Expect(s.Validate()).To(Succeed())
	g.Expect(s.PredicateType).To(Equal(provenance.PredicateType))
	g.Expect(s.Subject).To(HaveLen(len(r.names(g)) - 1))
	for _, f := range s.Subject {
		sum, err := digest(filepath.Join(r.dir, f.Name))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(f.Digest).To(Equal(map[string]string{"sha256": sum}))
	}
	var predicate struct {
		BuildDefinition struct {
			ExternalParameters   struct{ Version string }
			ResolvedDependencies []struct {
				URI    string
				Digest map[string]string
			}
		}
		RunDetails struct{ Builder struct{ ID string } }
	}
	text, err := s.Predicate.MarshalJSON()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(json.Unmarshal(text, &predicate)).To(Succeed())
	g.Expect(predicate.BuildDefinition.ExternalParameters.Version).To(Equal(tag))
	g.Expect(predicate.BuildDefinition.ResolvedDependencies[0].Digest).To(Equal(map[string]string{"gitCommit": r.commit}))
	g.Expect(predicate.BuildDefinition.ResolvedDependencies[1].URI).To(HaveSuffix(goVersion(t)))
	g.Expect(predicate.RunDetails.Builder.ID).To(HavePrefix("https://"))
}
