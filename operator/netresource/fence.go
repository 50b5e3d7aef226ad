// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource

import (
	"context"
	"fmt"
	"time"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/operator/runner"
)

// fenceTimeout is how long the fence may take to answer.
const fenceTimeout = 10 * time.Second

// may returns nil where this manager still was the one at some moment after the
// call.
func may(ctx context.Context, gate *runner.Gate) error {
	if err := gate.Check(ctx); err != nil {
		return fmt.Errorf("look whether this is still the manager of NetResourceSets: %w", err)
	}
	return nil
}

// fenced is an API server that is written to only by who may.
type fenced struct {
	NetResourceSetGetterUpdater
	gate *runner.Gate
}

// Create implements NetResourceSetGetterUpdater.
func (f fenced) Create(node *v1alpha1.NetResourceSet) (*v1alpha1.NetResourceSet, error) {
	if err := may(context.Background(), f.gate); err != nil {
		return nil, err
	}
	return f.NetResourceSetGetterUpdater.Create(node)
}

// Update implements NetResourceSetGetterUpdater.
func (f fenced) Update(origResource, newResource *v1alpha1.NetResourceSet) (*v1alpha1.NetResourceSet, error) {
	if err := may(context.Background(), f.gate); err != nil {
		return nil, err
	}
	return f.NetResourceSetGetterUpdater.Update(origResource, newResource)
}

// UpdateStatus implements NetResourceSetGetterUpdater.
func (f fenced) UpdateStatus(origResource, newResource *v1alpha1.NetResourceSet) (*v1alpha1.NetResourceSet, error) {
	if err := may(context.Background(), f.gate); err != nil {
		return nil, err
	}
	return f.NetResourceSetGetterUpdater.UpdateStatus(origResource, newResource)
}
