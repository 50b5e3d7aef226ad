// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package runtime_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/cadastre/cadastre/witness"
	"github.com/cadastre/cadastre/witness/runtime"
)

// A caller tells a node without a runtime from one whose runtime is missing.
func Example() {
	r := runtime.New(runtime.Options{Sockets: []string{"/run/no-such-runtime/containerd.sock"}})
	defer r.Close()
	leasesOfCNI := 2 // in the ledger
	view, err := r.Read(context.Background())
	if errors.Is(err, runtime.ErrNoRuntime) && leasesOfCNI == 0 {
		err = fmt.Errorf("%w: %w", witness.ErrNotApplicable, err)
	}
	fmt.Println(view != nil, witness.ReportOf(witness.Runtime, err).State)
	fmt.Println(err)
	// Output:
	// false missing
	// read the container runtime: no container runtime offers the CRI: found none of the sockets /run/no-such-runtime/containerd.sock
}
