// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Command witnesses reads the witnesses of the agent's pod in the end-to-end test with a
// Kubernetes node, and prints their reports as JSON.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/cadastre/cadastre/witness"
	"github.com/cadastre/cadastre/witness/runtime"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "witnesses:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	r := runtime.New(runtime.Options{})
	defer r.Close()
	view, err := r.ReadDetailed(ctx)
	report := witness.ReportOf(witness.Runtime, err)
	out := map[string]any{"State": report.State, "Reason": report.Reason}
	if view != nil {
		out["Source"], out["Sandboxes"] = view.Source, view.Sandboxes
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{"Runtime": out})
}
