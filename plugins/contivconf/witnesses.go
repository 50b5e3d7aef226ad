// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import (
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cadastre/cadastre/plugins/contivconf/yamldoc"
)

// Values of Witnesses.Runtime and Witnesses.Engine besides an endpoint.
const (
	WitnessAuto = "auto" // the usual sockets
	WitnessNone = "none" // there is none on this node
)

// Witnesses configures the sources outside the ledger that the agent compares it with.
type Witnesses struct {
	NetNS    []string      `json:"netns"`   // directories with files of network namespaces
	Results  string        `json:"results"` // folder of the CNI results that libcni keeps
	Runtime  string        `json:"runtime"` // auto, none, or the endpoint of a CRI runtime
	Engine   string        `json:"engine"`  // auto, none, or the endpoint of a Docker engine
	Interval time.Duration `json:"interval"`
}

// Reclaim configures how leases end whose owners are gone.
type Reclaim struct {
	Enabled bool          `json:"enabled"`
	Grace   time.Duration `json:"grace"` // the least age of a lease that is reclaimed
	Undo    time.Duration `json:"undo"`  // time in which a reclaim can be undone
}

func defaultWitnesses() Witnesses {
	return Witnesses{
		NetNS:    []string{"/var/run/netns", "/var/run/docker/netns"},
		Results:  "/var/lib/cni/results",
		Runtime:  WitnessAuto,
		Engine:   WitnessAuto,
		Interval: 20 * time.Second,
	}
}

func defaultReclaim() Reclaim {
	return Reclaim{Enabled: true, Grace: 5 * time.Minute, Undo: 10 * time.Minute}
}

func (w *Witnesses) validate(p *yamldoc.Collector) {
	const section = "cadastre.witnesses."
	for i, dir := range w.NetNS {
		if !filepath.IsAbs(dir) {
			p.Add(RuleWitness, section+"netns["+strconv.Itoa(i)+"]", dir,
				"is not an absolute path: write one such as /var/run/netns")
		}
	}
	if !filepath.IsAbs(w.Results) {
		p.Add(RuleWitness, section+"results", w.Results,
			"is not an absolute path: write one such as /var/lib/cni/results")
	}
	for _, x := range []struct{ key, value, example string }{
		{"runtime", w.Runtime, "unix:///run/containerd/containerd.sock"},
		{"engine", w.Engine, "unix:///var/run/docker.sock"},
	} {
		path, isSocket := strings.CutPrefix(x.value, "unix://")
		if x.value != WitnessAuto && x.value != WitnessNone && (!isSocket || !filepath.IsAbs(path)) {
			p.Add(
				RuleWitness,
				section+x.key,
				x.value,
				"is not an endpoint: write auto, none, or one such as %s",
				x.example,
			)
		}
	}
	checkDuration(p, section+"interval", w.Interval, time.Hour, false)
}

func (r *Reclaim) validate(p *yamldoc.Collector) {
	const section, week = "cadastre.reclaim.", 7 * 24 * time.Hour
	checkDuration(p, section+"grace", r.Grace, week, false)
	checkDuration(p, section+"undo", r.Undo, week, false)
}
