// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore

import (
	"slices"
	"time"

	"github.com/cadastre/cadastre/ipam/watermark"
	"github.com/cadastre/cadastre/ledger"
)

// minENIAge is the age below which an unused interface stays: a pod may be about
// to use it.
const minENIAge = time.Minute

// prefixSize is the number of addresses of a prefix in targets.
const prefixSize = 16

// RemoveUnusedENIFromStore removes an unused interface without which the targets
// are met, and returns its ID; "": there is none.
func (ds *DataStore) RemoveUnusedENIFromStore(warmIPTarget int, minimumIPTarget int) string {
	return ds.RemoveUnusedENI(Targets{WarmIP: warmIPTarget, MinimumIP: minimumIPTarget})
}

// RemoveUnusedENI is RemoveUnusedENIFromStore for all targets except WarmENI, which
// the caller checks. It removes at most one interface, the one with the highest
// device number.
func (ds *DataStore) RemoveUnusedENI(t Targets) string {
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
		err, detached := error(nil), true
		if ds.shared != nil {
			detached, err = ds.detachShared(a)
		} else {
			err = ds.detach(a, nil)
		}
		if err != nil {
			ds.opt.Log.Error("an unused interface cannot be removed", "interface", a.ID, "error", err)
			return ""
		}
		if !detached { // an address was assigned meanwhile
			continue
		}
		return a.ID
	}
	return ""
}

// keepsFamilies returns the reason for which a stays; "": it can be removed. The targets
// count for each family of which a has addresses: free ones of the other family do not
// replace them.
func (ds *DataStore) keepsFamilies(a *attachment, all [2]map[*attachment]Stats, t Targets, now time.Duration) string {
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
func (ds *DataStore) keeps(a *attachment, mine, total Stats, t Targets, now time.Duration) string {
	if ds.opt.PrefixMode {
		t.WarmIP, t.MinimumIP = roundUp(t.WarmIP), roundUp(t.MinimumIP)
	}
	free := total.Free() - mine.Free()
	switch {
	case a.Primary:
		return "it is the primary one"
	case a.Trunk:
		return "it is the trunk"
	case a.EFA:
		return "it is an EFA device"
	case a.Foreign:
		return "another program has made it"
	case now-a.created < minENIAge:
		return "it is younger than a minute"
	case mine.Assigned > 0:
		return "pods have addresses of it"
	case mine.Cooling > 0:
		return "addresses of it are cooling"
	case t.WarmIP > 0 && free < t.WarmIP:
		return "too few addresses would be free"
	case t.MinimumIP > 0 && total.Total-mine.Total < t.MinimumIP:
		return "too few addresses would be left"
	case ds.opt.PrefixMode && total.FreePrefixes-mine.FreePrefixes < t.WarmPrefix:
		return "too few prefixes would be free"
	}
	return ""
}

func roundUp(n int) int { return watermark.Units(n, prefixSize) * prefixSize }
