// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package apistore

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation/path"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/api/v1alpha1"
)

// kind is how the objects of one resource are keys and values. The key of an
// object is prefix and its name; of a pod prefix, its namespace and its name;
// and where exact is set there is one object, of which prefix is the key.
type kind struct {
	resource schema.GroupVersionResource
	object   string // the kind's name, where it is written
	prefix   string
	pods     bool
	exact    string // the name of the one object
	node     string // the node that the objects are of; "": any, or none
	selector string // of the objects that are keys at all; "": all are
	// decode makes the message of an object.
	decode func(*unstructured.Unstructured) (proto.Message, error)
	// counts is set where an object is fought for, and counts its writes.
	counts bool
	// status is set where of an object that is there only the status is written.
	status bool
	// encode makes the object of a value that replaces old, nil for a first one.
	// A kind without it is read only.
	encode func(value []byte, name string, old *unstructured.Unstructured) (runtime.Object, error)
}

// reader is whose store it is, by which some kinds are read and others not.
type reader struct {
	node         string // whose Node object is read; "": none is
	netResources bool   // its NetResourceSet is read, and its status written
}

// scope is the kinds whose keys may begin with prefix.
func (r reader) scope(prefix string) []kind {
	var all []kind
	for _, k := range append(r.shared(), r.ofNode(nodeOf(prefix))...) {
		if k.prefix != "" && (strings.HasPrefix(k.prefix, prefix) || strings.HasPrefix(prefix, k.prefix)) {
			all = append(all, k)
		}
	}
	return all
}

// nodeOf is the node whose keys begin with prefix, "" for none.
func nodeOf(prefix string) string {
	rest, ok := strings.CutPrefix(prefix, strings.TrimSuffix(kv.NodePrefix(""), "/"))
	if !ok {
		return ""
	}
	name, _, _ := strings.Cut(rest, "/")
	return name
}

// shared are the kinds that are not of one node. Of Nodes there is this node's.
func (r reader) shared() []kind {
	all := []kind{
		{resource: v1alpha1.Resource(v1alpha1.NodeIDs), object: "NodeID", prefix: kv.NodeRecordPrefix, decode: decodeErr((*v1alpha1.NodeID).ToKV), encode: encodeNodeID},
		{resource: v1alpha1.Resource(v1alpha1.NodeBeats), object: "NodeBeat", prefix: kv.BeatPrefix, decode: decodeErr((*v1alpha1.NodeBeat).ToKV), encode: encodeNodeBeat},
		{resource: v1alpha1.Resource(v1alpha1.NodeNames), object: "NodeName", prefix: kv.NodeNameKey(""), decode: decode((*v1alpha1.NodeName).ToKV), encode: encodeNodeName, counts: true},
		{resource: v1alpha1.Resource(v1alpha1.Pools), object: "Pool", prefix: kv.PoolPrefix, decode: decode((*v1alpha1.Pool).ToKV), encode: encodePool},
		{resource: v1alpha1.Resource(v1alpha1.PoolChanges), object: "PoolChange", prefix: kv.PoolsKey, exact: v1alpha1.PoolChangeName, decode: decodePoolChange, encode: encodePoolChange, counts: true},
		{resource: v1alpha1.Resource(v1alpha1.PrefixClaims), object: "PrefixClaim", prefix: kv.PrefixClaimPrefix, decode: decodeErr((*v1alpha1.PrefixClaim).ToKV), encode: encodePrefixClaim},
		{resource: v1alpha1.Resource(v1alpha1.CustomNetworks), prefix: kv.CustomNetworkPrefix, decode: decode((*v1alpha1.CustomNetwork).ToKV)},
	}
	if r.node == "" {
		return all
	}
	return append(all, kind{
		resource: corev1.SchemeGroupVersion.WithResource("nodes"), prefix: kv.KubeNodePrefix, node: r.node, decode: decode(v1alpha1.NodeToKV),
		selector: fields.OneTermEqualSelector("metadata.name", r.node).String(),
	})
}

