// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore

import (
	"slices"
	"time"

	"github.com/cadastre/cadastre/api/watermark"
	"github.com/cadastre/cadastre/ledger"
)

// minENIAge is the age below which an unused interface stays: a pod may be about
// to use it.
const minENIAge = time.Minute

// prefixSize is the number of addresses of a prefix in targets.
const prefixSize = 16

// RemoveUnusedENIFromStore removes an unused interface without which the targets
// are met, and returns its ID; "": there is none. It removes at most one, the one with the
// highest device number.
func (ds *DataStore) RemoveUnusedENIFromStore(warmIPTarget int, minimumIPTarget int) string {
	t := targets{warmIPTarget, minimumIPTarget}
	if ds.opt.PrefixMode {
		t = targets{roundUp(warmIPTarget), roundUp(minimumIPTarget)}
	}
	defer ds.lock()()
	var all [2]map[*attachment]Stats // by family
	for f := range all {
		all[f] = ds.stats(func(s *subpool) bool { return s.family == ledger.Family(f) })
	}
	now := ds.opt.Uptime()
	for _, a := range slices.Backward(ds.sorted()) {
		if why := ds.keepsFamilies(a, all, t, now); why != "" {
			ds.opt.Log.Debug("an interface stays", "interface", a.ID, "because", why)
			continue
		}
		if err := ds.detach(a, nil); err != nil {
			ds.opt.Log.Error("an unused interface cannot be removed", "interface", a.ID, "error", err)
			return ""
		}
		return a.ID
	}
	return ""
}

// targets holds the free addresses and the addresses in total that a node wants.
type targets struct{ warm, minimum int }

// keepsFamilies returns the reason for which a stays; "": it can be removed. The targets
// count for each family of which a has addresses: free ones of the other family do not
// replace them.
func (ds *DataStore) keepsFamilies(a *attachment, all [2]map[*attachment]Stats, t targets, now time.Duration) string {
	if all[0][a].Total+all[1][a].Total == 0 {
		return ds.keeps(a, Stats{}, sum(all[0]).plus(sum(all[1])), t, now)
	}
	for f := range all {
		if all[f][a].Total == 0 {
			continue
		}
		if why := ds.keeps(a, all[f][a], sum(all[f]), t, now); why != "" {
			return why
		}
	}
	return ""
}

// keeps returns the reason for which a stays by the counts of a family; "": it can be removed.
func (ds *DataStore) keeps(a *attachment, mine, total Stats, t targets, now time.Duration) string {
	free := total.Free() - mine.Free()
	switch {
	case a.Primary:
		return "it is the primary one"
	case a.Trunk:
		return "it is the trunk"
	case a.EFA:
		return "it is an EFA device"
	case now-a.created < minENIAge:
		return "it is younger than a minute"
	case mine.Assigned > 0:
		return "pods have addresses of it"
	case mine.Cooling > 0:
		return "addresses of it are cooling"
	case t.warm > 0 && free < t.warm:
		return "too few addresses would be free"
	case t.minimum > 0 && total.Total-mine.Total < t.minimum:
		return "too few addresses would be left"
	}
	return ""
}

func roundUp(n int) int { return watermark.Units(n, prefixSize) * prefixSize }
