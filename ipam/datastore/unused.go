// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore

import (
	"slices"
	"time"

	"github.com/cadastre/cadastre/operator/netresource/watermark"
)

// minENIAge is how long an interface is kept after it was added, used or not:
// whoever had it attached may be about to use it.
const minENIAge = time.Minute

// prefixSize is the number of addresses of a prefix that targets count with.
const prefixSize = 16

// RemoveUnusedENIFromStore removes an interface that is not used, and says
// which; "" if there is none that may go. The targets count without it.
func (ds *DataStore) RemoveUnusedENIFromStore(warmIPTarget int, minimumIPTarget int) string {
	return ds.RemoveUnusedENI(Targets{WarmIP: warmIPTarget, MinimumIP: minimumIPTarget})
}

// RemoveUnusedENI is RemoveUnusedENIFromStore for all targets; that of whole
// interfaces is for the caller to look at. It removes at most one: of those
// that may go, the one with the highest device number.
func (ds *DataStore) RemoveUnusedENI(t Targets) string {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	all := ds.stats(func(*subpool) bool { return true })
	total, now := sum(all), ds.opt.Uptime()
	for _, a := range slices.Backward(ds.sorted()) {
		if why := ds.keeps(a, all[a], total, t, now); why != "" {
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

// keeps is why a stays, "" if it may go.
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
	case now-a.created < minENIAge:
		return "it is younger than a minute"
	case mine.Assigned > 0:
		return "pods have addresses of it"
	case mine.Cooling > 0:
		return "addresses of it cool"
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
