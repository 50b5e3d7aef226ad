// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package apistore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
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
	// ErrReadOnly is returned for a write of a key that belongs to an object of another
	// program, or to no possible object.
	ErrReadOnly = errors.New("apistore: the key is not one that is written here")
	// ErrPolicy is returned for a write that a ValidatingAdmissionPolicy refuses,
	// such as the one that limits an agent to its own node's objects.
	ErrPolicy = errors.New("apistore: a policy of the cluster refuses the write")
	// ErrOlder ends watches when the API server has an older state than before: its own
	// store was restored.
	ErrOlder = errors.New("apistore: the API server came back with an older state")
)

// Config holds the address of the API server and the identity of the node.
type Config struct {
	Kubeconfig string       // a file; "": the account of the pod that this process is in
	REST       *rest.Config // instead of Kubeconfig
	Node       string       // whose Node object is read; "": none is
	UserAgent  string       // of this process in the API server's log
	// NetResources makes the Node's NetResourceSet readable, and its status writable.
	NetResources bool
	Timeout      time.Duration // of one request; 0: 30 seconds
	Log          *slog.Logger  // nil: slog's default
}

// Store implements kvdb.Store. Use Open.
type Store struct {
	reader  reader
	timeout time.Duration
	log     *slog.Logger
	client  dynamic.Interface
	probe   discovery.DiscoveryInterface

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	work sync.WaitGroup // watches

	mu      sync.Mutex
	closed  bool
	highest int64             // revision that this store has seen
	watches map[*watcher]bool // running
}

var _ kvdb.Store = (*Store)(nil)

