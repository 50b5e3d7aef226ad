// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import "time"

// FirstFree returns the first of pools that has a free address of family f. If
// none has, ok is false, and wait is the time until the first of their cooling
// addresses is free, or negative if none cools. The answer is a hint: another
// claim may take the address before the caller's.
func (l *Ledger) FirstFree(f Family, pools []string) (pool string, wait time.Duration, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expirePending()
	wait = -1
	for _, name := range pools {
		p := l.pools[name]
		if p == nil {
			continue
		}
		fp := &p.fam[f]
		l.expireCooling(p, fp)
		if fp.freeList(byPrefix).next(0) != nil {
			return name, 0, true
		}
		for x := fp.cooling.head; x != nil; x = x.cooling[ofFamily].next {
			if fp.allocates(x).state != Active {
				continue
			}
			if rest := p.CoolDown - (l.opt.Uptime() - x.cooled); wait < 0 || rest < wait {
				wait = rest
			}
			break
		}
	}
	return "", wait, false
}
