// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package charts

import (
	"maps"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	sigsyaml "sigs.k8s.io/yaml"
)

// TestChartHasTheObjectsOfKustomize compares both renderings of every mode, and of every
// component beside the modes, object by object.
func TestChartHasTheObjectsOfKustomize(t *testing.T) {
	type variant struct {
		mode       string
		components []string
		values     values
		byHand     map[string]any // what the component has people write into cadastre of contiv.conf; nil removes a key
	}
	metrics := map[string]any{"metrics": map[string]any{
		"enabled": true, "listen": ":10262", "cert": "/etc/cadastre-metrics/tls.crt", "key": "/etc/cadastre-metrics/tls.key",
	}}
	variants := map[string]variant{
		"k3s": {mode: "derived-kubernetes", components: []string{"k3s"}, values: values{"distribution": "k3s"}},
		"gke": {mode: "external-kubernetes", components: []string{"gke"}, values: values{"distribution": "gke"}},
		"bridge": {
			mode: "derived-kubernetes", components: []string{"bridge"}, values: values{"mainPlugin": "bridge"},
			byHand: map[string]any{"dataplane": "none", "transport": "nodeip", "cni": nil},
		},
		"metrics": {
			mode: "derived-etcd", components: []string{"metrics"},
			values: values{"metrics": values{"tlsSecret": "cadastre-metrics-tls"}}, byHand: metrics,
		},
		"networkpolicy": {
			mode: "netresource-kubernetes", components: []string{"metrics", "networkpolicy"},
			values: values{
				"metrics":       values{"tlsSecret": "cadastre-metrics-tls"},
				"networkPolicy": values{"enabled": true}, "policiesEnforced": true,
			},
			byHand: metrics,
		},
	}
	for _, mode := range modes(t) {
		variants[mode] = variant{mode: mode}
	}
	for name, x := range variants {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			v := valuesOf(x.mode)
			maps.Copy(v, x.values)
			ours, theirs := index(g, mustRender(t, v)), index(g, built(t, x.mode, x.components...))
			delete(theirs, "Namespace cadastre-system") // Helm needs it before the release
			own := theirs["ConfigMap cadastre-config"]["data"].(map[string]any)["contiv.conf"].(map[string]any)["cadastre"].(map[string]any)
			for key, value := range x.byHand {
				if own[key] = value; value == nil {
					delete(own, key)
				}
			}
			g.Expect(slices.Sorted(maps.Keys(ours))).To(Equal(slices.Sorted(maps.Keys(theirs))))
			for key, want := range theirs {
				g.Expect(text(g, ours[key])).To(Equal(text(g, want)), key)
			}
		})
	}
}

// TestBothKeepToTheRules looks at the pods of every mode: none is privileged, and each has
// limits, a profile of seccomp, probes and a priority.
func TestBothKeepToTheRules(t *testing.T) {
	for _, mode := range modes(t) {
		g, pods := NewWithT(t), 0
		for _, object := range slices.Concat(mustRender(t, valuesOf(mode)), built(t, mode)) {
			spec, found, err := unstructured.NestedMap(object.Object, "spec", "template", "spec")
			g.Expect(err).NotTo(HaveOccurred())
			if !found {
				continue
			}
			pods++
			g.Expect(spec["priorityClassName"]).To(HavePrefix("system-"))
			g.Expect(spec).To(HaveKey("serviceAccountName"))
			for _, list := range []string{"initContainers", "containers"} {
				all, _, err := unstructured.NestedSlice(spec, list)
				g.Expect(err).NotTo(HaveOccurred())
				for _, one := range all {
					c := one.(map[string]any)
					security := c["securityContext"].(map[string]any)
					g.Expect(security).To(And(
						HaveKeyWithValue("readOnlyRootFilesystem", true), HaveKeyWithValue("allowPrivilegeEscalation", false),
						HaveKeyWithValue("seccompProfile", HaveKeyWithValue("type", "RuntimeDefault")), Not(HaveKey("privileged")),
					), "%s: %s", mode, c["name"])
					g.Expect(c["resources"]).To(And(HaveKey("requests"), HaveKeyWithValue("limits", HaveKey("memory"))))
					if list == "containers" {
						g.Expect(c).To(And(HaveKey("livenessProbe"), HaveKey("readinessProbe")), "%s: %s", mode, c["name"])
					}
				}
			}
		}
		g.Expect(pods).To(Equal(4), "agents and operators, of both")
	}
}

