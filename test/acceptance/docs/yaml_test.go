// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipam/poolplan"
)

// otherYAML returns the reasons of blocks that are not of our formats, by "page: first line".
func otherYAML() map[string]string {
	return map[string]string{
		"charts/README.md: mode: external-etcd":                            "values of the Helm chart: helm compares them with values.schema.json",
		"docs/install/kind.md: kind: Cluster":                              "the configuration of kind, which has no decoder in a module that this one uses",
		"docs/install/k3s.md: apiVersion: kustomize.config.k8s.io/v1beta1": "a kustomization: test/e2e/kube builds and applies it",
		"docs/tasks/scrape-metrics.md: scrape_configs:":                    "the configuration of Prometheus, which has no decoder in Go that this module uses",
	}
}

// strictObjects returns a decoder of Kubernetes' and Cadastre's objects that refuses unknown
// and repeated fields.
func strictObjects() (runtime.Decoder, error) {
	s := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(s), v1alpha1.AddToScheme(s)); err != nil {
		return nil, err
	}
	return serializer.NewCodecFactory(s, serializer.EnableStrict).UniversalDeserializer(), nil
}

// decode decodes one document of YAML by its format, and names the format.
func decode(objects runtime.Decoder, text string) (format string, err error) {
	var keys map[string]any
	if err := yaml.UnmarshalStrict([]byte(text), &keys); err != nil {
		return "YAML", err
	}
	if keys["apiVersion"] != nil && keys["kind"] != nil {
		_, _, err := objects.Decode([]byte(text), nil, nil)
		return fmt.Sprintf("%v %v", keys["apiVersion"], keys["kind"]), err
	}
	if keys["pools"] != nil {
		_, err := poolplan.Parse([]byte(text))
		return "pools.yaml", err
	}
	_, _, err = contivconf.Parse([]byte(text))
	return "contiv.conf", err
}

func firstLine(text string) string {
	for line := range strings.Lines(text) {
		if trimmed := strings.TrimSpace(line); trimmed != "" && !strings.HasPrefix(trimmed, "#") {
			return trimmed
		}
	}
	return ""
}

func TestEveryBlockOfYAMLIsDecoded(t *testing.T) {
	g := NewWithT(t)
	objects, err := strictObjects()
	g.Expect(err).NotTo(HaveOccurred())
	others, decoded := otherYAML(), 0
	for _, b := range markdown(t) {
		if b.language != "yaml" && b.language != "yml" {
			continue
		}
		key := b.page + ": " + firstLine(b.text)
		if reason := others[key]; reason != "" {
			t.Logf("not decoded: %s:%d: %s", b.page, b.line, reason)
			delete(others, key)
			continue
		}
		for part := range strings.SplitSeq(b.text, "\n---\n") {
			decoded++
			if format, err := decode(objects, part); err != nil {
				t.Errorf("%s:%d: not %s: %v", b.page, b.line, format, err)
			}
		}
	}
	g.Expect(others).To(BeEmpty(), "no page has these blocks any more: remove the entries")
	g.Expect(decoded).To(BeNumerically(">", 5))
}

// TestWrongYAMLIsRefused shows that each decoder is strict.
func TestWrongYAMLIsRefused(t *testing.T) {
	g := NewWithT(t)
	objects, err := strictObjects()
	g.Expect(err).NotTo(HaveOccurred())
	for text, want := range map[string]string{
		"cadastre: {coolDown: 2m}":                 "",
		"cadastre: {coolDwn: 2m}":                  "unknown key",
		"ipamConfig: {podSubnetCIDR: 10.1.0.1/16}": "host bits",
		"a: 1\na: 2": "already set",
		"pools: [{name: a, ranges: [{cidr: 10.2.0.0/16, oneNodePrefixLen: 24}]}]":                                        "",
		"pools: [{name: a, range: [{cidr: 10.2.0.0/16}]}]":                                                               "unknown",
		"apiVersion: v1\nkind: Pod\nspec: {hostNetwork: true}":                                                           "",
		"apiVersion: v1\nkind: Pod\nspec: {hostNetwrk: true}":                                                            "unknown field",
		"apiVersion: v9\nkind: Pod":                                                                                      "no kind",
		"apiVersion: cadastre.dev/v1alpha1\nkind: AddressPool\nspec: {cidrs: [{cidr: 10.1.0.0/16, blockPrefixLen: 28}]}": "",
		"apiVersion: cadastre.dev/v1alpha1\nkind: AddressPool\nspec: {cidrs: [{cidr: 10.1.0.0/16, blockLen: 28}]}":       "unknown field",
	} {
		_, err := decode(objects, text)
		if want == "" {
			g.Expect(err).NotTo(HaveOccurred(), text)
		} else {
			g.Expect(err).To(MatchError(ContainSubstring(want)), text)
		}
	}
}
