// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientset "k8s.io/client-go/kubernetes"

	"github.com/cadastre/cadastre/operator/runner"
)

// nodeAPI reads and writes Node objects. Reads do not come from a cache: they see
// everything that was written before they began.
type nodeAPI interface {
	get(ctx context.Context, name string) (*v1.Node, error)
	list(ctx context.Context) ([]v1.Node, error)
	// patch applies a merge patch. After an error it may have been applied, or may
	// be later, unless its preconditions (uid, resourceVersion) fail.
	patch(ctx context.Context, name string, body []byte) (*v1.Node, error)
	// patchStatus applies a strategic merge patch to the status.
	patchStatus(ctx context.Context, name string, body []byte) error
}

// apiServer implements nodeAPI with a clientset.
type apiServer struct {
	client  clientset.Interface
	timeout time.Duration // of one request
}

var _ nodeAPI = apiServer{}

func (a apiServer) get(ctx context.Context, name string) (*v1.Node, error) {
	return runner.Within(ctx, a.timeout, func(ctx context.Context) (*v1.Node, error) {
		return a.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	})
}

func (a apiServer) list(ctx context.Context) ([]v1.Node, error) {
	all, err := runner.Within(ctx, a.timeout, func(ctx context.Context) (*v1.NodeList, error) {
		return a.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	})
	if err != nil {
		return nil, err
	}
	return all.Items, nil
}

func (a apiServer) patch(ctx context.Context, name string, body []byte) (*v1.Node, error) {
	return runner.Within(ctx, a.timeout, func(ctx context.Context) (*v1.Node, error) {
		return a.client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, body, metav1.PatchOptions{})
	})
}

func (a apiServer) patchStatus(ctx context.Context, name string, body []byte) error {
	_, err := runner.Within(ctx, a.timeout, func(ctx context.Context) (*v1.Node, error) {
		return a.client.CoreV1().Nodes().Patch(
			ctx,
			name,
			types.StrategicMergePatchType,
			body,
			metav1.PatchOptions{},
			"status",
		)
	})
	return err
}

// meta is the part of a patch that identifies its object. The API server refuses
// the patch if the Node was created again since (another UID), or was written since
// (another resourceVersion).
type meta struct {
	UID             types.UID          `json:"uid,omitempty"`
	ResourceVersion string             `json:"resourceVersion,omitempty"`
	Annotations     map[string]*string `json:"annotations,omitempty"` // nil removes one
}

// spec is the part of a patch that assigns CIDRs.
type spec struct {
	PodCIDR  string   `json:"podCIDR"`
	PodCIDRs []string `json:"podCIDRs"`
}

// specPatch sets the podCIDRs of node, if it still is as it was read, and removes
// the annotation that announced them.
func specPatch(node *v1.Node, blocks []netip.Prefix) ([]byte, error) {
	texts := make([]string, len(blocks))
	for i, p := range blocks {
		texts[i] = p.String()
	}
	about := meta{UID: node.UID, ResourceVersion: node.ResourceVersion}
	if _, ok := node.Annotations[IntentAnnotation]; ok {
		about.Annotations = map[string]*string{IntentAnnotation: nil}
	}
	return marshal(node.Name, struct {
		Metadata meta `json:"metadata"`
		Spec     spec `json:"spec"`
	}{about, spec{texts[0], texts}})
}

// intentPatch announces what node is about to get, if it still is as it was read.
func intentPatch(node *v1.Node, blocks []netip.Prefix) ([]byte, error) {
	intent := joined(blocks)
	return marshal(node.Name, struct {
		Metadata meta `json:"metadata"`
	}{meta{
		UID:             node.UID,
		ResourceVersion: node.ResourceVersion,
		Annotations:     map[string]*string{IntentAnnotation: &intent},
	}})
}

// withdrawPatch replaces the announcement of what node is about to get by text,
// whatever was written since it was read. A text that no other patch has changes the
// node for sure, so no patch that was sent before can be applied afterwards.
func withdrawPatch(node *v1.Node, text string) ([]byte, error) {
	return marshal(node.Name, struct {
		Metadata meta `json:"metadata"`
	}{meta{UID: node.UID, Annotations: map[string]*string{IntentAnnotation: &text}}})
}

// conditionPatch sets a condition of node.
func conditionPatch(node *v1.Node, c v1.NodeCondition) ([]byte, error) {
	type status struct {
		Conditions []v1.NodeCondition `json:"conditions"`
	}
	return marshal(node.Name, struct {
		Metadata meta   `json:"metadata"`
		Status   status `json:"status"`
	}{meta{UID: node.UID}, status{[]v1.NodeCondition{c}}})
}

func marshal(name string, patch any) ([]byte, error) {
	body, err := json.Marshal(patch)
	if err != nil {
		return nil, fmt.Errorf("encode a patch of node %q: %w", name, err)
	}
	return body, nil
}
