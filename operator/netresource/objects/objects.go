// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package objects converts Cadastre's Kubernetes objects between a dynamic client's form
// and typed values, and follows them with informers. It keeps no state. Every goroutine
// that Follow starts has ended when it returns.
package objects

import (
	"context"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/cadastre/cadastre/api/v1alpha1"
)

// InformerOf returns an informer of all objects of a resource.
func InformerOf(client dynamic.Interface, r schema.GroupVersionResource) cache.SharedIndexInformer {
	return dynamicinformer.NewFilteredDynamicInformer(
		client,
		r,
		metav1.NamespaceAll,
		0,
		cache.Indexers{},
		nil,
	).Informer()
}

// Follow runs an informer until then has returned. It calls then when the handler has
// seen all objects that there are.
func Follow(
	ctx context.Context,
	informer cache.SharedIndexInformer,
	handler cache.ResourceEventHandler,
	then func(context.Context) error,
) error {
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	registered, err := informer.AddEventHandler(handler)
	if err != nil {
		return fmt.Errorf("follow objects of the API server: %w", err)
	}
	work.Go(func() { informer.RunWithContext(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), registered.HasSynced) {
		return fmt.Errorf("list objects of the API server: %w", ctx.Err())
	}
	return then(ctx)
}

// Decode returns the typed form of an object of an informer or a client.
func Decode[T any](o any) (*T, error) {
	if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = gone.Obj
	}
	u, ok := o.(*unstructured.Unstructured)
	if !ok || u == nil {
		return nil, fmt.Errorf("read an object: got a %T, want an Unstructured", o)
	}
	typed := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, typed); err != nil {
		return nil, fmt.Errorf("read %s %q: %w", u.GetKind(), u.GetName(), err)
	}
	return typed, nil
}

// Encode is the reverse of Decode.
func Encode(o any, kind string) (*unstructured.Unstructured, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, fmt.Errorf("write a %s: %w", kind, err)
	}
	u := &unstructured.Unstructured{Object: fields}
	u.SetGroupVersionKind(v1alpha1.GroupVersion().WithKind(kind))
	return u, nil
}
