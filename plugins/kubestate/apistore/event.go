// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package apistore

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// NodeWarning holds a warning event about a Node.
type NodeWarning struct {
	Reason, Message string
	At              time.Time
}

// WarnNode writes a warning event about this store's Node. The name of the event follows
// from its content. So an agent that starts again does not repeat it as long as the API
// server keeps the event (an hour by default).
func (s *Store) WarnNode(ctx context.Context, n NodeWarning) error {
	event := s.warning(n.Reason, n.Message, n.At)
	event.Name, event.Namespace = eventName(s.reader.node, n.Reason, n.Message), metav1.NamespaceDefault
	// The name as UID is the kubelet's convention, by which kubectl describe finds it.
	event.InvolvedObject = corev1.ObjectReference{
		APIVersion: "v1",
		Kind:       "Node",
		Name:       s.reader.node,
		UID:        types.UID(s.reader.node),
	}
	if err := s.createEvent(ctx, event); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("write event %s of Node %s: %w", n.Reason, s.reader.node, err)
	}
	return nil
}

// PodWarning holds a warning event about a Pod.
type PodWarning struct {
	Namespace, Name string
	UID             string // "": the store asks the API server for it
	Reason, Message string
	Count           int // occurrences in this run of the agent
	At              time.Time
}

// WarnPod writes a warning event about a Pod. There is one event for each UID and reason:
// a later warning updates its message, count and time.
func (s *Store) WarnPod(ctx context.Context, n PodWarning) error {
	fail := func(err error) error {
		return fmt.Errorf("write event %s of Pod %s/%s: %w", n.Reason, n.Namespace, n.Name, err)
	}
	if n.UID == "" { // kubectl describe finds no event without it
		uid, err := s.podUID(ctx, n.Namespace, n.Name)
		if err != nil {
			return fail(err)
		}
		n.UID = uid
	}
	event := s.warning(n.Reason, n.Message, n.At)
	event.Name, event.Namespace = eventName(n.Name, n.UID, n.Reason), n.Namespace
	event.Count = int32(min(n.Count, 1<<30)) //nolint:gosec // bounded
	event.InvolvedObject = corev1.ObjectReference{
		APIVersion: "v1",
		Kind:       "Pod",
		Namespace:  n.Namespace,
		Name:       n.Name,
		UID:        types.UID(n.UID),
	}
	err := s.createEvent(ctx, event)
	if apierrors.IsAlreadyExists(err) {
		err = s.repeatEvent(ctx, event)
	}
	if err != nil {
		return fail(err)
	}
	return nil
}

// warning returns a warning event of this agent.
func (s *Store) warning(reason, message string, at time.Time) *corev1.Event {
	const component = "cadastre-agent"
	return &corev1.Event{
		TypeMeta:            metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		Type:                corev1.EventTypeWarning,
		Reason:              reason,
		Message:             bounded(message),
		Count:               1,
		Source:              corev1.EventSource{Component: component, Host: s.reader.node},
		FirstTimestamp:      metav1.NewTime(at),
		LastTimestamp:       metav1.NewTime(at),
		ReportingController: component,
		ReportingInstance:   s.reader.node,
	}
}

// bounded cuts a message to the length that the API server accepts.
func bounded(message string) string {
	const most = 1024
	if len(message) <= most {
		return message
	}
	return strings.ToValidUTF8(message[:most-3], "") + "..."
}

// eventName returns a name that follows from the content of an event.
func eventName(object string, content ...string) string {
	const longest = 253 - 17 // of the name of an object, less a dot and the sum
	sum := sha256.Sum256([]byte(strings.Join(content, "\n")))
	return fmt.Sprintf("%s.%x", strings.TrimRight(object[:min(len(object), longest)], "-."), sum[:8])
}

func (s *Store) events(namespace string) dynamic.ResourceInterface {
	return s.client.Resource(corev1.SchemeGroupVersion.WithResource("events")).Namespace(namespace)
}

func (s *Store) createEvent(ctx context.Context, event *corev1.Event) error {
	body, err := runtime.DefaultUnstructuredConverter.ToUnstructured(event)
	if err != nil {
		return err
	}
	return s.ask(ctx, func(ctx context.Context) error {
		object := &unstructured.Unstructured{Object: body}
		_, err := s.events(event.Namespace).Create(ctx, object, metav1.CreateOptions{})
		return err
	})
}

// repeatEvent updates an event that exists.
func (s *Store) repeatEvent(ctx context.Context, event *corev1.Event) error {
	patch, err := json.Marshal(map[string]any{
		"message":       event.Message,
		"count":         event.Count,
		"lastTimestamp": event.LastTimestamp,
	})
	if err != nil {
		return err
	}
	return s.ask(ctx, func(ctx context.Context) error {
		_, err := s.events(event.Namespace).Patch(ctx, event.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
}

func (s *Store) podUID(ctx context.Context, namespace, name string) (uid string, err error) {
	err = s.ask(ctx, func(ctx context.Context) error {
		pods := s.client.Resource(corev1.SchemeGroupVersion.WithResource("pods")).Namespace(namespace)
		pod, err := pods.Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			uid = string(pod.GetUID())
		}
		return err
	})
	return uid, err
}

// Permanent reports whether the API server answered err for a reason that does not pass,
// such as a namespace that is gone or a right that the agent lacks.
func Permanent(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsForbidden(err) ||
		apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)
}
