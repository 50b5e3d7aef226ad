// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package charts tests the Helm charts with Helm's own library: their objects beside those
// of k8s/, their refusals, and their releases on a real API server. It is a module of its
// own, so that Helm is no dependency of the product.
package charts

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/common"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/release"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	sigsyaml "sigs.k8s.io/yaml"
)

// namespace is the namespace of all objects of the manifests, and of the releases.
const namespace = "cadastre-system"

// values are the values of a release.
type values = map[string]any

// packed is the folder in which charts/pack.sh has written the charts.
func packed(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	out, err := exec.CommandContext(t.Context(), "sh", filepath.Join("..", "pack.sh"), dir).CombinedOutput()
	NewWithT(t).Expect(err).NotTo(HaveOccurred(), string(out))
	return dir
}

// load returns a chart of this repository.
func load(t *testing.T, name string) *chart.Chart {
	t.Helper()
	c, err := loader.LoadDir(filepath.Join(packed(t), name))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return c
}

// render returns the objects of a chart, as helm template prints them, or Helm's refusal.
func render(t *testing.T, name string, v values) ([]unstructured.Unstructured, error) {
	t.Helper()
	version, err := common.ParseKubeVersion("v1.31.0")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	install := action.NewInstall(action.NewConfiguration())
	install.ReleaseName, install.Namespace = name, namespace
	install.DryRunStrategy, install.KubeVersion = action.DryRunClient, version
	r, err := install.Run(load(t, name), plain(t, v))
	if err != nil {
		return nil, err
	}
	accessor, err := release.NewAccessor(r)
	if err != nil {
		return nil, err
	}
	return decode([]byte(accessor.Manifest()))
}

// mustRender returns the objects of both charts together.
func mustRender(t *testing.T, v values) []unstructured.Unstructured {
	t.Helper()
	g := NewWithT(t)
	definitions, err := render(t, "cadastre-crds", nil)
	g.Expect(err).NotTo(HaveOccurred())
	rest, err := render(t, "cadastre", v)
	g.Expect(err).NotTo(HaveOccurred())
	return slices.Concat(definitions, rest)
}

// plain returns values as Helm reads them from a file.
func plain(t *testing.T, v values) values {
	t.Helper()
	g := NewWithT(t)
	text, err := sigsyaml.Marshal(v)
	g.Expect(err).NotTo(HaveOccurred())
	read, err := loader.LoadValues(bytes.NewReader(text))
	g.Expect(err).NotTo(HaveOccurred())
	return read
}

// built returns the objects of a kustomization, as kubectl apply --kustomize does.
func built(t *testing.T, mode string, components ...string) []unstructured.Unstructured {
	t.Helper()
	g := NewWithT(t)
	k8s, err := filepath.Abs(filepath.Join("..", "..", "k8s"))
	g.Expect(err).NotTo(HaveOccurred())
	dir := t.TempDir()
	relative := func(parts ...string) string { // kustomize takes folders by relative paths only
		path, err := filepath.Rel(dir, filepath.Join(append([]string{k8s}, parts...)...))
		g.Expect(err).NotTo(HaveOccurred())
		return path
	}
	text := "namespace: " + namespace + "\nresources: [" + relative(mode) + "]\n"
	for i, c := range components {
		if i == 0 {
			text += "components:\n"
		}
		text += "  - " + relative("components", c) + "\n"
	}
	g.Expect(os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600)).To(Succeed())
	all, err := krusty.MakeKustomizer(&krusty.Options{
		LoadRestrictions: types.LoadRestrictionsRootOnly, PluginConfig: types.DisabledPluginConfig(),
	}).Run(filesys.MakeFsOnDisk(), dir)
	g.Expect(err).NotTo(HaveOccurred())
	manifests, err := all.AsYaml()
	g.Expect(err).NotTo(HaveOccurred())
	objects, err := decode(manifests)
	g.Expect(err).NotTo(HaveOccurred())
	return objects
}

// decode returns the objects of a stream of YAML documents.
func decode(text []byte) (all []unstructured.Unstructured, err error) {
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		var object unstructured.Unstructured
		if err := documents.Decode(&object.Object); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("read object %d: %w", len(all)+1, err)
		}
		if len(object.Object) > 0 {
			all = append(all, object)
		}
	}
}

// modes returns the folders of k8s/ that are modes.
func modes(t *testing.T) (names []string) {
	t.Helper()
	g := NewWithT(t)
	all, err := filepath.Glob(filepath.Join("..", "..", "k8s", "*", "contiv.conf"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(all).NotTo(BeEmpty())
	for _, path := range all {
		names = append(names, filepath.Base(filepath.Dir(path)))
	}
	return names
}

// valuesOf returns the values that a mode requires: endpoints are those of its contiv.conf.
func valuesOf(mode string) values {
	v := values{"mode": mode}
	if strings.HasSuffix(mode, "-etcd") {
		v["config"] = values{"cadastre": values{"kvdb": values{"endpoints": []string{"https://192.0.2.10:2379"}}}}
	}
	return v
}
