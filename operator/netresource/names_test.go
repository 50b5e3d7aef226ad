// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource_test

import (
	"context"
	"log/slog"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/cadastre/cadastre/api/v1alpha1"
)

func everything() labels.Selector { return labels.Everything() }

// ResyncInterfacesAndIPs returns the addresses that the test has set.
func (n *fixedNode) ResyncInterfacesAndIPs(context.Context, *slog.Logger) (v1alpha1.AllocationMap, error) {
	return n.all(), nil
}
