// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package apistore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/cadastre/cadastre/kvdb"
)

var (
	// ErrReadOnly is returned for a write of a key that is other people's object,
	// or none that there can be.
	ErrReadOnly = errors.New("apistore: the key is not one that is written here")
	// ErrOlder is how watches end when the API server has an older state than
	// it had: its own store was restored.
	ErrOlder = errors.New("apistore: the API server came back with an older state")
)

// Config is which API server, and for whom.
type Config struct {
	Kubeconfig string        // a file; "": the account of the pod that this process is in
	REST       *rest.Config  // instead of Kubeconfig
	Node       string        // whose Node object is read; "": none is
	UserAgent  string        // how the API server's log names this process
	Timeout    time.Duration // of one request; 0: 30 seconds
	Log        *slog.Logger  // nil: slog's default
}

// Store is the store. Use Open.
type Store struct {
	node    string
	timeout time.Duration
	log     *slog.Logger
	client  dynamic.Interface
	probe   discovery.DiscoveryInterface

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	work sync.WaitGroup // watches

	mu      sync.Mutex
	closed  bool
	lists   []snapshot        // the last ones, oldest first
	highest map[string]int64  // resourceVersion that was seen, by resource
	watches map[*watcher]bool // that run
}

var _ kvdb.Store = (*Store)(nil)

// snapshot is where Lists of each kind ended: the resourceVersions, by resource
// and selector.
type snapshot struct {
	token int64
	at    map[string]string
}

// keptLists is how many Lists can be continued by a Watch.
const keptLists = 128

// Open makes a Store. It does not speak to the API server yet.
func Open(c Config) (*Store, error) {
	rc := c.REST
	if rc == nil {
		var err error
		if rc, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig); err != nil {
			return nil, fmt.Errorf("find the API server: kubeconfig %q (\"\" is the account of a pod): %w", c.Kubeconfig, err)
		}
	}
	rc = rest.CopyConfig(rc)
	rc.UserAgent = cmp.Or(c.UserAgent, rc.UserAgent, "cadastre")
	rc.QPS, rc.Burst = 50, 100
	rc.ContentConfig = rest.ContentConfig{ContentType: runtime.ContentTypeJSON}
	client, err := dynamic.NewForConfig(rc)
	if err != nil {
		return nil, fmt.Errorf("make a client of the API server %s: %w", rc.Host, err)
	}
	probe, err := discovery.NewDiscoveryClientForConfig(rc)
	if err != nil {
		return nil, fmt.Errorf("make a client of the API server %s: %w", rc.Host, err)
	}
	s := &Store{
		node: c.Node, timeout: cmp.Or(c.Timeout, 30*time.Second), log: c.Log, client: client, probe: probe,
		highest: map[string]int64{}, watches: map[*watcher]bool{},
	}
	if s.log == nil {
		s.log = slog.Default()
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s, nil
}

// Close implements kvdb.Store.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	s.work.Wait()
	return nil
}

// ready fails after Close.
func (s *Store) ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return kvdb.ErrClosed
	}
	return nil
}

// request is ctx for one request; it ends with the Store too.
func (s *Store) request(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	release := context.AfterFunc(s.ctx, cancel)
	return ctx, func() { release(); cancel() }
}

// Probe asks whether the API server is there and ready.
func (s *Store) Probe(ctx context.Context) error {
	if err := s.ready(); err != nil {
		return err
	}
	ctx, cancel := s.request(ctx)
	defer cancel()
	if _, err := s.probe.RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); err != nil {
		return fmt.Errorf("probe the API server: %w", err)
	}
	return nil
}

// Get implements kvdb.Store.
func (s *Store) Get(ctx context.Context, key string) (x kvdb.KeyValue, found bool, err error) {
	k, u, err := s.get(ctx, key)
	if err != nil || u == nil {
		return kvdb.KeyValue{}, false, err
	}
	x, err = s.keyValue(k, u)
	return x, err == nil, err
}

// get reads the object of a key, nil where there is none.
func (s *Store) get(ctx context.Context, key string) (kind, *unstructured.Unstructured, error) {
	if err := s.ready(); err != nil {
		return kind{}, nil, err
	}
	k, namespace, name, ok := kindOf(key, s.node)
	if !ok {
		return kind{}, nil, nil
	}
	ctx, cancel := s.request(ctx)
	defer cancel()
	u, err := s.of(k, namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && missing(err):
		return k, nil, noDefinition(k, err)
	case apierrors.IsNotFound(err):
		return k, nil, nil
	case err != nil:
		return k, nil, fmt.Errorf("get %s: %w", key, err)
	}
	if k.exact == "" && k.key(u) != key || k.selector != "" && !k.pods && k.exact == "" && name != s.node {
		return k, nil, nil
	}
	return k, u, nil
}

// of is where the objects of a kind are.
func (s *Store) of(k kind, namespace string) dynamic.ResourceInterface {
	if namespace == "" {
		return s.client.Resource(k.resource)
	}
	return s.client.Resource(k.resource).Namespace(namespace)
}

// missing is whether err says that there is no such resource, rather than no
// such object.
func missing(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && (status.Status().Details == nil || status.Status().Details.Name == "")
}

