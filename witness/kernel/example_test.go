// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kernel_test

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/cadastre/cadastre/witness/kernel"
)

// The links of this node that have an address.
func Example() {
	show := func(ctx context.Context) error {
		view, err := kernel.New(kernel.Options{}).Read(ctx, []string{"/var/run/netns/of-a-lease"})
		if err != nil {
			return err
		}
		for _, place := range view.Find(netip.MustParseAddr("10.1.5.7")) {
			fmt.Println(place.Namespace.Label(), place.Link.Name)
		}
		if view.Hidden != "" {
			fmt.Println("hidden namespaces may have it too:", view.Hidden)
		}
		return nil
	}
	_ = show
}
