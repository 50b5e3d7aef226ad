// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/internal/backoff"
	"github.com/cadastre/cadastre/operator/netresource/objects"
	"github.com/cadastre/cadastre/operator/runner"
)

// Client implements NetResourceSetGetterUpdater for an API server, and follows its
// NetResourceSets. Use NewClient.
type Client struct {
	objects  dynamic.NamespaceableResourceInterface
	informer cache.SharedIndexInformer
	timeout  time.Duration // of one request
}

var _ NetResourceSetGetterUpdater = (*Client)(nil)

// NewClient returns a client whose requests end after timeout; 0: 30 seconds.
func NewClient(client dynamic.Interface, timeout time.Duration) *Client {
	return &Client{
		objects:  client.Resource(v1alpha1.Resource(v1alpha1.NetResourceSets)),
		informer: objects.InformerOf(client, v1alpha1.Resource(v1alpha1.NetResourceSets)),
		timeout:  cmp.Or(timeout, 30*time.Second),
	}
}

// Run passes all NetResourceSets to the manager, starts it, and passes changes to it
// until ctx ends. Then it closes the manager. If the provider cannot be read at the start, it
// tries again.
func (c *Client) Run(ctx context.Context, m *NetResourceSetManager) error {
	log := m.config.Log
	handle := func(o any, do func(*v1alpha1.NetResourceSet) error) {
		nrs, err := objects.Decode[v1alpha1.NetResourceSet](o)
		if err == nil {
			err = do(nrs)
		}
		if err != nil {
			log.Warn("a NetResourceSet is skipped", "error", err)
		}
	}
	return objects.Follow(ctx, c.informer, cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { handle(o, m.Create) },
		UpdateFunc: func(_, o any) { handle(o, m.Update) },
		DeleteFunc: func(o any) { handle(o, func(n *v1alpha1.NetResourceSet) error { return m.Delete(n.Name) }) },
	}, func(ctx context.Context) error {
		if err := c.complete(ctx, m); err != nil {
			return err
		}
		if err := start(ctx, m); err != nil {
			return err
		}
		<-ctx.Done()
		return m.Close()
	})
}

// startLimit is the longest wait between two attempts to start a manager.
const startLimit = 15 * time.Second

// start starts a manager, again until its provider can be read or ctx ends.
func start(ctx context.Context, m *NetResourceSetManager) error {
	c := m.config
	policy := backoff.Policy{First: c.RetryInterval, Limit: startLimit, Random: c.Random}
	for failures := 1; ; failures++ {
		err := m.Start(ctx)
		if !errors.Is(err, ErrNotReady) {
			return err
		}
		wait := policy.After(failures)
		c.Log.Warn("the provider cannot be read, trying again", "in", wait, "attempt", failures)
		if runner.Wait(ctx, wait) != nil {
			return err
		}
	}
}

// complete returns when the manager knows all existing NetResourceSets as they were after
// the call. The first list of an informer may come from a cache: it may lack the newest
// objects, and what an earlier manager has announced.
func (c *Client) complete(ctx context.Context, m *NetResourceSetManager) error {
	for {
		missing, err := c.missing(ctx, m)
		switch {
		case err != nil && ctx.Err() == nil:
			m.config.Log.Warn(
				"not all NetResourceSets are known to have been read, trying again; nothing is changed until then",
				"in", m.config.RetryInterval, "error", err)
		case err == nil && missing == "":
			return nil
		}
		if err := runner.Wait(ctx, m.config.RetryInterval); err != nil {
			return fmt.Errorf("wait until NetResourceSet %q is seen: %w", missing, err)
		}
	}
}

// missing passes the newest versions to the manager. It returns the name of a NetResourceSet
// that the manager does not know; "": none.
func (c *Client) missing(ctx context.Context, m *NetResourceSetManager) (name string, err error) {
	for next := ""; ; {
		list, err := runner.Within(ctx, c.timeout, func(ctx context.Context) (*unstructured.UnstructuredList, error) {
			return c.objects.List(ctx, metav1.ListOptions{Limit: 500, Continue: next})
		})
		if err != nil {
			return "", fmt.Errorf("list NetResourceSets: %w", err)
		}
		for i := range list.Items {
			n, err := objects.Decode[v1alpha1.NetResourceSet](&list.Items[i])
			switch {
			case err != nil: // it is skipped
			case !m.knows(n):
				return n.Name, nil
			default:
				m.refresh(n)
			}
		}
		if next = list.GetContinue(); next == "" {
			return "", nil
		}
	}
}