// ofNode are the kinds that are of one node, none where there is none.
func (r reader) ofNode(node string) []kind {
	if node == "" {
		return nil
	}
	all := []kind{
		{
			resource: corev1.SchemeGroupVersion.WithResource("pods"), prefix: kv.PodPrefix(node), pods: true, node: node, decode: decode(v1alpha1.PodToKV),
			selector: fields.OneTermEqualSelector("spec.nodeName", node).String(),
		},
		{
			resource: v1alpha1.Resource(v1alpha1.NodeConfigs), prefix: kv.NodeConfigKey(node), exact: node, decode: decode((*v1alpha1.NodeConfig).ToKV),
			selector: fields.OneTermEqualSelector("metadata.name", node).String(),
		},
	}
	if !r.netResources || node != r.node {
		return all
	}
	return append(all, kind{
		resource: v1alpha1.Resource(v1alpha1.NetResourceSets), object: "NetResourceSet", prefix: kv.NetResourceSetKey(node), exact: node,
		decode: decode((*v1alpha1.NetResourceSet).ToKV), encode: encodeNetResourceSet, counts: true, status: true,
		selector: fields.OneTermEqualSelector("metadata.name", node).String(),
	})
}

// kindOf is the kind of a key, and which object it is.
func (r reader) kindOf(key string) (k kind, namespace, name string, ok bool) {
	for _, k := range append(r.shared(), r.ofNode(nodeOf(key))...) {
		rest, ok := strings.CutPrefix(key, k.prefix)
		switch {
		case !ok:
		case k.exact != "" && rest == "":
			return k, "", k.exact, true
		case k.exact != "":
		case k.pods:
			if namespace, name, _ := strings.Cut(rest, "/"); mayBe(namespace) && mayBe(name) {
				return k, namespace, name, true
			}
		case mayBe(rest):
			return k, "", rest, true
		}
	}
	return kind{}, "", "", false
}

// mayBe is whether there can be an object of that name. One that is nonsense
// otherwise the API server refuses.
func mayBe(name string) bool { return name != "" && len(path.IsValidPathSegmentName(name)) == 0 }

// key is where an object is.
func (k kind) key(u *unstructured.Unstructured) string {
	switch {
	case k.exact != "":
		return k.prefix
	case k.pods:
		return k.prefix + u.GetNamespace() + "/" + u.GetName()
	}
	return k.prefix + u.GetName()
}

// holds is whether an object is one of the kind's that are keys, as the selector
// has it.
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

// decode makes a kind's decode of a function that cannot fail.
func decode[O any, M proto.Message](f func(*O) M) func(*unstructured.Unstructured) (proto.Message, error) {
	return decodeErr(func(o *O) (M, error) { return f(o), nil })
}

func decodeErr[O any, M proto.Message](f func(*O) (M, error)) func(*unstructured.Unstructured) (proto.Message, error) {
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

func encodeNodeID(value []byte, _ string, _ *unstructured.Unstructured) (runtime.Object, error) {
	m := &kv.NodeRecord{}
	err := proto.Unmarshal(value, m)
	return v1alpha1.NodeIDFrom(m), err
}

func encodeNodeBeat(value []byte, _ string, _ *unstructured.Unstructured) (runtime.Object, error) {
	m := &kv.NodeBeat{}
	err := proto.Unmarshal(value, m)
	return v1alpha1.NodeBeatFrom(m), err
}

func encodePool(value []byte, _ string, _ *unstructured.Unstructured) (runtime.Object, error) {
	m := &kv.Pool{}
	err := proto.Unmarshal(value, m)
	return v1alpha1.PoolFrom(m), err
}

func encodePrefixClaim(value []byte, _ string, _ *unstructured.Unstructured) (runtime.Object, error) {
	m := &kv.PrefixClaim{}
	if err := proto.Unmarshal(value, m); err != nil {
		return nil, err
	}
	return v1alpha1.PrefixClaimFrom(m)
}

// Objects that only order the writes of others count them: the API server does
// not take a write that changes nothing for one.
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

// encodeNetResourceSet makes the object where there is none; of one that is
// there the status alone is the agent's.
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

// writes is how often an object that counts was written.
func writes(old *unstructured.Unstructured) int64 {
	if old == nil {
		return 0
	}
	n, _, _ := unstructured.NestedInt64(old.Object, "spec", "writes")
	return n
}
