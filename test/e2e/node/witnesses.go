// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/internal/testkit/engines/critest"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
	"github.com/cadastre/cadastre/witness"
)

// inAgent runs cadastre in the agent's pod of a node.
func (t *scenario) inAgent(ctx context.Context, n *node, args ...string) (string, error) {
	name, err := t.agentPod(ctx, n)
	if err != nil {
		return "", err
	}
	return t.plane.kubectl(ctx, append([]string{
		"exec", name, "--namespace=" + namespace, "--container=agent", "--", "/cadastre",
	}, args...)...)
}

// witnesses returns the witnesses that the status of the agent lists.
func (t *scenario) witnesses(ctx context.Context, n *node) (all []localapi.Witness, err error) {
	out, err := t.inAgent(ctx, n, "status", "-o", "json")
	if err != nil {
		return nil, err
	}
	var s localapi.Status
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		return nil, fmt.Errorf("cadastre status: %w: %s", err, out)
	}
	return s.Witnesses, nil
}

// witnessIs waits until a witness has a state, for a reason that names a text.
func (t *scenario) witnessIs(ctx context.Context, n *node, name witness.Name, state witness.State, why string) error {
	var w localapi.Witness
	err := t.eventually(ctx, fmt.Sprintf("the %s is %s", name, state), func(ctx context.Context) error {
		all, err := t.witnesses(ctx, n)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(all, func(w localapi.Witness) bool { return w.Name == string(name) })
		if i < 0 {
			return fmt.Errorf("the status does not list it: %+v", all)
		}
		w = all[i]
		if w.State != state.String() || !strings.Contains(w.Reason, why) {
			return fmt.Errorf("it is %s: %s", w.State, w.Reason)
		}
		return nil
	})
	if err == nil {
		t.Say("%s: %s %s%s, %d objects. %s", name, w.State, w.Source, w.Reason, w.Objects, w.Limits)
	}
	return err
}

// witnessesSeePods asks the agent in its pod: cadastre check compares the sandboxes and
// the addresses in namespaces with the leases.
func (t *scenario) witnessesSeePods(ctx context.Context) error {
	t.Step("Ask the agent in its pod, which has the rights of the manifest: kernel and runtime agree with the ledger.")
	n := t.nodes[0]
	for _, name := range []witness.Name{witness.Kernel, witness.Runtime} {
		if err := t.witnessIs(ctx, n, name, witness.Present, ""); err != nil {
			return err
		}
	}
	out, err := t.inAgent(ctx, n, "check")
	if err == nil && (!strings.Contains(out, "containerd") || !strings.Contains(out, "namespaces")) {
		err = fmt.Errorf("cadastre check does not name kernel and runtime: %s", out)
	}
	t.Say("$ cadastre check")
	t.Say("%s", out)
	return err
}

// runtimeIsAway takes the socket away from a runtime that runs, and then restarts it: the
// agent's pod sees the new socket.
func (t *scenario) runtimeIsAway(ctx context.Context) error {
	t.Step("Remove the runtime's socket: the witness is missing, and says why. Restart the runtime: it is present.")
	n := t.nodes[0]
	if err := os.Remove(n.host(runtimeSocket)); err != nil {
		return err
	}
	// kubelet's connections to the runtime were open before.
	if err := t.witnessIs(ctx, n, witness.Runtime, witness.Missing, runtimeSocket); err != nil {
		return err
	}
	switch _, err := t.inAgent(ctx, n, "check"); {
	case err == nil:
		return errors.New("cadastre check succeeds without the runtime")
	case !strings.Contains(err.Error(), "exit code 5"):
		return fmt.Errorf("check without the runtime: want exit code 5 (cannot tell): %w", err)
	}
	if err := t.stopRuntime(n); err != nil {
		return err
	}
	if err := t.startRuntime(ctx, n); err != nil {
		return err
	}
	return t.witnessIs(ctx, n, witness.Runtime, witness.Present, "")
}

// delIsLost removes a pod whose DEL reaches no agent, not even a later one: its lease
// is reclaimed, and no other.
func (t *scenario) delIsLost(ctx context.Context) error {
	t.Step("Delete a pod while the agents are away, and lose its DEL: the agent reclaims the lease, and no other.")
	before, err := t.look(ctx)
	if err != nil {
		return err
	}
	if err := t.sendAgentsAway(ctx); err != nil {
		return err
	}
	n := t.nodes[0]
	const lost = "third"
	if err := t.remove(ctx, lost); err != nil {
		return err
	}
	// The kubelet does this within a minute. Until then the lease has a sandbox.
	err = t.eventually(
		ctx,
		"the sandbox is removed",
		func(ctx context.Context) error { // kubelet removes containers too
			_, err := critest.RemoveSandboxes(ctx, n.host(runtimeSocket), "default", lost)
			return err
		},
	)
	if err != nil {
		return err
	}
	if err := loseDELs(n.host("/run/cadastre/del")); err != nil {
		return err
	}
	if err := t.bringAgentsBack(ctx); err != nil {
		return err
	}
	after, err := t.expect(ctx, len(before.pods)-1)
	if err != nil {
		return err
	}
	for _, l := range before.leases {
		if l.PodName != lost && !slices.Contains(after.leases, l) {
			return fmt.Errorf("%s of %s has changed", l.IP, l.PodName)
		}
	}
	var list localapi.Reclaims
	if _, err := n.agent.Read(ctx, &list, "reclaim", "list"); err != nil {
		return err
	}
	if len(list.Ended) != 1 || list.Ended[0].Pod != "default/"+lost || list.Ended[0].State != "reclaimed" {
		return fmt.Errorf("want one reclaim, of the lease of %s: %+v", lost, list)
	}
	t.Say("Reclaimed %s: %s", list.Ended[0].IP, list.Ended[0].Reason)
	return t.reach(ctx, after.pods)
}

// loseDELs removes the DELs that wait for an agent. There must be some.
func loseDELs(dir string) error {
	files, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("no DEL waits in %s: the lease would be released by itself", dir)
	}
	for _, f := range files {
		if err := os.Remove(filepath.Join(dir, f.Name())); err != nil {
			return err
		}
	}
	return nil
}
