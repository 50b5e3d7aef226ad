// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/stage"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// closedNetworks starts a node with two networks, whose last routes are in the main table.
func closedNetworks(t *testing.T) *node {
	t.Helper()
	c := newCluster(t, layout{transport: "hostgw", v4: true, nodes: 1})
	c.network("blue", "10.5.0.0/16", "")
	n := c.nodes[0]
	n.podIn("blue", "a")
	c.Eventually(n.lastRoutes, patience, pace).Should(And(ContainSubstring("10.1.0.0/16"), ContainSubstring("10.5.0.0/16")))
	return n
}

// lastRoutes returns the routes for packets that no other route takes.
func (n *node) lastRoutes() string {
	n.t.Helper()
	return n.show(n.ns, "-4 route show type unreachable")
}

// localStatus returns the status of the agent.
func (n *node) localStatus() (s localapi.Status, err error) {
	text, err := n.Get(n.t.Context(), localapi.PathStatus)
	if err == nil {
		err = json.Unmarshal([]byte(text), &s)
	}
	return s, err
}

// repairs returns the times at which the agent has repaired a value.
func (n *node) repairs(key string) (all []time.Time) {
	n.t.Helper()
	log, err := os.ReadFile(n.Log())
	n.must(err)
	for line := range strings.Lines(string(log)) {
		if !strings.Contains(line, "made values again") || !strings.Contains(line, key) {
			continue
		}
		text, _, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")
		at, err := time.Parse(time.RFC3339Nano, text)
		n.must(err)
		all = append(all, at)
	}
	return all
}

// After a restart each network has its own routes: the agent does not give those of one
// network to the other, and repairs nothing.
func TestTheNetworksOfTheMainTableLeaveEachOtherAlone(t *testing.T) {
	n := closedNetworks(t)
	want := n.lastRoutes()
	n.kill()
	n.launch()
	n.await()
	n.rest()
	n.Expect(n.lastRoutes()).To(Equal(want))
	n.Expect(n.repairs("network/")).To(BeEmpty())
}

// A program that removes a route each time is answered ever slower, and named by a note. When
// the program has ended, the route is made again and stays.
func TestAProgramThatRemovesARouteAgainAndAgain(t *testing.T) {
	n := closedNetworks(t)
	want := n.lastRoutes()
	const key = "network/blue"
	foreign := exec.Command("sh", "-c", "while :; do ip route del unreachable 10.5.0.0/16 2>/dev/null; sleep 0.01; done")
	process, err := stage.Start(foreign, n.ns.Do)
	n.must(err)
	n.t.Cleanup(func() { _ = process.Kill() }) // it has ended, unless the test failed

	n.Eventually(func() int { return len(n.repairs(key)) }, patience, pace).Should(BeNumerically(">=", 5))
	times := n.repairs(key)
	for i, wait := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
		gap := times[i+2].Sub(times[i+1])
		n.Expect(gap).To(BeNumerically(">", wait/2), "between repairs %d and %d", i+2, i+3)
	}
	n.Eventually(func() error {
		s, err := n.localStatus()
		if err != nil {
			return err
		}
		notes := strings.Join(s.Notes, "\n")
		if !strings.Contains(notes, key+" was repaired ") || strings.Contains(notes, "network/default") {
			return fmt.Errorf("the notes: %q", notes)
		}
		for _, v := range s.Southbound.Values {
			if v.Key == key && v.Retry != nil {
				return nil
			}
		}
		return errors.New(key + " does not wait for its next repair")
	}, patience, pace).Should(Succeed())
	n.Expect(n.lastRoutes()).To(ContainSubstring("10.1.0.0/16"), "the other network is left alone")

	n.must(process.Kill())
	n.must(n.AwaitRest(context.Background(), n.process, n.ns.Do))
	n.Expect(n.lastRoutes()).To(Equal(want))
}
