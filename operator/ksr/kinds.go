// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ksr

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/dynamicinformer"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/api/v1alpha1"
)

// kind describes one kind of object and its messages in the store. No two objects
// have the same key.
type kind struct {
	resource string // as package kv names it
	gvr      schema.GroupVersionResource
	custom   bool // a custom resource, which the API server may not have
	informer func() cache.SharedIndexInformer
	key      func(obj any) string // "": the object is not stored
	message  func(obj any) (proto.Message, error)
}

// kinds returns all kinds that are reflected. A new kind is added here and in
// package kv.
func kinds(d Deps) []kind {
	pods := func() cache.SharedIndexInformer {
		return coreinformers.NewFilteredPodInformer(
			d.Client,
			metav1.NamespaceAll,
			0,
			cache.Indexers{},
			func(o *metav1.ListOptions) {
				o.FieldSelector = fields.OneTermNotEqualSelector("spec.nodeName", "").String()
			},
		)
	}
	nodes := func() cache.SharedIndexInformer { return coreinformers.NewNodeInformer(d.Client, 0, cache.Indexers{}) }
	all := []kind{
		{
			resource: kv.PodResource, gvr: corev1.SchemeGroupVersion.WithResource("pods"), informer: pods,
			key: podKey, message: message(v1alpha1.PodToKV),
		},
		{
			resource: kv.NodeResource, gvr: corev1.SchemeGroupVersion.WithResource("nodes"), informer: nodes,
			key: named(kv.NodeKey), message: message(v1alpha1.NodeToKV),
		},
	}
	custom := func(resource, plural string, key func(string) string, message func(any) (proto.Message, error)) {
		gvr := v1alpha1.Resource(plural)
		informer := func() cache.SharedIndexInformer {
			return dynamicinformer.NewFilteredDynamicInformer(
				d.Dynamic,
				gvr,
				metav1.NamespaceAll,
				0,
				cache.Indexers{},
				nil,
			).Informer()
		}
		all = append(
			all,
			kind{resource: resource, gvr: gvr, custom: true, informer: informer, key: named(key), message: message},
		)
	}
	if d.Dynamic != nil {
		custom(
			kv.CustomNetworkResource,
			v1alpha1.CustomNetworks,
			kv.CustomNetworkKey,
			decoded((*v1alpha1.CustomNetwork).ToKV),
		)
		custom(kv.NodeConfigResource, v1alpha1.NodeConfigs, kv.NodeConfigKey, decoded((*v1alpha1.NodeConfig).ToKV))
	}
	return all
}

// podKey returns a key below the pod's node, "" for a pod that is on no node.
func podKey(obj any) string {
	pod, ok := obj.(*corev1.Pod)
	if !ok || pod.Spec.NodeName == "" {
		return ""
	}
	return kv.PodKey(pod.Spec.NodeName, kv.PodID{Name: pod.Name, Namespace: pod.Namespace})
}

// named makes a key of the object's name.
func named(key func(name string) string) func(any) string {
	return func(obj any) string {
		m, err := meta.Accessor(obj)
		if err != nil {
			return ""
		}
		return key(m.GetName())
	}
}

// message converts typed objects.
func message[O any, M proto.Message](convert func(O) M) func(any) (proto.Message, error) {
	return func(obj any) (proto.Message, error) {
		o, ok := obj.(O)
		if !ok {
			return nil, fmt.Errorf("convert an object: it has type %T", obj)
		}
		return convert(o), nil
	}
}

// decoded converts custom resources.
func decoded[O any, M proto.Message](convert func(*O) M) func(any) (proto.Message, error) {
	return func(obj any) (proto.Message, error) {
		u, ok := obj.(*unstructured.Unstructured)
		if !ok {
			return nil, fmt.Errorf("convert an object: it has type %T", obj)
		}
		o := new(O)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, o); err != nil {
			return nil, fmt.Errorf("convert to %T: %w", o, err)
		}
		return convert(o), nil
	}
}

// maxValue limits the size of a value; a store accepts one megabyte a transaction.
const maxValue = 256 << 10

// errLarge is returned for an object whose message exceeds maxValue.
var errLarge = errors.New("the object is too large to be stored")

// object is the reduced form of an object that a cache keeps: its key and its value
// in the store.
type object struct {
	metav1.ObjectMeta // name, namespace, UID and version only
	key               string
	value             []byte
	err               error // why there is no value
}

// reduce implements cache.TransformFunc. An informer may also call it with its own
// result.
func (k kind) reduce(obj any) (any, error) {
	if o, ok := obj.(*object); ok {
		return o, nil
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, fmt.Errorf("read a %s of the API server: %w", k.gvr.Resource, err)
	}
	o := &object{key: k.key(obj)}
	o.Name, o.Namespace, o.UID, o.ResourceVersion = m.GetName(), m.GetNamespace(), m.GetUID(), m.GetResourceVersion()
	if o.key != "" {
		o.value, o.err = k.valueOf(obj)
	}
	return o, nil
}

func (k kind) valueOf(obj any) ([]byte, error) {
	m, err := k.message(obj)
	if err != nil {
		return nil, err
	}
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err == nil && len(value) > maxValue {
		return nil, fmt.Errorf("%w: %d bytes, the limit is %d", errLarge, len(value), maxValue)
	}
	return value, err
}