// index returns objects by kind and name, in the form in which both renderings are to be
// the same. What may differ, differs for these reasons: a kustomization puts a hash into the
// names of ConfigMaps where the chart has a sum in an annotation, an uninstall keeps the
// chart's definitions, and contiv.conf of the chart has no comments.
func index(g *WithT, all []unstructured.Unstructured) map[string]map[string]any {
	objects := map[string]map[string]any{}
	for _, u := range all {
		kind, name := u.GetKind(), u.GetName()
		if kind == "ConfigMap" {
			for _, base := range []string{"cadastre-config", "cadastre-cni"} {
				if strings.HasPrefix(name, base) {
					name = base
				}
			}
			u.SetName(name)
			readConfig(g, u.Object)
		}
		if strings.HasPrefix(kind, "ValidatingAdmissionPolicy") {
			u.SetNamespace("") // kustomize adds one to kinds of newer versions, which have none
		}
		annotations := u.GetAnnotations()
		delete(annotations, "helm.sh/resource-policy")
		u.SetAnnotations(annotations)
		if template, found, _ := unstructured.NestedMap(u.Object, "spec", "template"); found {
			normalise(g, template)
			g.Expect(unstructured.SetNestedMap(u.Object, template, "spec", "template")).To(Succeed())
		}
		key := kind + " " + name
		g.Expect(objects).NotTo(HaveKey(key))
		objects[key] = u.Object
	}
	return objects
}

// readConfig replaces the texts of a ConfigMap by what they mean.
func readConfig(g *WithT, object map[string]any) {
	data := object["data"].(map[string]any)
	for name, text := range data {
		var value map[string]any
		g.Expect(sigsyaml.Unmarshal([]byte(text.(string)), &value)).To(Succeed(), name)
		data[name] = value
	}
}

// normalise changes the template of a pod.
func normalise(g *WithT, template map[string]any) {
	annotations, _, err := unstructured.NestedMap(template, "metadata", "annotations")
	g.Expect(err).NotTo(HaveOccurred())
	delete(annotations, "checksum/config")
	unstructured.RemoveNestedField(template, "metadata", "annotations")
	if len(annotations) > 0 {
		g.Expect(unstructured.SetNestedMap(template, annotations, "metadata", "annotations")).To(Succeed())
	}
	spec := template["spec"].(map[string]any)
	volumes, _ := spec["volumes"].([]any)
	sortByName(volumes)
	for _, v := range volumes {
		if m, ok := v.(map[string]any)["configMap"].(map[string]any); ok {
			m["name"] = strings.Join(strings.Split(m["name"].(string), "-")[:2], "-")
		}
	}
	for _, list := range []string{"initContainers", "containers"} {
		containers, _ := spec[list].([]any)
		for _, c := range containers {
			c := c.(map[string]any)
			mounts, _ := c["volumeMounts"].([]any)
			sortByName(mounts)
			args, _ := c["args"].([]any)
			c["args"] = effective(args)
		}
	}
}

// text returns an object as YAML, in which a difference is easy to find.
func text(g *WithT, object map[string]any) string {
	out, err := sigsyaml.Marshal(object)
	g.Expect(err).NotTo(HaveOccurred())
	return string(out)
}

func sortByName(all []any) {
	name := func(x any) string { return x.(map[string]any)["name"].(string) }
	slices.SortFunc(all, func(a, b any) int { return strings.Compare(name(a), name(b)) })
}

// effective returns arguments without flags that a later one replaces, in one order.
func effective(args []any) (sorted []any) {
	last := map[string]string{}
	for _, a := range args {
		flag, _, _ := strings.Cut(a.(string), "=")
		last[flag] = a.(string)
	}
	for _, arg := range slices.Sorted(maps.Values(last)) {
		sorted = append(sorted, arg)
	}
	return sorted
}
