// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package apistore

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/api/v1alpha1"
)

// kind maps the objects of one resource to keys and values. The key of an object is
// prefix and its name; of a pod it is prefix, namespace and name. If exact is set there
// is one object, whose key is prefix.
type kind struct {
	resource schema.GroupVersionResource
	object   string // the kind's name, if it is written
	prefix   string
	pods     bool
	exact    string // the name of the one object
	node     string // the node of the objects; "": any, or none
	selector string // selects the objects that have keys; "": all
	decode   decoder
	// counts is set if nodes compete for the object, which then counts its writes.
	counts bool
	// status is set if only the status of an existing object is written.
	status bool
	encode encoder // nil: read only
}

// decoder returns the message of an object.
type decoder func(*unstructured.Unstructured) (proto.Message, error)

// encoder returns the object of a value that replaces old, nil for a first one.
type encoder func(value []byte, name string, old *unstructured.Unstructured) (runtime.Object, error)

// reader holds the node that reads the store, which determines the kinds.
type reader struct {
	node         string // whose Node object is read; "": none is
	netResources bool   // its NetResourceSet is read, and its status written
}

// scope returns the kinds whose keys may begin with prefix.
func (r reader) scope(prefix string) []kind {
	var all []kind
	for _, k := range append(r.shared(), r.ofNode(nodeOf(prefix))...) {
		if k.prefix != "" && (strings.HasPrefix(k.prefix, prefix) || strings.HasPrefix(prefix, k.prefix)) {
			all = append(all, k)
		}
	}
	return all
}

// nodeOf returns the node whose keys begin with prefix, "" for none.
func nodeOf(prefix string) string {
	rest, ok := strings.CutPrefix(prefix, strings.TrimSuffix(kv.NodePrefix(""), "/"))
	if !ok {
		return ""
	}
	name, _, _ := strings.Cut(rest, "/")
	return name
}

// shared returns the kinds that do not belong to one node, and this node's Node.
func (r reader) shared() []kind {
	all := []kind{
		{
			resource: v1alpha1.Resource(v1alpha1.NodeIDs),
			object:   "NodeID",
			prefix:   kv.NodeRecordPrefix,
			decode:   decodeErr((*v1alpha1.NodeID).ToKV),
			encode:   encode(v1alpha1.NodeIDFrom),
		},
		{
			resource: v1alpha1.Resource(v1alpha1.NodeBeats),
			object:   "NodeBeat",
			prefix:   kv.BeatPrefix,
			decode:   decodeErr((*v1alpha1.NodeBeat).ToKV),
			encode:   encode(v1alpha1.NodeBeatFrom),
		},
		{
			resource: v1alpha1.Resource(v1alpha1.NodeNames),
			object:   "NodeName",
			prefix:   kv.NodeNameKey(""),
			decode:   decode((*v1alpha1.NodeName).ToKV),
			encode:   encodeNodeName,
			counts:   true,
		},
		{
			resource: v1alpha1.Resource(v1alpha1.Pools),
			object:   "Pool",
			prefix:   kv.PoolPrefix,
			decode:   decode((*v1alpha1.Pool).ToKV),
			encode:   encode(v1alpha1.PoolFrom),
		},
		{
			resource: v1alpha1.Resource(v1alpha1.PoolChanges),
			object:   "PoolChange",
			prefix:   kv.PoolsKey,
			exact:    v1alpha1.PoolChangeName,
			decode:   decodePoolChange,
			encode:   encodePoolChange,
			counts:   true,
		},
		{
			resource: v1alpha1.Resource(v1alpha1.PrefixClaims),
			object:   "PrefixClaim",
			prefix:   kv.PrefixClaimPrefix,
			decode:   decodeErr((*v1alpha1.PrefixClaim).ToKV),
			encode:   encodeErr(v1alpha1.PrefixClaimFrom),
		},
		{
			resource: v1alpha1.Resource(v1alpha1.ClusterChecks),
			object:   "ClusterCheck",
			prefix:   kv.ClusterCheckKey,
			exact:    v1alpha1.ClusterCheckName,
			decode:   decodeErr((*v1alpha1.ClusterCheck).ToKV),
			encode:   encode(v1alpha1.ClusterCheckFrom),
		},
		{
			resource: v1alpha1.Resource(v1alpha1.CustomNetworks),
			prefix:   kv.CustomNetworkPrefix,
			decode:   decode((*v1alpha1.CustomNetwork).ToKV),
		},
	}
	if r.node == "" {
		return all
	}
	return append(all, kind{
		resource: corev1.SchemeGroupVersion.WithResource("nodes"),
		prefix:   kv.KubeNodePrefix,
		node:     r.node,
		decode:   decode(v1alpha1.NodeToKV),
		selector: fields.OneTermEqualSelector("metadata.name", r.node).String(),
	})
}

