// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/url"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
	"github.com/cadastre/cadastre/witness"
	"github.com/cadastre/cadastre/witness/kernel"
)

// maxExplained bounds the pods that a bundle explains.
const maxExplained = 20

// addExplanations adds the explanation of the node, and those of the pods whose events
// failed, the last ones first; one a line.
func (d *doctor) addExplanations(ctx context.Context) {
	const name = "explain.jsonl"
	var all bytes.Buffer
	text, err := d.ask(ctx, localapi.PathExplain+"?node=")
	if err != nil {
		d.add(name, nil, err)
		return
	}
	all.Write(append(bytes.TrimSpace(text), '\n'))
	for _, pod := range d.failedPods(ctx) {
		text, err := d.ask(ctx, localapi.PathExplain+"?pod="+url.QueryEscape(pod))
		if err != nil {
			text, _ = json.Marshal(map[string]string{"subject": "pod " + pod, "error": err.Error()})
		}
		all.Write(append(bytes.TrimSpace(text), '\n'))
	}
	d.add(name, all.Bytes(), nil)
}

// failedPods returns the pods of the events that failed, the last one first.
func (d *doctor) failedPods(ctx context.Context) (pods []string) {
	text, err := d.ask(ctx, localapi.PathEvents+"?failed=true")
	if err != nil {
		return nil
	}
	var order []string
	for dec := json.NewDecoder(bytes.NewReader(text)); ; {
		var r struct{ Subject controller.Subject }
		if err := dec.Decode(&r); err != nil {
			break
		}
		if pod := r.Subject.Pod; pod != "" {
			order = append(order, pod)
		}
	}
	seen := map[string]bool{}
	for i := len(order) - 1; i >= 0 && len(pods) < maxExplained; i-- {
		if !seen[order[i]] {
			seen[order[i]] = true
			pods = append(pods, order[i])
		}
	}
	return pods
}

// addKernel adds the network namespaces with their links, addresses and routes, as far as
// this process sees them.
func (d *doctor) addKernel(ctx context.Context) {
	const name = "kernel.json"
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	view, err := d.kernel(ctx)
	if err != nil {
		d.add(name, nil, err)
		return
	}
	text, err := json.MarshalIndent(view, "", " ")
	d.add(name, text, err)
}

func readKernel(ctx context.Context) (*witness.KernelView, error) {
	return kernel.New(kernel.Options{}).Read(ctx, nil)
}
