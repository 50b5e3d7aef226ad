// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package cniclient sends CNI calls to an agent, as cadastre-cni does, without a process. A
// test writes a cni.Request, and gets a cni.Reply or a *cni.Error.
//
// The package owns nothing, and any goroutine may call it.
package cniclient

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// Body returns the body of a Call of which the agent makes this request. As for a runtime, an
// ADD and a CHECK need a network namespace.
func Body(req cni.Request) []byte {
	network := struct {
		CNIVersion    string           `json:"cniVersion"`
		Name          string           `json:"name"`
		Type          string           `json:"type"`
		IPAM          map[string]any   `json:"ipam"`
		RuntimeConfig map[string]any   `json:"runtimeConfig"`
		PrevResult    *cni.Result      `json:"prevResult,omitempty"`
		Valid         []cni.Attachment `json:"cni.dev/valid-attachments"`
	}{
		CNIVersion:    "1.1.0",
		Name:          req.Network,
		Type:          "bridge",
		IPAM:          map[string]any{"type": cni.PluginType},
		RuntimeConfig: map[string]any{"ips": req.Wanted, "mac": req.MAC},
		Valid:         req.Attachments,
	}
	if req.Main {
		network.Type = cni.PluginType
	}
	if req.Pool != "" {
		network.IPAM["pool"] = req.Pool
	}
	if req.Routes != nil {
		network.IPAM["routes"] = req.Routes
	}
	if len(req.Previous) > 0 || req.Link != nil {
		network.PrevResult = &cni.Result{}
		for _, address := range req.Previous {
			network.PrevResult.IPs = append(network.PrevResult.IPs, cni.IP{Address: address})
		}
		if req.Link != nil {
			network.PrevResult.Interfaces = []cni.Interface{*req.Link}
		}
	}
	stdin, _ := json.Marshal(network) // it has texts and numbers only
	env := map[string]string{
		"CNI_COMMAND":     req.Command,
		"CNI_CONTAINERID": req.ContainerID,
		"CNI_NETNS":       req.Netns,
		"CNI_IFNAME":      req.IfName,
		"CNI_PATH":        "/opt/cni/bin",
		"CNI_ARGS":        "K8S_POD_NAMESPACE=" + req.Pod.Namespace + ";K8S_POD_NAME=" + req.Pod.Name + ";K8S_POD_UID=" + req.Pod.UID,
	}
	return cni.AppendCall(nil, func(name string) string { return env[name] }, stdin)
}

// Answer reads the agent's answer to a Call. The error is a *cni.Error if the plugin would
// print one.
func Answer(resp *http.Response) (reply cni.Reply, err error) {
	text, err := io.ReadAll(resp.Body)
	if cerr := resp.Body.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return reply, err
	}
	refusal := &cni.Error{}
	exit := resp.Header.Get(cni.HeaderExit)
	switch {
	case resp.StatusCode != http.StatusOK:
		return reply, fmt.Errorf("%s: %s", resp.Status, bytes.TrimSpace(text))
	case exit == "1":
		if err = json.Unmarshal(text, refusal); err == nil {
			refusal.CNIVersion = "" // as the agent has made it
			err = refusal
		}
	case exit != "0":
		err = fmt.Errorf("header %s is %q: want 0 or 1", cni.HeaderExit, exit)
	case len(text) > 0:
		err = json.Unmarshal(text, &reply)
	}
	return reply, err
}

// Ask sends a request with do, the method Do of an http.Client or the result of Through.
func Ask(ctx context.Context, do func(*http.Request) (*http.Response, error), req cni.Request) (cni.Reply, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://agent"+cni.Path, bytes.NewReader(Body(req)))
	if err != nil {
		return cni.Reply{}, err
	}
	resp, err := do(r)
	if err != nil {
		return cni.Reply{}, err
	}
	return Answer(resp)
}

// Through returns a function for Ask that calls a handler without a connection.
func Through(h http.Handler) func(*http.Request) (*http.Response, error) {
	return func(r *http.Request) (*http.Response, error) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Result(), nil
	}
}

// Address returns the first address of a reply without its prefix length, "" if it has none.
func Address(reply cni.Reply) string {
	if len(reply.IPs) == 0 {
		return ""
	}
	address, _, _ := strings.Cut(reply.IPs[0].Address, "/")
	return address
}