// ofNode returns the kinds of one node, none for the node "".
func (r reader) ofNode(node string) []kind {
	if node == "" {
		return nil
	}
	all := []kind{
		{
			resource: corev1.SchemeGroupVersion.WithResource("pods"),
			prefix:   kv.PodPrefix(node),
			pods:     true,
			node:     node,
			decode:   decode(v1alpha1.PodToKV),
			selector: fields.OneTermEqualSelector("spec.nodeName", node).String(),
		},
		{
			resource: v1alpha1.Resource(v1alpha1.NodeConfigs),
			prefix:   kv.NodeConfigKey(node),
			exact:    node,
			decode:   decode((*v1alpha1.NodeConfig).ToKV),
			selector: fields.OneTermEqualSelector("metadata.name", node).String(),
		},
	}
	if !r.netResources || node != r.node {
		return all
	}
	return append(all, kind{
		resource: v1alpha1.Resource(v1alpha1.NetResourceSets),
		object:   "NetResourceSet",
		prefix:   kv.NetResourceSetKey(node),
		exact:    node,
		decode:   decode((*v1alpha1.NetResourceSet).ToKV),
		encode:   encodeNetResourceSet,
		counts:   true,
		status:   true,
		selector: fields.OneTermEqualSelector("metadata.name", node).String(),
	})
}

// kindOf returns the kind of a key, and the namespace and name of its object.
func (r reader) kindOf(key string) (k kind, namespace, name string, ok bool) {
	for _, k := range append(r.shared(), r.ofNode(nodeOf(key))...) {
		rest, ok := strings.CutPrefix(key, k.prefix)
		switch {
		case !ok:
		case k.exact != "" && rest == "":
			return k, "", k.exact, true
		case k.exact != "":
		case k.pods:
			if namespace, name, _ := strings.Cut(rest, "/"); isName(namespace) && isName(name) {
				return k, namespace, name, true
			}
		case isName(rest):
			return k, "", rest, true
		}
	}
	return kind{}, "", "", false
}

// isName reports whether an object can have that name. The API server checks the
// remaining rules.
func isName(name string) bool { return name != "" && len(content.IsPathSegmentName(name)) == 0 }

// key returns the key of an object.
func (k kind) key(u *unstructured.Unstructured) string {
	switch {
	case k.exact != "":
		return k.prefix
	case k.pods:
		return k.prefix + u.GetNamespace() + "/" + u.GetName()
	}
	return k.prefix + u.GetName()
}

// holds reports whether an object of the kind has a key, as the selector does.
func (k kind) holds(u *unstructured.Unstructured) bool {
	switch {
	case k.exact != "":
		return u.GetName() == k.exact
	case k.pods:
		on, _, _ := unstructured.NestedString(u.Object, "spec", "nodeName")
		return on == k.node
	}
	return k.node == "" || u.GetName() == k.node
}

// decode returns the decoder of a conversion that cannot fail.
func decode[O any, M proto.Message](f func(*O) M) decoder {
	return decodeErr(func(o *O) (M, error) { return f(o), nil })
}

func decodeErr[O any, M proto.Message](f func(*O) (M, error)) decoder {
	return func(u *unstructured.Unstructured) (proto.Message, error) {
		o := new(O)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, o); err != nil {
			return nil, fmt.Errorf("read %s %s: %w", u.GetKind(), u.GetName(), err)
		}
		return f(o)
	}
}

// decodePoolChange returns the value that a repair writes: an empty message.
func decodePoolChange(*unstructured.Unstructured) (proto.Message, error) { return &kv.Meta{}, nil }

// encode returns the encoder of a conversion that cannot fail.
func encode[T any, M interface {
	*T
	proto.Message
}, O runtime.Object](f func(M) O) encoder {
	return encodeErr(func(m M) (O, error) { return f(m), nil })
}

func encodeErr[T any, M interface {
	*T
	proto.Message
}, O runtime.Object](f func(M) (O, error)) encoder {
	return func(value []byte, _ string, _ *unstructured.Unstructured) (runtime.Object, error) {
		m := M(new(T))
		if err := proto.Unmarshal(value, m); err != nil {
			return nil, err
		}
		return f(m)
	}
}

// encodeNodeName counts the writes of the object, which only orders the writes of other
// objects: the API server ignores a write that changes nothing.
func encodeNodeName(value []byte, name string, old *unstructured.Unstructured) (runtime.Object, error) {
	m := &kv.NodeName{}
	err := proto.Unmarshal(value, m)
	n := v1alpha1.NodeNameFrom(name, m)
	n.Spec.Writes = writes(old) + 1
	return n, err
}

func encodePoolChange(_ []byte, name string, old *unstructured.Unstructured) (runtime.Object, error) {
	c := &v1alpha1.PoolChange{Spec: v1alpha1.PoolChangeSpec{Writes: writes(old) + 1}}
	c.Name = name
	return c, nil
}

// encodeNetResourceSet returns a new object if there is none. The agent writes only the
// status of an existing one.
func encodeNetResourceSet(value []byte, _ string, old *unstructured.Unstructured) (runtime.Object, error) {
	m := &kv.NetResourceSet{}
	if err := proto.Unmarshal(value, m); err != nil || old == nil {
		return v1alpha1.NetResourceSetFrom(m, nil), err
	}
	was := &v1alpha1.NetResourceSet{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(old.Object, was); err != nil {
		return nil, fmt.Errorf("read NetResourceSet %s: %w", old.GetName(), err)
	}
	return v1alpha1.NetResourceSetFrom(m, was), nil
}

// writes returns the number of writes of an object that counts them.
func writes(old *unstructured.Unstructured) int64 {
	if old == nil {
		return 0
	}
	n, _, _ := unstructured.NestedInt64(old.Object, "spec", "writes")
	return n
}