func noDefinition(k kind, err error) error {
	return fmt.Errorf("the API server has no %s: apply the definitions of k8s/crd: %w", k.resource.GroupResource(), err)
}

// keyValue is an object as a key and its value.
func (s *Store) keyValue(k kind, u *unstructured.Unstructured) (kvdb.KeyValue, error) {
	rev, err := revision(u.GetResourceVersion())
	if err != nil {
		return kvdb.KeyValue{}, fmt.Errorf("%s: %w", k.key(u), err)
	}
	m, err := k.decode(u)
	if err != nil {
		return kvdb.KeyValue{}, fmt.Errorf("%s: %w", k.key(u), err)
	}
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return kvdb.KeyValue{}, fmt.Errorf("%s: %w", k.key(u), err)
	}
	return kvdb.KeyValue{Key: k.key(u), Value: value, ModRevision: rev}, nil
}

// revision is a resourceVersion as a number. All API servers have had numbers
// there, and since Kubernetes 1.35 they promise to.
func revision(resourceVersion string) (int64, error) {
	n, err := strconv.ParseInt(resourceVersion, 10, 64)
	if err != nil || n <= 0 {
		return 0, fmt.Errorf("resourceVersion %q is no number from 1 on", resourceVersion)
	}
	return n, nil
}

// List implements kvdb.Store; see the package for what is different. An object
// that cannot be read is left out.
func (s *Store) List(ctx context.Context, prefixes ...string) (all []kvdb.KeyValue, rev int64, err error) {
	if len(prefixes) > kvdb.MaxOps {
		return nil, 0, fmt.Errorf("list %d prefixes: %w", len(prefixes), kvdb.ErrTooManyOps)
	}
	ended := snapshot{at: map[string]string{}}
	for _, prefix := range prefixes {
		for _, k := range scope(prefix, s.node) {
			if ended.at[k.id()] != "" {
				continue
			}
			some, version, err := s.list(ctx, k)
			if err != nil {
				return nil, 0, err
			}
			ended.at[k.id()] = version
			if n, err := revision(version); err == nil {
				ended.token = max(ended.token, n)
			}
			all = append(all, some...)
		}
	}
	all = slices.DeleteFunc(all, func(x kvdb.KeyValue) bool {
		return !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(x.Key, p) })
	})
	slices.SortFunc(all, func(a, b kvdb.KeyValue) int { return cmp.Compare(a.Key, b.Key) })
	return all, s.remember(ended), nil
}

// id tells kinds apart by what is asked of the API server.
func (k kind) id() string { return k.resource.String() + " " + k.selector }

// remember keeps where a List ended under a token that is its own.
func (s *Store) remember(ended snapshot) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, old := range s.lists {
		if old.token != ended.token {
			continue
		}
		for id, version := range old.at { // whoever continues the earlier one must miss nothing
			ended.at[id] = version
		}
		s.lists = slices.Delete(s.lists, i, i+1)
		break
	}
	if s.lists = append(s.lists, ended); len(s.lists) > keptLists {
		s.lists = slices.Delete(s.lists, 0, 1)
	}
	return ended.token
}

// list reads all objects of a kind, and where a watch goes on.
func (s *Store) list(ctx context.Context, k kind) (all []kvdb.KeyValue, version string, err error) {
	if err := s.ready(); err != nil {
		return nil, "", err
	}
	ctx, cancel := s.request(ctx)
	defer cancel()
	before := s.seen(k.resource.String())
	objects, err := s.client.Resource(k.resource).List(ctx, metav1.ListOptions{FieldSelector: k.selector})
	if apierrors.IsNotFound(err) {
		return nil, "", noDefinition(k, err)
	}
	if err != nil {
		return nil, "", fmt.Errorf("list %s: %w", k.resource.GroupResource(), err)
	}
	version = objects.GetResourceVersion()
	if n, err := revision(version); err == nil {
		s.see(k.resource.String(), before, n)
	}
	for i := range objects.Items {
		if x, ok := s.read(k, &objects.Items[i]); ok {
			all = append(all, x)
		}
	}
	return all, version, nil
}

// read is an object as a key and its value, if it can be read.
func (s *Store) read(k kind, u *unstructured.Unstructured) (kvdb.KeyValue, bool) {
	if k.exact != "" && u.GetName() != k.exact {
		return kvdb.KeyValue{}, false
	}
	x, err := s.keyValue(k, u)
	if err != nil {
		s.log.Warn("an object cannot be read and is left out", "kind", k.resource.GroupResource(), "name", u.GetName(), "error", err)
		return kvdb.KeyValue{}, false
	}
	return x, true
}

// seen is how far a resource is known to be.
func (s *Store) seen(resource string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.highest[resource]
}

// see notes how far a resource is by a List that began when it was known to be
// at before. If it is less far than that, its watches have missed it, and end.
func (s *Store) see(resource string, before, rev int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if rev >= before {
		s.highest[resource] = max(s.highest[resource], rev)
		return
	}
	s.highest[resource] = rev
	s.log.Warn("the API server has an older state than it had: all watches end", "resource", resource, "before", before, "now", rev)
	for w := range s.watches {
		w.end(ErrOlder)
	}
}
