// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package memapi simulates the API server's NetResourceSets in memory, for tests,
// simulations and demonstrations. It has the API server's rules. Each write needs the
// newest resourceVersion and makes a new one. A status is written separately from its spec.
// An object that was deleted and created again has another UID.
//
// Every method may be called from any goroutine. Changed and Deleted are called after a
// write, by the goroutine that wrote.
package memapi

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/operator/netresource"
)

// API simulates an API server. Its functions are set before it is used.
type API struct {
	Changed func(*v1alpha1.NetResourceSet)
	Deleted func(name string)
	// Fault may make a call fail before it is done: create, update, status, get.
	Fault func(call, name string) error

	mu      sync.Mutex
	version uint64
	objects map[string]*v1alpha1.NetResourceSet
	writes  int
}

var _ netresource.NetResourceSetGetterUpdater = (*API)(nil)

// New returns an API server without objects.
func New() *API { return &API{objects: map[string]*v1alpha1.NetResourceSet{}} }

func resource() schema.GroupResource {
	return v1alpha1.Resource(v1alpha1.NetResourceSets).GroupResource()
}

// Writes returns the number of writes that have changed an object.
func (a *API) Writes() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.writes
}

// Create implements netresource.NetResourceSetGetterUpdater.
func (a *API) Create(node *v1alpha1.NetResourceSet) (*v1alpha1.NetResourceSet, error) {
	return a.do("create", node.Name, func(old *v1alpha1.NetResourceSet) (*v1alpha1.NetResourceSet, error) {
		if old != nil {
			return nil, apierrors.NewAlreadyExists(resource(), node.Name)
		}
		made := node.DeepCopy()
		made.UID = types.UID(fmt.Sprintf("uid-%d", a.version+1))
		return made, nil
	})
}

// Update implements netresource.NetResourceSetGetterUpdater.
func (a *API) Update(_, next *v1alpha1.NetResourceSet) (*v1alpha1.NetResourceSet, error) {
	return a.do("update", next.Name, func(old *v1alpha1.NetResourceSet) (*v1alpha1.NetResourceSet, error) {
		made := next.DeepCopy()
		if old != nil {
			made.Status = old.Status
		}
		return made, check(old, next)
	})
}

// UpdateStatus implements netresource.NetResourceSetGetterUpdater.
func (a *API) UpdateStatus(_, next *v1alpha1.NetResourceSet) (*v1alpha1.NetResourceSet, error) {
	return a.do("status", next.Name, func(old *v1alpha1.NetResourceSet) (*v1alpha1.NetResourceSet, error) {
		if err := check(old, next); err != nil {
			return nil, err
		}
		made := old.DeepCopy()
		made.Status = *next.Status.DeepCopy()
		return made, nil
	})
}

// check returns an error unless next may replace old.
func check(old, next *v1alpha1.NetResourceSet) error {
	switch {
	case old == nil:
		return apierrors.NewNotFound(resource(), next.Name)
	case next.UID != old.UID || next.ResourceVersion != old.ResourceVersion:
		return apierrors.NewConflict(
			resource(),
			next.Name,
			fmt.Errorf("version %s is not the newest, which is %s", next.ResourceVersion, old.ResourceVersion),
		)
	}
	return nil
}

// do writes the object that change returns.
func (a *API) do(
	call, name string,
	change func(*v1alpha1.NetResourceSet) (*v1alpha1.NetResourceSet, error),
) (*v1alpha1.NetResourceSet, error) {
	if a.Fault != nil {
		if err := a.Fault(call, name); err != nil {
			return nil, err
		}
	}
	a.mu.Lock()
	old := a.objects[name]
	next, err := change(old)
	if err != nil {
		a.mu.Unlock()
		return nil, err
	}
	changed := old == nil || !equality.Semantic.DeepEqual(old, next)
	if changed {
		a.version++
		a.writes++
		next.ResourceVersion = strconv.FormatUint(a.version, 10)
		a.objects[name] = next
	}
	made := a.objects[name].DeepCopy()
	a.mu.Unlock()
	if changed && a.Changed != nil {
		a.Changed(made.DeepCopy())
	}
	return made, nil
}

// Get implements netresource.NetResourceSetGetterUpdater.
func (a *API) Get(name string) (*v1alpha1.NetResourceSet, error) {
	if a.Fault != nil {
		if err := a.Fault("get", name); err != nil {
			return nil, err
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if o := a.objects[name]; o != nil {
		return o.DeepCopy(), nil
	}
	return nil, apierrors.NewNotFound(resource(), name)
}

// Change writes an object as change changes it, without a check of its version.
func (a *API) Change(name string, change func(*v1alpha1.NetResourceSet)) error {
	_, err := a.do("change", name, func(old *v1alpha1.NetResourceSet) (*v1alpha1.NetResourceSet, error) {
		if old == nil {
			return nil, apierrors.NewNotFound(resource(), name)
		}
		next := old.DeepCopy()
		change(next)
		return next, nil
	})
	return err
}

// Delete deletes an object.
func (a *API) Delete(name string) error {
	a.mu.Lock()
	_, ok := a.objects[name]
	delete(a.objects, name)
	a.mu.Unlock()
	if !ok {
		return apierrors.NewNotFound(resource(), name)
	}
	if a.Deleted != nil {
		a.Deleted(name)
	}
	return nil
}

// Lister implements netresource.NetResourceSetGetterUpdater.
func (a *API) Lister() v1alpha1.NetResourceSetLister { return lister{a} }

type lister struct{ api *API }

// List implements v1alpha1.NetResourceSetLister.
func (l lister) List(selector labels.Selector) (all []*v1alpha1.NetResourceSet, err error) {
	l.api.mu.Lock()
	defer l.api.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(l.api.objects)) {
		if o := l.api.objects[name]; selector.Matches(labels.Set(o.Labels)) {
			all = append(all, o.DeepCopy())
		}
	}
	return all, nil
}

// Get implements v1alpha1.NetResourceSetLister.
func (l lister) Get(name string) (*v1alpha1.NetResourceSet, error) { return l.api.Get(name) }