// Open returns a Store. It sends no request yet.
func Open(c Config) (*Store, error) {
	rc := c.REST
	if rc == nil {
		var err error
		if rc, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig); err != nil {
			return nil, fmt.Errorf("find the API server: kubeconfig %q (\"\" is the account of a pod): %w",
				c.Kubeconfig, err)
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
		reader:  reader{c.Node, c.NetResources},
		timeout: cmp.Or(c.Timeout, 30*time.Second),
		log:     c.Log,
		client:  client,
		probe:   probe,
		watches: map[*watcher]bool{},
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

// ask sends one request, which ends with the Store too.
func (s *Store) ask(ctx context.Context, request func(context.Context) error) error {
	if err := s.ready(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	err := request(ctx)
	if err != nil && s.ctx.Err() != nil {
		return fmt.Errorf("%w: %w", kvdb.ErrClosed, err)
	}
	return err
}

// Probe returns an error unless the API server is ready.
func (s *Store) Probe(ctx context.Context) error {
	err := s.ask(ctx, func(ctx context.Context) error {
		return s.probe.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
	if err != nil {
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

// get reads the object of a key, nil if there is none.
func (s *Store) get(ctx context.Context, key string) (k kind, u *unstructured.Unstructured, err error) {
	k, namespace, name, ok := s.reader.kindOf(key)
	if !ok {
		return k, nil, s.ready()
	}
	err = s.ask(ctx, func(ctx context.Context) (err error) {
		u, err = s.of(k, namespace).Get(ctx, name, metav1.GetOptions{})
		return err
	})
	switch {
	case apierrors.IsNotFound(err) && !missing(err):
		return k, nil, nil
	case err != nil:
		return k, nil, fmt.Errorf("get %s: %w", key, known(k, err))
	case !k.holds(u):
		return k, nil, nil
	}
	return k, u, nil
}

// of returns the client for the objects of a kind.
func (s *Store) of(k kind, namespace string) dynamic.ResourceInterface {
	if namespace == "" {
		return s.client.Resource(k.resource)
	}
	return s.client.Resource(k.resource).Namespace(namespace)
}

// missing reports whether err is about a missing resource, not a missing object.
func missing(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && (status.Status().Details == nil || status.Status().Details.Name == "")
}

// known adds the remedy to an error that has a known one.
func known(k kind, err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf(
			"the API server has no %s: apply the definitions of k8s/crd: %w",
			k.resource.GroupResource(),
			err,
		)
	case byPolicy(err):
		return fmt.Errorf("%s: %w: %w", k.resource.GroupResource(), ErrPolicy, err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%s: the role of this process lacks something of k8s/: %w", k.resource.GroupResource(), err)
	}
	return fmt.Errorf("%s: %w", k.resource.GroupResource(), err)
}

// byPolicy reports whether a ValidatingAdmissionPolicy refused a write. Only the text of
// the API server's error distinguishes that from a missing right.
func byPolicy(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "ValidatingAdmissionPolicy ")
}

// unreadable is the value of an object that cannot be read. It is not a message.
const unreadable = "\xff"

// keyValue returns the key and the value of an object.
func (s *Store) keyValue(k kind, u *unstructured.Unstructured) (kvdb.KeyValue, error) {
	rev, err := revision(u.GetResourceVersion())
	if err != nil {
		return kvdb.KeyValue{}, fmt.Errorf("%s: %w", k.key(u), err)
	}
	m, err := k.decode(u)
	if err == nil {
		value, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err == nil {
			return kvdb.KeyValue{Key: k.key(u), Value: value, ModRevision: rev}, nil
		}
	}
	s.log.Warn("an object cannot be read", "kind", k.resource.GroupResource(), "name", u.GetName(), "error", err)
	return kvdb.KeyValue{Key: k.key(u), Value: []byte(unreadable), ModRevision: rev}, nil
}

// revision parses a resourceVersion. All API servers have used numbers, and since
// Kubernetes 1.35 they guarantee it.
func revision(resourceVersion string) (int64, error) {
	n, err := strconv.ParseInt(resourceVersion, 10, 64)
	if err != nil || n <= 0 {
		return 0, fmt.Errorf("resourceVersion %q is not a number from 1 on", resourceVersion)
	}
	return n, nil
}

// lists limits the attempts of a List whose revision the API server compacts meanwhile.
const lists = 3

// List implements kvdb.Store; see the package for what is different.
func (s *Store) List(ctx context.Context, prefixes ...string) (all []kvdb.KeyValue, rev int64, err error) {
	if len(prefixes) > kvdb.MaxOps {
		return nil, 0, fmt.Errorf("list %d prefixes: %w", len(prefixes), kvdb.ErrTooManyOps)
	}
	kinds := map[string]kind{}
	for _, prefix := range prefixes {
		for _, k := range s.reader.scope(prefix) {
			kinds[k.id()] = k
		}
	}
	for range lists {
		if all, rev, err = s.listAll(ctx, kinds); !expired(err) {
			break
		}
	}
	if err != nil {
		return nil, 0, fmt.Errorf("list %q: %w", prefixes, err)
	}
	all = slices.DeleteFunc(all, func(x kvdb.KeyValue) bool {
		return !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(x.Key, p) })
	})
	slices.SortFunc(all, func(a, b kvdb.KeyValue) int { return cmp.Compare(a.Key, b.Key) })
	return all, rev, nil
}

// id identifies the request for a kind.
func (k kind) id() string { return k.resource.String() + " " + k.selector }

// expired reports whether the API server has compacted the requested state.
func expired(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

// listAll lists one kind as it is now, and the others as of the same moment. Pods come
// first: the API server lists their newest state from its cache, an older one from etcd.
func (s *Store) listAll(ctx context.Context, kinds map[string]kind) (all []kvdb.KeyValue, rev int64, err error) {
	if len(kinds) == 0 {
		rev, err := s.now(ctx)
		return nil, rev, err
	}
	order := slices.SortedFunc(maps.Values(kinds), func(a, b kind) int {
		switch {
		case a.pods != b.pods && a.pods:
			return -1
		case a.pods != b.pods:
			return 1
		}
		return cmp.Compare(a.id(), b.id())
	})
	for _, k := range order {
		var some []kvdb.KeyValue
		if some, rev, err = s.list(ctx, k, metav1.ListOptions{}, rev); err != nil {
			return nil, 0, err
		}
		all = append(all, some...)
	}
	return all, rev, nil
}

// now returns the revision of the store.
func (s *Store) now(ctx context.Context) (int64, error) {
	_, rev, err := s.list(ctx, reader{}.shared()[0], metav1.ListOptions{Limit: 1}, 0)
	return rev, err
}

// list reads the objects of a kind at a revision, 0 for the newest, and returns it.
func (s *Store) list(
	ctx context.Context,
	k kind,
	o metav1.ListOptions,
	at int64,
) (all []kvdb.KeyValue, rev int64, err error) {
	o.FieldSelector = k.selector
	if at != 0 {
		o.ResourceVersion, o.ResourceVersionMatch = strconv.FormatInt(at, 10), metav1.ResourceVersionMatchExact
	}
	before := s.seen()
	var objects *unstructured.UnstructuredList
	err = s.ask(ctx, func(ctx context.Context) (err error) {
		objects, err = s.client.Resource(k.resource).List(ctx, o)
		return err
	})
	if err != nil {
		return nil, 0, known(k, err)
	}
	if rev, err = revision(objects.GetResourceVersion()); err != nil {
		return nil, 0, known(k, err)
	}
	switch {
	case at == 0:
		s.see(before, rev)
	case rev != at:
		return nil, 0, known(k, fmt.Errorf("asked for resourceVersion %d, the API server answers %d", at, rev))
	}
	for i := range objects.Items {
		if u := &objects.Items[i]; k.holds(u) {
			x, err := s.keyValue(k, u)
			if err != nil {
				return nil, 0, err
			}
			all = append(all, x)
		}
	}
	return all, rev, nil
}

// seen returns the highest revision that the store is known to have.
func (s *Store) seen() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.highest
}

// see records the revision of a request for the newest state. before is the value of
// seen when the request began. If the revision is below it, all watches end: they would
// wait for revisions that have been delivered.
func (s *Store) see(before, rev int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if rev >= min(before, s.highest) { // see may have lowered it meanwhile
		s.highest = max(s.highest, rev)
		return
	}
	s.highest = rev
	s.log.Warn("the API server has an older state than it had: all watches end", "before", before, "now", rev)
	for w := range s.watches {
		w.end(fmt.Errorf("%w: resourceVersion %d was seen before, now it is %d", ErrOlder, before, rev))
	}
}

// note records the revision of a watch event, which may be late.
func (s *Store) note(rev int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.highest = max(s.highest, rev)
}
