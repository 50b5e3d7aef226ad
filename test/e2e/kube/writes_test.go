// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/json"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/cadastre/cadastre/api/v1alpha1"
)

// writer writes objects under one account.
type writer struct {
	t      *testing.T
	client dynamic.Interface
}

func newWriter(t *testing.T, kubeconfig string) writer {
	t.Helper()
	g := NewWithT(t)
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	g.Expect(err).NotTo(HaveOccurred())
	config.QPS = -1
	client, err := dynamic.NewForConfig(config)
	g.Expect(err).NotTo(HaveOccurred())
	return writer{t, client}
}

// write does one write of an object. With dry the API server decides on it, and
// changes nothing.
type write func(w writer, dry bool) error

func dryRun(dry bool) []string {
	if dry {
		return []string{metav1.DryRunAll}
	}
	return nil
}

func ours(resource string) schema.GroupVersionResource { return v1alpha1.Resource(resource) }

// fields are a part of an object.
type fields = map[string]any

// create creates an object of group cadastre.dev.
func create(resource, kind, name string, spec fields) write {
	return func(w writer, dry bool) error {
		u := &unstructured.Unstructured{Object: fields{"metadata": fields{"name": name}, "spec": spec}}
		u.SetGroupVersionKind(v1alpha1.GroupVersion().WithKind(kind))
		_, err := w.client.Resource(ours(resource)).Create(w.t.Context(), u, metav1.CreateOptions{DryRun: dryRun(dry)})
		return err
	}
}

// update sets fields of an object's spec; nil removes one.
func update(resource, name string, set fields) write {
	return func(w writer, dry bool) error {
		u, err := w.client.Resource(ours(resource)).Get(w.t.Context(), name, getOptions())
		if err != nil {
			return err
		}
		spec := u.Object["spec"].(fields)
		for k, v := range set {
			if spec[k] = v; v == nil {
				delete(spec, k)
			}
		}
		_, err = w.client.Resource(ours(resource)).Update(w.t.Context(), u, metav1.UpdateOptions{DryRun: dryRun(dry)})
		return err
	}
}

// remove deletes an object.
func remove(resource, name string) write {
	return func(w writer, dry bool) error {
		return w.client.Resource(ours(resource)).Delete(w.t.Context(), name, metav1.DeleteOptions{DryRun: dryRun(dry)})
	}
}

// report writes the status of an object.
func report(resource schema.GroupVersionResource, name string, status fields) write {
	return func(w writer, dry bool) error {
		u, err := w.client.Resource(resource).Get(w.t.Context(), name, getOptions())
		if err != nil {
			return err
		}
		u.Object["status"] = status
		_, err = w.client.Resource(resource).UpdateStatus(w.t.Context(), u, metav1.UpdateOptions{DryRun: dryRun(dry)})
		return err
	}
}

// beat creates a NodeBeat; node "" is a beat of an agent that does not name it.
func beat(id, node string) write {
	spec := fields{"instance": "i-" + node, "generation": int64(4), "session": "s", "at": "2026-11-22T12:00:00Z"}
	if node != "" {
		spec["nodeName"] = node
	}
	return create(v1alpha1.NodeBeats, "NodeBeat", id, spec)
}

// nodeEvent creates a warning event about a Node.
func nodeEvent(node string) write {
	return createEvent(fields{
		"metadata": fields{"name": node + ".e2e"}, "involvedObject": fields{"kind": "Node", "name": node}, "type": "Warning", "reason": "E2E", "message": "a test",
	})
}

// podEvent creates a warning event about a Pod in the name of a node's agent.
func podEvent(pod, node, reason string) write {
	event := fields{
		"metadata": fields{"name": pod + ".e2e"}, "involvedObject": fields{"kind": "Pod", "name": pod, "namespace": "default"},
		"type": "Warning", "reason": reason, "message": "a test", "source": fields{"component": "cadastre-agent", "host": node},
	}
	if node == "" {
		delete(event, "source")
	}
	return createEvent(event)
}

func createEvent(event fields) write {
	return func(w writer, dry bool) error {
		u := &unstructured.Unstructured{Object: event}
		u = u.DeepCopy()
		u.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "Event"})
		_, err := w.events().Create(w.t.Context(), u, metav1.CreateOptions{DryRun: dryRun(dry)})
		return err
	}
}

// changeEvent patches an event.
func changeEvent(name string, set fields) write {
	return func(w writer, dry bool) error {
		body, err := json.Marshal(set)
		if err != nil {
			return err
		}
		_, err = w.events().Patch(w.t.Context(), name, types.MergePatchType, body, metav1.PatchOptions{DryRun: dryRun(dry)})
		return err
	}
}

func (w writer) events() dynamic.ResourceInterface {
	return w.client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "events"}).Namespace("default")
}

// claimName returns the name of the PrefixClaim of a node for 10.1.N.0/24.
func claimName(prefix, node string) string {
	return "default." + strings.NewReplacer(".", "-", "/", "-").Replace(prefix) + "." + node
}

func prefixClaim(prefix, node string, more fields) write {
	return namedClaim(claimName(prefix, node), prefix, node, more)
}

func namedClaim(name, prefix, node string, more fields) write {
	spec := fields{"network": "default", "prefix": prefix, "nodeName": node, "nodeID": int64(1), "instance": "i-" + node, "since": "2026-11-22T12:00:00Z"}
	for k, v := range more {
		spec[k] = v
	}
	return create(v1alpha1.PrefixClaims, "PrefixClaim", name, spec)
}

// beRefused matches the refusal by a policy, with a part of its message.
func beRefused(message string) OmegaMatcher {
	return And(Satisfy(apierrors.IsForbidden), MatchError(And(ContainSubstring("ValidatingAdmissionPolicy 'cadastre-agent-"), ContainSubstring(message))))
}
