// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package apistore

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// NodeWarning holds a warning event about a Node.
type NodeWarning struct {
	Reason, Message string
	At              time.Time
}

// WarnNode writes a warning event about this store's Node. The name of the event
// follows from its content: as long as the API server keeps the event (an hour by
// default), an agent that starts again does not repeat it.
func (s *Store) WarnNode(ctx context.Context, n NodeWarning) error {
	const component = "cadastre-agent"
	sum := sha256.Sum256([]byte(n.Reason + "\n" + n.Message))
	event := &corev1.Event{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta: metav1.ObjectMeta{
			Name:      fmt.Sprintf("%s.%x", s.reader.node, sum[:8]),
			Namespace: metav1.NamespaceDefault,
		},
		// The name as UID is the kubelet's convention, by which kubectl describe finds it.
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "v1",
			Kind:       "Node",
			Name:       s.reader.node,
			UID:        types.UID(s.reader.node),
		},
		Type:                corev1.EventTypeWarning,
		Reason:              n.Reason,
		Message:             n.Message,
		Count:               1,
		Source:              corev1.EventSource{Component: component, Host: s.reader.node},
		FirstTimestamp:      metav1.NewTime(n.At),
		LastTimestamp:       metav1.NewTime(n.At),
		ReportingController: component,
		ReportingInstance:   s.reader.node,
	}
	body, err := runtime.DefaultUnstructuredConverter.ToUnstructured(event)
	if err != nil {
		return fmt.Errorf("write event %s of Node %s: %w", n.Reason, s.reader.node, err)
	}
	err = s.ask(ctx, func(ctx context.Context) error {
		events := s.client.Resource(corev1.SchemeGroupVersion.WithResource("events")).Namespace(event.Namespace)
		_, err := events.Create(ctx, &unstructured.Unstructured{Object: body}, metav1.CreateOptions{})
		return err
	})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("write event %s of Node %s: %w", n.Reason, s.reader.node, err)
	}
	return nil
}
