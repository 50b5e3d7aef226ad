// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/dist/release/build"
	"github.com/cadastre/cadastre/dist/release/images"
)

// unpack reads the OCI layout of an archive.
func unpack(t *testing.T, file string) (name string, index v1.ImageIndex) {
	g := NewWithT(t)
	data, err := os.ReadFile(file)
	g.Expect(err).NotTo(HaveOccurred())
	dir := t.TempDir()
	for name, h := range untar(g, bytes.NewReader(data)) {
		path := filepath.Join(dir, name)
		g.Expect(os.MkdirAll(filepath.Dir(path), 0o755)).To(Succeed())
		g.Expect(os.WriteFile(path, h.data, 0o600)).To(Succeed())
	}
	outer, err := layout.ImageIndexFromPath(dir)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(validate.Index(outer)).To(Succeed())
	list, err := outer.IndexManifest()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(list.Manifests).To(HaveLen(1))
	index, err = outer.ImageIndex(list.Manifests[0].Digest)
	g.Expect(err).NotTo(HaveOccurred())
	return list.Manifests[0].Annotations["io.containerd.image.name"], index
}

// files returns the files of an image of one layer.
func files(g Gomega, i v1.Image) map[string]header {
	layers, err := i.Layers()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(layers).To(HaveLen(1))
	text, err := layers[0].Uncompressed()
	g.Expect(err).NotTo(HaveOccurred())
	defer text.Close()
	return untar(g, text)
}

// testImages: each image has the programs of the archive and a name that the manifests use,
// for containerd and for Docker.
func (r made) testImages(t *testing.T) {
	programs := r.programs(NewWithT(t))
	for name, want := range map[string][]string{
		"cadastre-agent": {"cadastre", "cadastre-agent"}, "cadastre-cni": {"cadastre-cni", "cni-installer"}, "cadastre-operator": {"cadastre-operator"},
	} {
		g := NewWithT(t)
		file := filepath.Join(r.dir, name+"_"+tag+".oci.tar")
		reference, index := unpack(t, file)
		g.Expect(reference).To(Equal("docker.io/library/" + name + ":" + tag))
		list, err := index.IndexManifest()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(list.Manifests).To(HaveLen(1))
		g.Expect(list.Manifests[0].Platform.String()).To(Equal("linux/" + runtime.GOARCH))
		image, err := index.Image(list.Manifests[0].Digest)
		g.Expect(err).NotTo(HaveOccurred())
		have := files(g, image)
		g.Expect(have).To(HaveLen(len(want)))
		for _, program := range want {
			g.Expect(bytes.Equal(have[program].data, programs["bin/"+program].data)).To(BeTrue(), program)
			g.Expect(have[program].Mode).To(Equal(int64(0o755)))
		}
		config, err := image.ConfigFile()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(config.Created.Equal(commitTime())).To(BeTrue())
		g.Expect(config.Config.Labels["org.opencontainers.image.revision"]).To(Equal(r.commit))
		docker, err := tarball.ImageFromPath(file, nil) // as docker load reads it
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(docker.ConfigName()).To(Equal(must(image.ConfigName())))
	}
}

func must(h v1.Hash, err error) v1.Hash {
	if err != nil {
		panic(err)
	}
	return h
}

// wanted holds a stage of the Dockerfile.
type wanted struct {
	files       map[string]string // what is copied, by path in the image
	user        string
	entrypoint  []string
	arguments   []string
	healthcheck []string
	intervals   map[string]string
}

// stageOf reads a stage of the Dockerfile for a cloud.
func stageOf(g Gomega, name, cloud string) wanted {
	_, stage, found := strings.Cut(text(g, "docker/Dockerfile"), "\nFROM scratch AS "+name+"\n")
	g.Expect(found).To(BeTrue(), name)
	stage, _, _ = strings.Cut(stage, "\nFROM ")
	stage = strings.ReplaceAll(stage, "${CLOUD}", cloud)
	w := wanted{files: map[string]string{}, intervals: map[string]string{}}
	list := func(rest string) (all []string) {
		g.Expect(json.Unmarshal([]byte(rest), &all)).To(Succeed(), rest)
		return all
	}
	for line := range strings.Lines(stage) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch word {
		case "", "#", "ARG":
		case "COPY":
			words := strings.Fields(rest)[1:] // behind --from
			to := words[len(words)-1]
			for _, from := range words[:len(words)-1] {
				name := to
				if strings.HasSuffix(to, "/") {
					name = path.Join(to, path.Base(from))
				}
				w.files[name] = strings.TrimPrefix(from, "/src/bin/dist/")
			}
		case "USER":
			w.user = rest
		case "ENTRYPOINT":
			w.entrypoint = list(rest)
		case "CMD":
			w.arguments = list(rest)
		case "HEALTHCHECK":
			flags, command, _ := strings.Cut(rest, " CMD ")
			for _, f := range strings.Fields(flags) {
				key, value, _ := strings.Cut(strings.TrimPrefix(f, "--"), "=")
				w.intervals[key] = value
			}
			w.healthcheck = append([]string{"CMD"}, list(command)...)
		default:
			g.Expect(word).To(BeEmpty(), "an instruction that the images do not have")
		}
	}
	return w
}

