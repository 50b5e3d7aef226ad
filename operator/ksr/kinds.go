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

// kind is one kind of object and what is stored of it. Two objects never have
// one key.
type kind struct {
	resource string // as package kv names it
	gvr      schema.GroupVersionResource
	custom   bool // the API server may not have it
	informer func() cache.SharedIndexInformer
	key      func(obj any) string // "" for nowhere
	message  func(obj any) (proto.Message, error)
}

// kinds are all that are reflected. Who adds one adds it to package kv as well,
// and to nothing else.
func kinds(d Deps) []kind {
	pods := func() cache.SharedIndexInformer {
		return coreinformers.NewFilteredPodInformer(d.Client, metav1.NamespaceAll, 0, cache.Indexers{}, func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermNotEqualSelector("spec.nodeName", "").String()
		})
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
			return dynamicinformer.NewFilteredDynamicInformer(d.Dynamic, gvr, metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer()
		}
		all = append(all, kind{resource: resource, gvr: gvr, custom: true, informer: informer, key: named(key), message: message})
	}
	if d.Dynamic != nil {
		custom(kv.CustomNetworkResource, v1alpha1.CustomNetworks, kv.CustomNetworkKey, decoded((*v1alpha1.CustomNetwork).ToKV))
		custom(kv.NodeConfigResource, v1alpha1.NodeConfigs, kv.NodeConfigKey, decoded((*v1alpha1.NodeConfig).ToKV))
	}
	return all
}

// podKey is below the pod's node. A pod that is on none is nowhere.
func podKey(obj any) string {
	pod, ok := obj.(*corev1.Pod)
	if !ok || pod.Spec.NodeName == "" {
		return ""
	}
	return kv.PodKey(pod.Spec.NodeName, kv.PodID{Name: pod.Name, Namespace: pod.Namespace})
}

// named is a key that is made of the object's name.
func named(key func(name string) string) func(any) string {
	return func(obj any) string {
		m, err := meta.Accessor(obj)
		if err != nil {
			return ""
		}
		return key(m.GetName())
	}
}

// message is the conversion of typed objects.
func message[O any, M proto.Message](convert func(O) M) func(any) (proto.Message, error) {
	return func(obj any) (proto.Message, error) {
		o, ok := obj.(O)
		if !ok {
			return nil, fmt.Errorf("it is a %T", obj)
		}
		return convert(o), nil
	}
}

// decoded is the conversion of custom resources.
func decoded[O any, M proto.Message](convert func(*O) M) func(any) (proto.Message, error) {
	return func(obj any) (proto.Message, error) {
		u, ok := obj.(*unstructured.Unstructured)
		if !ok {
			return nil, fmt.Errorf("it is a %T", obj)
		}
		o := new(O)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, o); err != nil {
			return nil, fmt.Errorf("it is no %T: %w", o, err)
		}
		return convert(o), nil
	}
}

// maxValue is how large a value may be; a store takes no more than a megabyte
// at a time.
const maxValue = 256 << 10

// errLarge is why an object is not stored.
var errLarge = errors.New("it is too large to be stored")

// object is what is kept of an object in a cache: where it is stored, and as what.
type object struct {
	metav1.ObjectMeta // name, namespace, UID and version only
	key               string
	value             []byte
	err               error // why there is no value
}

// reduce makes an object of what the API server has sent. It may be called again
// with what it has made.
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