// request sends one request with o, and decodes the answer.
func (c *Client) request(
	o *v1alpha1.NetResourceSet,
	send func(context.Context, *unstructured.Unstructured) (*unstructured.Unstructured, error),
) (*v1alpha1.NetResourceSet, error) {
	u, err := objects.Encode(o, "NetResourceSet")
	if err != nil {
		return nil, err
	}
	answer, err := runner.Within(
		context.Background(),
		c.timeout,
		func(ctx context.Context) (*unstructured.Unstructured, error) {
			return send(ctx, u)
		},
	)
	if err != nil {
		return nil, err
	}
	return objects.Decode[v1alpha1.NetResourceSet](answer)
}

// Create implements NetResourceSetGetterUpdater.
func (c *Client) Create(node *v1alpha1.NetResourceSet) (*v1alpha1.NetResourceSet, error) {
	return c.request(node, func(ctx context.Context, u *unstructured.Unstructured) (*unstructured.Unstructured, error) {
		return c.objects.Create(ctx, u, metav1.CreateOptions{})
	})
}

// Update implements NetResourceSetGetterUpdater: it writes all but the status.
func (c *Client) Update(_, newResource *v1alpha1.NetResourceSet) (*v1alpha1.NetResourceSet, error) {
	if newResource.ResourceVersion == "" {
		return nil, errors.New("update a NetResourceSet: want the resourceVersion that it was read with")
	}
	return c.request(
		newResource,
		func(ctx context.Context, u *unstructured.Unstructured) (*unstructured.Unstructured, error) {
			return c.objects.Update(ctx, u, metav1.UpdateOptions{})
		},
	)
}

// UpdateStatus implements NetResourceSetGetterUpdater: it writes the status only.
func (c *Client) UpdateStatus(_, newResource *v1alpha1.NetResourceSet) (*v1alpha1.NetResourceSet, error) {
	if newResource.ResourceVersion == "" {
		return nil, errors.New("update the status of a NetResourceSet: want the resourceVersion that it was read with")
	}
	return c.request(
		newResource,
		func(ctx context.Context, u *unstructured.Unstructured) (*unstructured.Unstructured, error) {
			return c.objects.UpdateStatus(ctx, u, metav1.UpdateOptions{})
		},
	)
}

// Get implements NetResourceSetGetterUpdater.
func (c *Client) Get(name string) (*v1alpha1.NetResourceSet, error) {
	u, err := runner.Within(
		context.Background(),
		c.timeout,
		func(ctx context.Context) (*unstructured.Unstructured, error) {
			return c.objects.Get(ctx, name, metav1.GetOptions{})
		},
	)
	if err != nil {
		return nil, err
	}
	return objects.Decode[v1alpha1.NetResourceSet](u)
}

// Lister implements NetResourceSetGetterUpdater. It lists what Run has read.
func (c *Client) Lister() v1alpha1.NetResourceSetLister { return clientLister{c.informer.GetIndexer()} }

type clientLister struct{ all cache.Indexer }

// List implements v1alpha1.NetResourceSetLister.
func (l clientLister) List(selector labels.Selector) (found []*v1alpha1.NetResourceSet, err error) {
	for _, o := range l.all.List() {
		nrs, err := objects.Decode[v1alpha1.NetResourceSet](o)
		if err != nil {
			return nil, err
		}
		if selector.Matches(labels.Set(nrs.Labels)) {
			found = append(found, nrs)
		}
	}
	return found, nil
}

// Get implements v1alpha1.NetResourceSetLister.
func (l clientLister) Get(name string) (*v1alpha1.NetResourceSet, error) {
	o, ok, err := l.all.GetByKey(name)
	if err != nil {
		return nil, fmt.Errorf("find NetResourceSet %q: %w", name, err)
	}
	if !ok {
		return nil, apierrors.NewNotFound(v1alpha1.Resource(v1alpha1.NetResourceSets).GroupResource(), name)
	}
	return objects.Decode[v1alpha1.NetResourceSet](o)
}