// TestDockerfile: an image is what its stage of the Dockerfile makes, and there is no stage
// without an image.
func TestDockerfile(t *testing.T) {
	g := NewWithT(t)
	groups, err := build.Groups(repository)
	g.Expect(err).NotTo(HaveOccurred())
	used, count := map[string]bool{}, 0
	for _, group := range groups {
		for _, i := range images.For(group) {
			file := strings.TrimPrefix(i.Name, "cadastre-")
			if group.Cloud() {
				file = strings.TrimSuffix(file, group.Name) + "cloud"
			}
			used[file] = true
			count++
			w := stageOf(g, file, group.Name)
			have := map[string]string{}
			for name, program := range i.Programs {
				have[name] = program
			}
			if i.Certificates {
				have[images.CertificatesPath] = images.CertificatesPath
			}
			g.Expect(have).To(Equal(w.files), i.Name)
			g.Expect(i.User).To(Equal(w.user), i.Name)
			g.Expect(i.Entrypoint).To(Equal(w.entrypoint), i.Name)
			g.Expect(i.Arguments).To(Equal(w.arguments), i.Name)
			if i.Healthcheck == nil {
				g.Expect(w.healthcheck).To(BeNil(), i.Name)
				continue
			}
			g.Expect(i.Healthcheck.Test).To(Equal(w.healthcheck), i.Name)
			for key, d := range map[string]time.Duration{"interval": i.Healthcheck.Interval, "timeout": i.Healthcheck.Timeout, "start-period": i.Healthcheck.StartPeriod} {
				g.Expect(time.ParseDuration(w.intervals[key])).To(Equal(d), "%s: %s", i.Name, key)
			}
			g.Expect(w.intervals).To(HaveLen(3))
		}
	}
	g.Expect(used).To(HaveLen(strings.Count(text(g, "docker/Dockerfile"), "\nFROM scratch AS ")))
	g.Expect(count).To(BeNumerically(">=", 8))
}

// TestImageOfBoth: an index has an image an architecture, with its own programs and the
// certificates; without certificates there is no image of a cloud.
func TestImageOfBoth(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	put := func(name, text string) string {
		path := filepath.Join(dir, name)
		g.Expect(os.MkdirAll(filepath.Dir(path), 0o755)).To(Succeed())
		g.Expect(os.WriteFile(path, []byte(text), 0o600)).To(Succeed())
		return path
	}
	arches := []string{"amd64", "arm64"}
	for _, arch := range arches {
		put(arch+"/cadastre-operator-ec2", "of "+arch)
	}
	in := images.Inputs{Programs: func(arch string) string { return filepath.Join(dir, arch) }, Certificates: put("ca", "authorities"), Time: commitTime()}
	groups, err := build.Groups(repository)
	g.Expect(err).NotTo(HaveOccurred())
	groups, err = build.Select(groups, []string{"ec2"})
	g.Expect(err).NotTo(HaveOccurred())
	all := images.For(groups[0])
	operator := all[1]
	g.Expect(operator.Name).To(Equal("cadastre-operator-ec2"))
	file := filepath.Join(dir, "image.tar")
	g.Expect(in.Write(file, operator, build.Source{Version: "1.0.0"}, arches, "r/o:1")).To(Succeed())
	name, index := unpack(t, file)
	g.Expect(name).To(Equal("r/o:1"))
	list, err := index.IndexManifest()
	g.Expect(err).NotTo(HaveOccurred())
	for i, arch := range arches {
		g.Expect(list.Manifests[i].Platform.String()).To(Equal("linux/" + arch))
		image, err := index.Image(list.Manifests[i].Digest)
		g.Expect(err).NotTo(HaveOccurred())
		have := files(g, image)
		g.Expect(string(have["cadastre-operator"].data)).To(Equal("of " + arch))
		g.Expect(string(have["etc/ssl/certs/ca-certificates.crt"].data)).To(Equal("authorities"))
		g.Expect(have["etc/ssl/"].Mode).To(Equal(int64(0o755)))
		config, err := image.ConfigFile()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect([]string{config.Architecture, config.OS, config.Config.User}).To(Equal([]string{arch, "linux", "65532:65532"}))
	}
	in.Certificates = filepath.Join(dir, "none")
	g.Expect(in.Write(file, operator, build.Source{Version: "1.0.0"}, arches, "r/o:1")).To(MatchError(ContainSubstring("install Debian's ca-certificates")))
}
